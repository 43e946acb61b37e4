"""Draw what the rows of a finished table attend to, all forced to one output, side by side, as SVG, PNG and JSON.

    python scripts/forced_figures.py [niculae2017_table2] [--sentence 3 | --text "..." --output "..."] [--rows softmax sparsemax fusedmax]
                                     [--column KEY] [--seed 1] [--out FOLDER] [profile=...] [overrides]

Figure 1 of Peters, Niculae & Martins 2018, on a pair of ours: the attention of different mappings is comparable word by word, as none of them chooses
its own output. --sentence: a test sentence and its first reference.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
ROWS = ("softmax", "sparsemax", "fusedmax")


def main() -> int:
    from tasks import reproduce
    from tasks.load import attending, forcing
    from tasks.seq2seq import figures

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Next: python scripts/reproduce.py niculae2017_table2, then this command with the same overrides",
    )  # fmt: skip
    parser.add_argument(
        "--sentence", type=int, help="number of a test sentence (default: the stored one of typical length)"
    )
    parser.add_argument("--text", help="a source of one's own; with --output")
    parser.add_argument("--output", help="the output that every row is forced to")
    parser.add_argument(
        "--rows", nargs="+", default=ROWS, help=f"labels of the rows to draw (default: {' '.join(ROWS)})"
    )
    parser.add_argument("--column", help="key of the experiment's column (default: its first)")
    parser.add_argument("--seed", type=int, help="which seed's cells (default: the experiment's first)")
    parser.add_argument("--out", type=Path, help="folder (default: <outputs>/figures)")
    parser.add_argument("arguments", nargs="*", help="the experiment, profile=..., the Hydra overrides of the run")
    args = parser.parse_intermixed_args()
    if (args.text is None) != (args.output is None):
        parser.error("--text and --output go together")
    name = next((a for a in args.arguments if "=" not in a), "niculae2017_table2")
    try:
        found = attending.finished(name, [a for a in args.arguments if a != name], args.column, args.seed)
        labels = [label for label, _ in found.cells]
        if unknown := [row for row in args.rows if row not in labels]:
            raise ValueError(f"no row is called {unknown[0]!r}; there are: {', '.join(labels)}")
        found.cells = [(label, cell) for label, cell in found.cells if label in args.rows]
        index = figures.choose(attending.stored(found), 1)[0] if args.sentence is None else args.sentence
        source, output = (args.text, args.output) if args.text else forcing.stored(found, index)
        examples = [forcing.forced(found, source, output)]
        stem = (args.out or Path(found.outputs) / "figures") / f"{name}_{found.column.key}_forced"
        files = [stem.with_suffix(suffix) for suffix in (".svg", ".png", ".json")]
        caption = f"{found.title}; {found.column.label}. Forced to one output."
        figures.draw(examples, files[:2], caption)
        figures.write_data(examples, files[2], caption)
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("figures: " + ", ".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
