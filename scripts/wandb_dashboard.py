"""Make wandb workspaces (one per column) and a report for an experiment, from the same definitions as the HTML report.

    python scripts/wandb_dashboard.py EXPERIMENT [profile=demo] [project=NAME] [entity=NAME]

Examples: python scripts/wandb_dashboard.py demo; python scripts/wandb_dashboard.py laha2018_table2 profile=cpu;
          python scripts/wandb_dashboard.py martins2020_table2 project=attention

WANDB_PROJECT and WANDB_ENTITY override project= and entity=. Each call makes new workspaces and a new report, and prints
their addresses. They show the runs sent by `logger=wandb` or scripts/wandb_upload.py experiment=EXPERIMENT.
"""

from _entry import command


@command
def main(experiment: str, *, profile: str = "demo", project: str = "", entity: str = "") -> int:
    from tasks.commands import wandb_dashboard

    return wandb_dashboard.main(experiment, profile, project, entity)
