"""`scripts/store.py`: list and verify the store, and show its cells on wandb."""

from collections import Counter
from functools import partial

from repro.identity import pair


def _states(every: bool, *, paths_outputs: str = "") -> int:
    """Check every file of the store in a folder, or in the default one, and list its cells, or only the damaged ones.

    Returns exit status 1 if a cell is damaged, else 0. Raises ValueError if there is no store.
    """
    from repro.store import Store, outputs_folder

    store = Store(paths_outputs or outputs_folder())
    if not store.root.is_dir():
        raise ValueError(f"there is no store {store.root}; set paths.outputs=FOLDER")
    states: Counter[str] = Counter()
    for place, state, why in store.verify():
        states[state] += 1
        if every or why:
            print(f"{state:10s} {place}" + (f": {why}" if why else ""))
    print(", ".join(f"{count} {state}" for state, count in states.items()) or "the store is empty")
    return int("damaged" in states)


list_, verify = partial(_states, True), partial(_states, False)


def upload(*, overrides: list[str]) -> int:
    """Send the cells that match filters to wandb (`tasks.commands.wandb_upload`)."""
    from tasks.commands import wandb_upload

    return wandb_upload.main(dict(map(pair, overrides)))


def dashboard(experiment: str, *, profile: str = "demo", project: str = "", entity: str = "") -> int:
    """Make workspaces and a report of an experiment (`tasks.commands.wandb_dashboard`)."""
    from tasks.commands import wandb_dashboard

    return wandb_dashboard.main(experiment, profile, project, entity)
