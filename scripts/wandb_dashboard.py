"""Make wandb workspaces (one per column) and a report for an experiment, from the same definitions as the HTML report.

    python scripts/wandb_dashboard.py EXPERIMENT [profile=demo] [project=NAME] [entity=NAME]
    python scripts/wandb_dashboard.py task=NAME [FILTER ...] [project=NAME] [entity=NAME]

    FILTER   as in scripts/compare.py: mapping=entmax,sparsemax  seed=1,2  mapping.alpha=1.5; the workspace is grouped by mapping

Examples: python scripts/wandb_dashboard.py demo; python scripts/wandb_dashboard.py laha2018_table2 profile=cpu;
          python scripts/wandb_dashboard.py martins2020_table2 project=attention;
          python scripts/wandb_dashboard.py task=toy mapping=entmax,sparsemax seed=1,2

WANDB_PROJECT and WANDB_ENTITY override project= and entity=. Each call makes new workspaces (and a report of an experiment)
and prints their addresses. They show the runs sent by `logger=wandb` or scripts/wandb_upload.py experiment=EXPERIMENT.
"""

from _entry import command


@command
def main(*experiment: str, overrides: list[str], profile: str = "", project: str = "", entity: str = "") -> int:
    from repro.identity import pair

    filters = dict(map(pair, [*overrides, *([f"profile={profile}"] if profile and not experiment else [])]))
    if experiment and (len(experiment) > 1 or filters):
        raise ValueError(
            f"{[*experiment[1:], *filters][0]!r} does not go with an experiment; filters go with task=NAME"
        )
    from tasks.commands import wandb_dashboard

    return wandb_dashboard.main("".join(experiment), profile or "demo", project, entity, filters)
