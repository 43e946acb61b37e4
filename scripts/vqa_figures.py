"""Draw what the rows of a finished visual question answering table attend to, discrete beside continuous.

    python scripts/vqa_figures.py [--count 6] [--questions 3,17] [--seed 1] [--out FOLDER] [profile=...] [overrides]

Examples: python scripts/vqa_figures.py; python scripts/vqa_figures.py --questions 3,17; python scripts/vqa_figures.py profile=cpu --count 9
The cells are those of martins2020_table2 with the same overrides. Questions are not drawn at random: answers other than
yes and no come first, of these what every row answers right. Writes attention.png and attention.svg.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
EXPERIMENT = "martins2020_table2"
SIDE = 256  # pixels of an image as it is drawn


def main() -> int:
    from tasks import reproduce
    from tasks.vqa import figures

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Next: python scripts/reproduce.py {EXPERIMENT}, then this command with the same overrides",
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=6, help="questions to draw (default 6)")
    parser.add_argument("--questions", help="numbers of test questions instead, as 3,17")
    parser.add_argument("--seed", type=int, help="which seed's cells (default: the experiment's first)")
    parser.add_argument("--out", type=Path, help="folder (default: <outputs>/figures)")
    parser.add_argument("overrides", nargs="*", help="profile=..., and the Hydra overrides of the run")
    args = parser.parse_intermixed_args()
    if args.count < 1:
        parser.error(f"--count {args.count} draws nothing; give at least 1")
    try:
        panels, picture, outputs = finished(args.overrides, args.seed)
        chosen = [int(q) for q in args.questions.split(",")] if args.questions else figures.choose(panels, args.count)
        if missing := [q for q in chosen if any(f"test/{q}" not in p.attention for p in panels)]:
            print(f"no attention is stored for {missing}; raise task.keep_attention and run again", file=sys.stderr)
            return 2
        out = args.out or Path(outputs) / "figures"
        caption = "" if args.questions else figures.CHOICE
        files = figures.draw(panels, chosen, picture, [out / "attention.png", out / "attention.svg"], caption)
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("figures: " + ", ".join(map(str, files)))
    return 0


def finished(overrides: list[str], seed: int | None):
    """A panel of each row, how to get an image, the outputs folder. Raises DataUnavailable for an unfinished cell."""
    from sparse_attention.repro.store import Store
    from tasks import reproduce
    from tasks.data import DataUnavailable, open_data
    from tasks.vqa import figures

    planned = reproduce.plan([EXPERIMENT], overrides if seed is None else [*overrides, f"seeds={seed}"])
    (plan,), store, panels = planned.plans, Store(planned.outputs), []
    first = plan.slots[0]
    for slot in (s for s in plan.slots if not s.column and s.cell.seed == first.cell.seed):
        label, found = plan.experiment.rows[slot.row].label, slot.cell.found(store)
        if found is None:
            raise DataUnavailable(
                f"the row {label!r} is not finished", str(slot.cell.entry(store).folder), figures.NEXT
            )
        test = found.evaluations["test"]
        mapping, attention = slot.cell.config["mapping"], test.path("attention.safetensors")
        panels.append(figures.read_panel(label, mapping, test.predictions(), attention))
    data = open_data(first.cell.config["data"], first.cell.config["paths"]["data"])
    return panels, figures.pictures(data.about["images"]), planned.outputs


if __name__ == "__main__":
    sys.exit(main())
