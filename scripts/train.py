"""Train and evaluate one cell; with -m, run a sweep. `--help` lists the choices and the named mapping's parameters.

    python scripts/train.py task=translation mapping=entmax mapping.alpha=1.3 seed=2             one cell
    python scripts/train.py -m task=toy mapping=sparsegen_lin,oscarmax seed=1,2,3 grid=paper     each mapping over its own grid
    python scripts/train.py -m task=toy 'mapping=glob(*)' --plan                                 cells and hours; nothing is run

See docs/guides/sweeps.md for everything else.
"""

import os

from _entry import command


@command
def main(arguments: list[str]) -> int:
    from tasks.config import compose
    from tasks.config.request import TRAIN, Request

    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors reach this script
    request = Request.read(arguments, TRAIN)
    compose.check(request)
    from tasks.commands import train

    return train.main(request)
