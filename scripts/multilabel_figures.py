"""Draw Figures 4 and 5 and the JSD curves of Laha et al. 2018 from finished cells, and test the paper's claims on them.

    python scripts/multilabel_figures.py [laha2018_figure5] [profile=demo|cpu|paper] [seeds=1,2] [add=MAPPING]
                                         [Hydra overrides]

Examples: python scripts/multilabel_figures.py; python scripts/multilabel_figures.py profile=cpu;
          python scripts/multilabel_figures.py seeds=1,2 add=entmax
Files go to <paths.outputs>/figures. Next: run `python scripts/reproduce.py laha2018_figure5` with the same arguments before.
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
    (made,), store = planned.plans, Store(planned.outputs)
    found = [(made.experiment.rows[s.row].label, s.cell.config, s.cell.found(store)) for s in made.slots]
    points = figures.collect((row, config, one.metrics) for row, config, one in found if one is not None)
    for path in (files := figures.write(points, made.experiment.paper, Path(planned.outputs) / "figures")):
        print(path)
    if missing := sum(one is None for *_, one in found):
        again = " ".join(["python scripts/reproduce.py", name, *(a for a in arguments if a != name)])
        print(f"{missing} of {len(found)} cells are not finished and left out; run: {again}")
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
