"""Build .venv: the locked set of packages on the platform of requirements.lock, else what pip resolves. `make setup` calls it.

    make setup          make setup PYTHON=/path/to/python3.11          LOCKED=0 make setup

LOCKED=0 resolves on any platform; tables made then say "not the locked set".
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import venv
from pathlib import Path

from installing import pip

ROOT = Path(__file__).resolve().parents[1]
VENV, LOCK = ROOT / ".venv", ROOT / "requirements.lock"
PYTHON = VENV / "bin" / "python"
HERE = f"{platform.system()} {platform.machine()}, CPython {platform.python_version().rpartition('.')[0]}"


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    if sys.version_info < (3, 10):  # noqa: UP036  this runs before anything is checked
        print("python 3.10 or newer is needed (3.11 is tested): make setup PYTHON=/path/to/python3.11", file=sys.stderr)
        return 1
    if not PYTHON.exists():
        print(f"creating .venv with Python {platform.python_version()}", flush=True)
        venv.create(VENV, with_pip=True)
    locked = fits(LOCK.read_text(encoding="utf-8")) and os.environ.get("LOCKED", "1") != "0"
    if locked:
        count = len(requirements())
        print(f"installing the {count} packages of requirements.lock (torch is large; about 3 minutes)", flush=True)
        done = pip(VENV, "--no-deps", "--require-hashes", "-r", str(LOCK), count=count) or pip(
            VENV, "--no-deps", "-e", str(ROOT)
        )
    else:
        print(f"resolving pyproject.toml for {HERE}: tables will say that this is not the locked set", flush=True)
        done = pip(VENV, "-e", f"{ROOT}[repro,dev]")
    if done:
        print("the installation failed (pip's own words stand above); run `make setup` again to go on", file=sys.stderr)
        return done
    print("compiling the kernels of the library, once", flush=True)
    # without a compiler: plain torch
    subprocess.run([str(PYTHON), "-m", "sparse_attention.kernels.native"], cwd=ROOT, check=False)
    (VENV / ".installed").touch()
    return 0


def fits(lock: str) -> bool:
    """Whether the lock was made for this system, machine and Python."""
    return f"for {HERE}." in lock.split("\n", 1)[0] + "."


def requirements() -> list[str]:
    return re.findall(r"^([\w.-]+)==", LOCK.read_text(encoding="utf-8"), re.M)


if __name__ == "__main__":
    sys.exit(main())
