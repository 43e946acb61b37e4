"""`make wheel`: build a wheel with compiled CPU kernels, for Linux with glibc 2.28 or newer (manylinux_2_28).

Examples: python scripts/wheel.py
          python scripts/wheel.py --to /tmp/wheels
          CXX=clang++ python scripts/wheel.py                  # another compiler
          CXX=aarch64-linux-gnu-g++ python scripts/wheel.py    # a wheel for aarch64, by a cross compiler

The library is copied, its kernels are compiled next to their sources for every processor type of the compiler's target
platform (`sparse_attention/kernels/native/carry.py`), and the wheel is named after the platform.
"""

from pathlib import Path

from _entry import ROOT, command


@command
def main(*, to: Path = ROOT / "dist") -> None:
    from tasks.commands.wheel import wheel

    print(f"pip install {wheel(to.resolve())}")
