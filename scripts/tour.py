"""`make tour`: run docs/start/library.md, write the output of its code into it, and make its notebook and its pictures.

    python scripts/tour.py

Next: read docs/start/library.md, or open docs/start/library.ipynb in Jupyter
"""

from _entry import ROOT, command


@command
def main() -> None:
    from tasks.commands import tour

    tour.write(ROOT / "docs" / "start")
    print("written: docs/start/library.md, docs/start/library.ipynb, docs/start/figures; `git diff` shows what changed")
