"""Write requirements.lock: every package of the `repro` and `dev` extras with version and hashes, for Python 3.11 to 3.14 on Linux and macOS.

uv resolves it; pip can install it too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tasks.commands.setup import LOCK, OLDEST, ROOT, VENV, blocks

HEAD = "# The exact set of packages, with hashes, for every platform; made by `make lock`, installed by `make setup`.\n"


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    asked = ["--universal", "--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header"]
    # fewest: one version of a package for all Pythons where there is one, so that numbers do not depend on the Python
    asked += ["--fork-strategy", "fewest", "--python-version", ".".join(map(str, OLDEST)), "--upgrade"]
    made = subprocess.run(
        [str(VENV / "bin" / "uv"), "pip", "compile", "--quiet", *asked, "--extra", "repro", "--extra", "dev", "pyproject.toml"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        print(made.stderr, file=sys.stderr)
        return 1
    LOCK.write_text(HEAD + made.stdout, encoding="utf-8")
    print(f"requirements.lock: {len(blocks(made.stdout))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
