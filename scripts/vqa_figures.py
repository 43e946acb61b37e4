"""Draw what the rows of a finished visual question answering table attend to, discrete beside continuous.

    python scripts/vqa_figures.py [--count 6] [--questions 3,17] [--seed 1] [--out FOLDER] [profile=demo|cpu|paper] [Hydra overrides]

The cells are those of martins2020_table2 with the same overrides; run scripts/reproduce.py first. Writes attention.png and .svg.
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
    from tasks.vqa import figures, finished

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=6, help="questions to draw (default 6)")
    parser.add_argument("--questions", help="numbers of test questions instead, as 3,17")
    parser.add_argument("--seed", type=int, help="which seed's cells (default: the experiment's first)")
    parser.add_argument("--out", type=Path, help="folder (default: <outputs>/figures)")
    parser.add_argument("overrides", nargs="*", help="profile=..., and the Hydra overrides of the run")
    args = parser.parse_intermixed_args()
    if args.count < 1:
        parser.error(f"--count {args.count} draws nothing; give at least 1")
    try:
        panels, outputs = finished.panels("martins2020_table2", args.overrides, args.seed)
        chosen = [int(q) for q in args.questions.split(",")] if args.questions else figures.choose(panels, args.count)
        if missing := [q for q in chosen if any(f"test/{q}" not in p.attention for p in panels)]:
            print(
                f"no attention is stored for {missing}; raise task.decode.keep_attention and run again", file=sys.stderr
            )
            return 2
        out = args.out or Path(outputs) / "figures"
        files = figures.draw(panels, chosen, [out / "attention.png", out / "attention.svg"])
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("figures: " + ", ".join(map(str, files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
