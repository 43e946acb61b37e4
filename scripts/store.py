"""List the cells of the store, verify their files, or send finished cells to wandb.

    python scripts/store.py list   [paths.outputs=FOLDER]      every training and evaluation with its state
    python scripts/store.py verify [paths.outputs=FOLDER]      check every file; lists damage, exit status 1 if any
    python scripts/store.py upload [FILTER ...] [logger.wandb.KEY=VALUE ...] [paths.outputs=FOLDER]
    python scripts/store.py dashboard EXPERIMENT [profile=demo] [project=NAME] [entity=NAME]

    upload     send finished cells to wandb, each only once: a run has its cell's id. docs/guides/loggers.md describes the runs
    FILTER     see scripts/compare.py: task=toy  mapping=entmax  seed=1,2  mapping.alpha=1.5  experiment=NAME  sweep=NAME;
               with experiment=NAME, a run gets its row and column in that experiment, whatever first requested the cell
    KEY        project, entity, mode, timeout; WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_DIR, WANDB_TAGS override them
    dashboard  make wandb workspaces (one per column) and a report, which show the runs of an experiment; prints their addresses

Examples: python scripts/store.py verify; python scripts/store.py list paths.outputs=/data/outputs
          python scripts/store.py upload experiment=laha2018_table2; python scripts/store.py upload sweep=night logger.wandb.project=attention
          python scripts/store.py dashboard laha2018_table2 profile=cpu

Damaged cells are never deleted; the next run that needs a damaged cell moves it aside and trains it again. To move a
cell to another store, copy its folder (docs/reference/store.md).
"""

from _entry import commands

main = commands(globals(), "tasks.commands.store", "list_", "verify", "upload", "dashboard")
