"""Draw a figure of a paper from the cells of a finished table: SVG and numbers, with its place in that table's report.

    python scripts/figures.py FIGURE [EXPERIMENT] [--text TEXT [--with TEXT]] [--test 3,17] [--count 2] [--out FOLDER] [--png]
                              [profile=...] [seeds=2] ['rows=softmax|sparse*'] [columns=fren] [Hydra overrides of the run]

Without --text or --test a figure draws a sentence of ours, or stored test examples where it has none. --with is the second text of a pair,
or the output that every row is forced to. The first seed and column are drawn. Files go to <paths.outputs>/figures/EXPERIMENT; the report shows them when it is written next.

Examples: python scripts/figures.py niculae2017_figure1
          python scripts/figures.py niculae2017_figure4 profile=cpu seeds=1 columns=fren --text "un homme joue de la guitare ."
          python scripts/figures.py martins2020_figure3 --count 6 --png
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    from tasks.commands import reproduce
    from tasks.commands.figures import FIGURES, Asked, make

    told = "\n".join(f"  {name:22s} {f.title}; cells of {f.experiment}" for name, f in FIGURES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nfigures:\n{told}", formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Next: python scripts/reproduce.py EXPERIMENT with the same overrides, before (the cells) and after (the report)",
    )  # fmt: skip
    parser.add_argument("--text", action="append", default=[], help="a text of one's own; may be repeated")
    parser.add_argument(
        "--with", dest="second", action="append", default=[], metavar="TEXT", help="what goes with each"
    )
    parser.add_argument("--test", default="", help="numbers of test examples, as 3,17")
    parser.add_argument("--count", type=int, default=2, help="stored test examples to draw (default 2)")
    parser.add_argument("--out", type=Path, help="folder (default: <outputs>/figures/EXPERIMENT)")
    parser.add_argument("--png", action="store_true", help="as PNG too")
    parser.add_argument(
        "arguments", nargs="*", help="FIGURE, another EXPERIMENT with such cells, profile=..., overrides"
    )
    args = parser.parse_intermixed_args()
    names = [a for a in args.arguments if "=" not in a]
    if not names or names[0] not in FIGURES or len(names) > 2:
        parser.error(f"{' '.join(names) or 'no name'} is no figure; there are: {', '.join(FIGURES)}")
    if args.count < 1:
        parser.error(f"--count {args.count} draws nothing; give at least 1")
    try:
        asked = Asked(
            [a for a in args.arguments if "=" in a], *names[1:], count=args.count, test=[int(i) for i in args.test.split(",") if i], text=args.text, second=args.second,
            endings=(".svg", ".png")[: 1 + args.png],
        )  # fmt: skip
        files = make(names[0], asked, args.out)
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("figures: " + ", ".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
