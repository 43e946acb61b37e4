"""Run docs/library.md, write what its code prints into it, and its notebook and pictures: `make tour`.

    python scripts/tour.py

Next: read docs/library.md, or open docs/library.ipynb in Jupyter
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    from tasks.commands import tour

    docs = ROOT / "docs"
    page = tour.run((docs / "library.md").read_text(encoding="utf-8"))
    (docs / "library.md").write_text(page, encoding="utf-8")
    (docs / "library.ipynb").write_text(tour.notebook(page), encoding="utf-8")
    (docs / "figures").mkdir(exist_ok=True)
    for name, picture in tour.figures():
        (docs / "figures" / name).write_bytes(picture)
    print("written: docs/library.md, docs/library.ipynb, docs/figures; `git diff` shows what changed")


if __name__ == "__main__":
    main()
