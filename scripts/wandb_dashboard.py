"""Experiments as wandb workspaces (one a column) and a report, from the definitions that the HTML report is made of.

    python scripts/wandb_dashboard.py EXPERIMENT [profile=demo] [project=NAME] [entity=NAME]

Examples: python scripts/wandb_dashboard.py demo; python scripts/wandb_dashboard.py laha2018_table2 profile=cpu;
          python scripts/wandb_dashboard.py martins2020_table2 project=attention

WANDB_PROJECT and WANDB_ENTITY go before project= and entity=. Each call makes new ones and prints where they are; the runs
are those that `logger=wandb` or scripts/wandb_upload.py experiment=EXPERIMENT has sent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # as tasks/loggers/wandb.py
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
OWN = ("profile", "project", "entity")


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when wandb fails, 2 for names that are not possible."""
    from repro.plan.experiment import near
    from tasks.commands import wandb_dashboard as dashboard
    from tasks.config import compose
    from tasks.loggers.wandb import Options

    names = [a for a in arguments if "=" not in a]
    given = dict(a.split("=", 1) for a in arguments if "=" in a)
    if len(names) != 1 or names[0].startswith("-"):
        print(__doc__, file=sys.stdout if {"-h", "--help"} & set(names) else sys.stderr)
        return 0 if {"-h", "--help"} & set(names) else 2
    try:
        if wrong := [key for key in given if key not in OWN]:
            raise compose.ConfigError(
                f"{wrong[0]}= is not for this command{near(wrong[0], OWN)}; it takes {', '.join(OWN)}"
            )
        one = compose.experiment(names[0], given.get("profile", "demo"))
    except compose.ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    records = compose.published(one.published) if one.published else []
    project = os.environ.get("WANDB_PROJECT") or given.get("project") or Options().project
    try:
        import wandb

        entity = os.environ.get("WANDB_ENTITY") or given.get("entity") or wandb.Api().default_entity
        workspaces, report = dashboard.make(one, entity, project, records)
        report.save()  # makes the project where there is none
        print(f"report: {report.url}")
        for workspace in workspaces:
            workspace.save()
            print(f"workspace {workspace.name}: {workspace.url}")
    except ModuleNotFoundError as error:
        print(f"error: {error}; pip install 'sparse-attention[wandb]' brings it", file=sys.stderr)
        return 1
    except Exception as error:  # whatever wandb raises
        said = " ".join(str(error).split())[:300]
        print(
            f"error: wandb: {type(error).__name__}: {said}; it needs a key (WANDB_API_KEY or `wandb login`) and a server "
            "that answers (WANDB_BASE_URL)",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
