"""``python -m sparse_attention.kernels.native``: compile the CPU kernels ahead of their first use."""

import sys

from . import build, build_all

try:
    print(build_all())
except build.BuildError as error:
    sys.exit(f"no CPU kernels (everything works without them, but slower): {error}. {error.advice}.")
