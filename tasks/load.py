"""Finished cells: found by id, folder or kind, loaded as plain torch models, scored on further test sets. No fairseq.

loaded = load_cell("translation/fusedmax")            # the newest finished one
found = evaluate("3f9a", ["data=duc2004", "decode.beam=2"])
"""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from sparse_attention.repro import cell as cells
from sparse_attention.repro.store import Store
from tasks import compose
from tasks.data import NullProgress
from tasks.options import near

EVALUATED = ("runtime", "paths")  # nodes that an evaluation may set besides data and what its family names


class NoCell(LookupError):
    """No cell, or more than one, is meant."""


@dataclass(frozen=True)
class Loaded:
    """A finished cell: its model in evaluation mode, configuration, opened encoding, and the module of its family's cells."""

    model: Any
    config: Mapping[str, Any]
    encoding: Any
    family: ModuleType


def outputs_folder() -> str:
    """Where cells lie when nobody says otherwise; as in configs/main.yaml."""
    return os.environ.get("SPARSE_ATTENTION_OUTPUTS", "outputs")


def find_cell(outputs: str | Path, what: str) -> Path:
    """The folder of the cell that is meant.

    Args:
        what: the folder itself, an id or its beginning, or `task/mapping` for the newest finished cell of these.

    Raises:
        NoCell: there is none, or an id's beginning fits several.
    """
    if (Path(what) / "config.yaml").is_file():
        return Path(what).resolve()
    entries = list(Store(outputs))
    if "/" in what:
        kinds = {"/".join(e.folder.parts[-3:-1]) for e in entries}
        done = [e for e in entries if "/".join(e.folder.parts[-3:-1]) == what.rstrip("/") and e.finished()]
        if not done:
            raise NoCell(
                f"no finished cell of {what!r} in {outputs}{near(what, kinds)}; there are: {', '.join(sorted(kinds)) or 'none'}"
            )
        return max(done, key=lambda e: e.path("manifest.json").stat().st_mtime).folder
    fitting = [e.folder for e in entries if e.folder.name.startswith(what)]
    if len(fitting) != 1:
        listed = ", ".join(str(f.relative_to(Path(outputs))) for f in fitting) or "none"
        raise NoCell(
            f"{what!r} must be the id of one cell in {outputs}, its beginning, its folder, or TASK/MAPPING; it fits {listed}"
        )
    return fitting[0]


def load_cell(what: str, outputs: str | Path | None = None) -> Loaded:
    """The model of a finished cell, on a GPU where there is one. Raises NoCell; StoreError when it is not finished or damaged."""
    folder = find_cell(outputs or outputs_folder(), what)
    config = _here(cells.finished(folder).config)
    cells.load_plugins(config["plugins"])
    family = importlib.import_module(compose.module_of(config))
    model, encoding = family.load(config, folder)
    return Loaded(model, config, encoding, family)


def evaluate(
    what: str, overrides: Sequence[str] = (), outputs: str | Path | None = None, *, progress: Any = None,
    forward: Callable[..., None] | None = None,
) -> cells.Found:  # fmt: skip
    """Score a finished cell anew: on other data, decoded otherwise, by other scores. Nothing is trained.

    Args:
        overrides: `data=NAME`, `data.KEY=VALUE`, and the keys that the training does not depend on (`decode.beam=2`,
            `task.scores=[bleu]`).
        forward: as of `sparse_attention.repro.cell.run`.

    Returns:
        the cell with this evaluation alone; its metrics are called `test/...` on the cell's own data, else by the data's name.

    Raises:
        NoCell, StoreError: see `load_cell`. ConfigError: overrides that an evaluation cannot have. RuntimeError: it failed.
    """
    folder = find_cell(outputs or outputs_folder(), what)
    cell = cells.finished(folder)
    config = evaluation_config(cell.config, overrides)
    cells.load_plugins(config["plugins"])
    own = config["data"] == cell.config["data"]
    test = cell.family.prepare_test(config, folder / "encoding", progress or NullProgress(), "test" if own else None)
    further = {} if own else {test.name: config["data"]}
    cell = replace(
        cell, config=config | {"data": cell.config["data"]}, tests=(test,), further=further, overrides=tuple(overrides)
    )
    store = Store(folder.parents[3])
    outcome = cells.run(cell, store, forward=forward)
    found = cell.found(store) if outcome.state in ("done", "skipped") else None
    if found is None:
        raise RuntimeError(f"{folder} was not scored ({outcome.state}): {outcome.reason}")
    return found


def evaluation_config(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A finished cell's configuration with other data or ways of scoring. Raises ConfigError naming keys that are the training's."""
    keys = (*importlib.import_module(compose.module_of(config)).EVALUATION_KEYS, *EVALUATED)
    data = [o for o in overrides if compose.names_data([o])]
    other = next((o.partition("=")[2] for o in data if o.startswith("data=")), None)
    set_here = [o for o in overrides if o not in data or other is None]
    changed = copy.deepcopy(_here(config))
    if data and "fallback" in changed["data"]:
        changed["data"]["fallback"] = None  # data that a person names are never replaced
    wrong = []
    for override in set_here:
        key, _, value = override.partition("=")
        *path, last = key.split(".")
        if not path or (override not in data and key not in keys and path[0] not in keys):
            wrong.append(key)
            continue
        node = changed
        try:
            for part in path:
                node = node.setdefault(part, {})
            node[last] = yaml.safe_load(value)
        except (AttributeError, TypeError, ValueError, yaml.YAMLError):
            raise compose.ConfigError(
                f"{override!r} cannot be set: there is no such key, or the value cannot be read"
            ) from None
    if wrong:
        raise compose.ConfigError(
            f"{', '.join(wrong)} cannot be set for a trained model; what can: data, {', '.join(keys)}"
        )
    changed = compose.completed(changed)
    return (
        changed if other is None else compose.with_data(changed, other, [o for o in data if not o.startswith("data=")])
    )


def _here(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for this machine, whatever the training ran on and told of itself."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return dict(config) | {"runtime": dict(config["runtime"]) | {"device": device}, "logger": {"csv": {}}}
