"""The storm's measure of a store lies beside the tests of the store."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "repro"))
