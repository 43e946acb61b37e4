"""Draw the papers' figures that need no data: Niculae & Blondel Fig. 2 and App. C.1, Laha et al. Figs. 1-3, Martins et al. Figs. 1-2.

    python scripts/paper_figures.py [NAME ...] [--out FOLDER] [--png]    as SVG and CSV, and a page; default docs/results/figures

Examples: python scripts/paper_figures.py
          python scripts/paper_figures.py laha2018_figure1 laha2018_figure2 --out /tmp/figures --png
          python scripts/paper_figures.py niculae2017_figure2 --out /tmp/figures
Next: make figures, the figures that trained cells give
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    from repro.files import write_atomic
    from tasks.commands.paper_figures import FIGURES, page, write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which (default: all): {', '.join(f.name for f in FIGURES)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "figures")
    parser.add_argument("--png", action="store_true", help="as PNG too")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in {f.name for f in FIGURES}]:
        parser.error(f"there is no figure {unknown[0]!r}; there are: {', '.join(f.name for f in FIGURES)}")
    for figure in FIGURES:
        if not given.names or figure.name in given.names:
            print(", ".join(map(str, write(figure, given.out, ("svg", "png") if given.png else ("svg",)))))
    if not given.names:
        write_atomic(given.out / "README.md", page(FIGURES).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
