"""Run docs/library.md and write what its code prints into it, its notebook and its pictures: `make tour`.

    python scripts/tour.py

Next: read docs/library.md, or open docs/library.ipynb in Jupyter
"""

import sys

from _entry import ROOT, command


@command
def main() -> None:
    from tasks.commands import tour

    tour.write(ROOT / "docs")
    print("written: docs/library.md, docs/library.ipynb, docs/figures; `git diff` shows what changed")


if __name__ == "__main__":
    sys.exit(main())
