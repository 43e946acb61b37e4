"""Draw how the rows of a finished entailment table align pairs of texts, with the structures used, as SVG, PNG and JSON.

    python scripts/alignment_figures.py [peters2018_snli] [--count 2] [--pair PREMISE HYPOTHESIS] [--rows "SparseMAP, matching"]
                                        [--seed 1] [--out FOLDER] [profile=...] [overrides]

Figure 2 of Peters, Niculae & Martins 2018, of our own runs. Test pairs are not drawn at random: those that every row gets right come first, of
these the ones with about eight words in the premise, one of each class in turn. --pair aligns a pair of one's own.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    from tasks import reproduce
    from tasks.classification import figures
    from tasks.load import aligning, attending

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Next: python scripts/reproduce.py peters2018_snli, then this command with the same overrides",
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=2, help="test pairs to draw (default 2)")
    parser.add_argument("--pair", nargs=2, action="append", metavar=("FIRST", "SECOND"), help="a pair of one's own")
    parser.add_argument("--rows", nargs="+", help="labels of the rows to draw (default: all)")
    parser.add_argument("--seed", type=int, help="which seed's cells (default: the experiment's first)")
    parser.add_argument("--out", type=Path, help="folder (default: <outputs>/figures)")
    parser.add_argument("arguments", nargs="*", help="the experiment, profile=..., the Hydra overrides of the run")
    args = parser.parse_intermixed_args()
    if args.count < 1:
        parser.error(f"--count {args.count} draws nothing; give at least 1")
    name = next((a for a in args.arguments if "=" not in a), "peters2018_snli")
    try:
        found = attending.finished(name, [a for a in args.arguments if a != name], None, args.seed)
        labels = [label for label, _ in found.cells]
        if unknown := [row for row in args.rows or () if row not in labels]:
            raise ValueError(f"no row is called {unknown[0]!r}; there are: {', '.join(labels)}")
        found.cells = [(label, cell) for label, cell in found.cells if label in (args.rows or labels)]
        pairs = [(tuple(pair), "own pair") for pair in args.pair] if args.pair else aligning.stored(found, args.count)
        examples = aligning.aligned(found, pairs)
        stem = (args.out or Path(found.outputs) / "figures") / f"{name}_{found.column.key}"
        files = [stem.with_suffix(suffix) for suffix in (".svg", ".png", ".json")]
        caption = f"{found.title}; {found.column.label}. Output (class); right: structures through the first text."
        figures.draw(examples, files[:2], caption)
        figures.write_data(examples, files[2], caption)
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("figures: " + ", ".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
