"""Send finished cells of the store to wandb, each only once: a run has its cell's id. See docs/guides/loggers.md for the runs.

    python scripts/wandb_upload.py [FILTER ...] [logger.wandb.KEY=VALUE ...] [paths.outputs=FOLDER]

    FILTER   see scripts/compare.py: task=toy  mapping=entmax  seed=1,2  mapping.alpha=1.5  experiment=NAME  sweep=NAME
    KEY      project, entity, mode, timeout; WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_DIR, WANDB_TAGS override them

Examples: python scripts/wandb_upload.py task=toy; python scripts/wandb_upload.py experiment=laha2018_table2;
          python scripts/wandb_upload.py sweep=night logger.wandb.project=attention

With experiment=NAME, a run gets its row and column in that experiment, even if something else first requested the cell.
"""

from _entry import command


@command
def main(*, overrides: list[str]) -> int:
    from repro.identity import pair
    from tasks.commands import wandb_upload

    return wandb_upload.main(dict(map(pair, overrides)))
