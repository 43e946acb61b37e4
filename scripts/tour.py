"""`make tour`: run docs/library.md, write the output of its code into it, and make its notebook and its pictures.

    python scripts/tour.py

Next: read docs/library.md, or open docs/library.ipynb in Jupyter
"""

from _entry import ROOT, command


@command
def main() -> None:
    from tasks.commands import tour

    tour.write(ROOT / "docs")
    print("written: docs/library.md, docs/library.ipynb, docs/figures; `git diff` shows what changed")
