"""Draw figures that need no data: Niculae & Blondel Fig. 2, App. C.1; Laha et al. Figs. 1-3; Martins et al. Figs. 1-2.

    python scripts/paper_figures.py [NAME ...] [--out FOLDER]    SVG, CSV, a page; default docs/results/figures

Examples: python scripts/paper_figures.py
          python scripts/paper_figures.py laha2018_figure1 laha2018_figure2 --out /tmp/figures
          python scripts/paper_figures.py niculae2017_figure2 --out /tmp/figures
Next: make figures, for the figures that need trained cells
"""

from pathlib import Path

from _entry import ROOT, command


@command
def main(*names: str, out: Path = ROOT / "docs/results/figures") -> None:
    from tasks.draw import functions

    for made in functions.write_all(names, out):
        print(", ".join(map(str, made)))
