"""Experiments as wandb workspaces (one a column) and a report, from the definitions that the HTML report is made of.

    python scripts/wandb_dashboard.py EXPERIMENT [profile=demo] [project=NAME] [entity=NAME]

Examples: python scripts/wandb_dashboard.py demo; python scripts/wandb_dashboard.py laha2018_table2 profile=cpu;
          python scripts/wandb_dashboard.py martins2020_table2 project=attention

WANDB_PROJECT and WANDB_ENTITY override project= and entity=. Each call makes new ones and prints their addresses; the runs
are those that `logger=wandb` or scripts/wandb_upload.py experiment=EXPERIMENT has sent.
"""

import sys

from _entry import command


@command
def main(experiment: str, *, profile: str = "demo", project: str = "", entity: str = "") -> int:
    from tasks.commands import wandb_dashboard

    return wandb_dashboard.main(experiment, profile, project, entity)


if __name__ == "__main__":
    sys.exit(main())
