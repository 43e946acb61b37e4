"""Draw Figures 4 and 5 and the JSD curves of Laha et al. 2018 from finished cells, and test the paper's claims on them.

    python scripts/multilabel_figures.py [laha2018_figure5] [profile=demo|cpu|paper] [seeds=1,2] [add=MAPPING]
                                         [Hydra overrides]

Run `python scripts/reproduce.py laha2018_figure5` with the same arguments before. Files go to <paths.outputs>/figures.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    from sparse_attention.repro.store import Store
    from tasks import reproduce
    from tasks.multilabel import figures

    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    name = next((a for a in arguments if "=" not in a), "laha2018_figure5")
    try:
        planned = reproduce.plan([name], [a for a in arguments if a != name])
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    made, store = planned.plans[0], Store(planned.outputs)
    missing = sum(cell.entry(store).metrics() is None for cell in made.cells.values())
    files = figures.write(made, store, Path(planned.outputs) / "figures")
    if missing:
        print(
            f"{missing} of {len(made.cells)} cells are not finished and left out; run: python scripts/reproduce.py {' '.join(arguments)}"
        )
    for path in files:
        print(path)
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
