"""The storm's measure of a store lies beside the tests of the store; a run that is ended ends the daemons of its Slurm."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "repro"))

signal.signal(signal.SIGTERM, signal.default_int_handler)
