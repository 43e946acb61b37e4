"""Draw what the rows of a finished translation table attend to, side by side, as SVG, PNG and JSON.

    python scripts/nmt_figures.py [martins2020_nmt|niculae2017_nmt] [--column KEY] [--count 2] [--sentences 3,17] [--text "..."]
                                  [--seed 1] [--out FOLDER] [profile=...] [overrides]

Figure 2 of Martins et al. 2020, Figure 4 of Niculae & Blondel 2017. Drawn are stored test sentences with the outputs that the models' beam search
found, no forced references; --text translates a sentence of one's own, as that of the paper's figure.
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
    from tasks.load import attending
    from tasks.seq2seq import figures

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Next: python scripts/reproduce.py EXPERIMENT, then this command with the same overrides",
    )  # fmt: skip
    parser.add_argument("--column", help="key of the experiment's column (default: its first)")
    parser.add_argument("--count", type=int, default=2, help="test sentences to draw (default 2)")
    parser.add_argument("--sentences", help="numbers of test sentences instead, as 3,17")
    parser.add_argument("--text", action="append", help="translate this sentence instead; may be repeated")
    parser.add_argument("--seed", type=int, help="which seed's cells (default: the experiment's first)")
    parser.add_argument("--out", type=Path, help="folder (default: <outputs>/figures)")
    parser.add_argument("arguments", nargs="*", help="the experiment, profile=..., the Hydra overrides of the run")
    args = parser.parse_intermixed_args()
    if args.count < 1:
        parser.error(f"--count {args.count} draws nothing; give at least 1")
    name = next((a for a in args.arguments if "=" not in a), "martins2020_nmt")
    overrides = [a for a in args.arguments if a != name]
    try:
        found = attending.finished(name, overrides, args.column, args.seed)
        if args.text:
            examples = [attending.translated(found, text) for text in args.text]
        else:
            rows = attending.stored(found)
            chosen = list(map(int, args.sentences.split(","))) if args.sentences else figures.choose(rows, args.count)
            if missing := [i for i in chosen if any(f"test/{i}" not in attention for *_, attention in rows)]:
                print(f"no attention is stored for {missing}; raise task.keep_attention and run again", file=sys.stderr)
                return 2
            examples = [figures.example(rows, i) for i in chosen]
        stem = (args.out or Path(found.outputs) / "figures") / f"{name}_{found.column.key}"
        files = [stem.with_suffix(suffix) for suffix in (".svg", ".png", ".json")]
        caption = f"{found.title}; {found.column.label}. Outputs of the models' own beam search."
        figures.draw(examples, files[:2], caption)
        figures.write_data(examples, files[2], caption)
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("figures: " + ", ".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
