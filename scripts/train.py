"""Train and evaluate one cell; with -m, run a sweep. `--help` lists the choices and the named mapping's parameters.

    python scripts/train.py task=translation mapping=entmax mapping.alpha=1.3 seed=2             one cell
    python scripts/train.py -m task=toy mapping=sparsegen_lin,oscarmax seed=1,2,3 grid=paper     each mapping over its own grid
    python scripts/train.py -m task=toy 'mapping=glob(*)' --plan                                 cells and hours; nothing is run

See docs/guides/sweeps.md for everything else.
"""

from typing import Literal

from _entry import command


@command
def main(
    *, overrides: list[str], multirun: bool = False, plan: bool = False, cfg: Literal["job"] | None = None, help: bool = False
) -> int:  # fmt: skip
    from tasks.config import compose, pages
    from tasks.config.request import TRAIN, Request

    request = Request.read(overrides, TRAIN, plan=plan, many=multirun or plan)
    if request.optuna and not help:
        from tasks.commands import search

        return search.main(request)
    config = compose.chosen(request, shown=help or cfg is not None)
    if help:
        print(pages.choices(request, config))
        return 0
    if cfg:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(config), end="")
        return 0
    from tasks.commands import sweep, train

    if request.many:
        return sweep.plan(request) if plan else sweep.main(request)
    return train.main(request, config)
