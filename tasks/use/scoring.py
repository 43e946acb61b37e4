"""Evaluate finished cells again, on other data, with other decoding options or other scores. Nothing is trained."""

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from repro import cell as cells
from repro.errors import ConfigError, StoreError
from repro.files import read_json, usable
from repro.identity import family, pair
from repro.store import Store
from tasks.config import compose
from tasks.config.files import quoted
from tasks.data import SPLITS, DataError, NullProgress, is_own
from tasks.data.read.own import STEMS, stem
from tasks.use.finding import find_cell, tell_other_code

NAME = re.compile(r"\w[\w.+-]{0,60}")
EVALUATED = ("runtime", "paths")  # nodes that an evaluation may set, in addition to data and its family's keys


def evaluate(
    what: str,
    overrides: Sequence[str] = (),
    outputs: str | Path | None = None,
    *,
    progress: Any = None,
    plugins: Sequence[str] = (),
) -> cells.Results:
    """Evaluate a finished cell again, on other data, with other decoding options or other scores. Nothing is trained.

    Args:
        what: the cell; see `find_cell`.
        overrides: `data=NAME`, `data.KEY=VALUE`, and keys on which the training does not depend (`decode.beam=2`,
            `task.scores=[bleu]`); `data.name=NAME` names the test set.
        plugins: as in `tasks.use.load_cell`.

    Returns:
        the cell with only this evaluation. Metrics on the cell's own data are named `test/...`; on other data, the
            prefix is the name of the data set, or for your own data that of the file or folder.

    Raises:
        ConfigError, StoreError: as in `tasks.use.load_cell`. ConfigError also if the cell is not in a store; StoreError also if
            the evaluation failed.
        ConfigError: an override cannot be set for an evaluation.
    """
    folder = find_cell(outputs, what)
    cell = cells.finished(folder)
    if folder.parts[-4:-1] != (place := ("cells", cell.task, cell.mapping)):
        where = "/".join(("OUTPUTS", *place, "ID"))
        raise ConfigError(f"{folder} is not in a store, where its evaluations would go; copy it to {where} to score it")
    cell = cells.admit(folder, cell, plugins)
    given = [pair(o)[1] for o in overrides if o.startswith("data.name=")]
    overrides = [o for o in overrides if not o.startswith("data.name=")]
    opened(folder, cell, overrides)  # reports errors in the cell before any data are read
    with usable(folder, (compose.ConfigError, DataError) if overrides else (DataError,)):
        config = evaluation_config(cell.config, overrides)
        own = config["data"] == cell.config["data"]
        told, name = progress or NullProgress(), "test" if own and not given else _named(config, folder, given)
        test = cell.family.prepare_test(config, folder / "encoding", told, name)
    if is_own(config["data"]) and Path(config["data"].get("path") or "").is_file():
        file = f"test{Path(_place(config['data'])).suffix}"
        whole = f"only its test part is scored; to score all of it, name a folder with it as {file}"
        test = replace(test, facts={**test.facts, "notes": [*test.facts["notes"], whole]})
    config["data"], further = cell.config["data"], {} if own else {test.name: config["data"]}
    cell = replace(cell, config=config, tests=(test,), further=further)
    tell_other_code(folder, cell)
    store = Store(folder.parents[3])
    outcome = cells.run(cell, store)
    found = cell.results(store) if outcome.state in ("done", "skipped") else None
    if found is None:
        raise StoreError(f"{folder} was not scored ({outcome.state}): {outcome.reason}")
    return found


def one_by_one(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides for each test set, of which `data.path=A,B` names several."""
    path = next((pair(o)[1] for o in reversed(overrides) if o.startswith("data.path=")), "")
    rest = [o for o in overrides if not o.startswith("data.path=")]
    several = [path] if path[:1] in "\"'[" or Path(path).exists() else path.split(",")
    return [[*rest, f"data.path={quoted(one) if Path(one).exists() else one}"] for one in several] if path else [rest]


def _named(config: Mapping[str, Any], folder: Path, given: Sequence[str]) -> str:
    """The name of a test set: the one given, that of a data set of ours, or that of your own file or folder.

    Where another test set of the task has the name of a file or folder, its parents are put in front. Raises ConfigError
    if the given name is taken or cannot be a name.
    """
    node = config["data"]
    if not given and not is_own(node):
        return node["name"]
    place = Path(_place(node))
    last = stem(place) if place.is_file() else place.name
    parts = [re.sub(r"[^\w.+-]+", "_", part).strip("._+-") for part in (*place.parts[1:-1], last)]
    names = given[-1:] or ["-".join(filter(None, parts[-n:]))[-60:].lstrip("._+-") for n in range(1, len(parts) + 1)]
    others = dict.fromkeys(("", *SPLITS, *STEMS["dev"]), "reserved")  # name -> what has it
    for entry in Store(folder.parents[3]):
        for level in entry.evaluations() if entry.folder.parent.parent == folder.parent.parent else ():
            name = (read_json(level.path("metrics.json")) or {}).get("test")
            with suppress(StoreError, KeyError, TypeError):  # damaged
                if name in names and (other := _place(cells.read_config(level.folder)["data"])) != str(place):
                    others[name] = f"that of another test set, {other}"
    if given and (why := others.get(names[0]) or "" if NAME.fullmatch(names[0]) else "no name"):
        told = f"data.name={names[0]} is {why}; choose another name of letters, digits, '_', '-', '+' and '.'"
        raise compose.ConfigError(told)
    return next((name for name in names if name not in others), node["name"])


def _place(node: Mapping[str, Any]) -> str:
    """The file or folder of your own data, or the name of a data set of ours."""
    return str(Path(node["path"]).resolve()) if node.get("path") else node["name"]


def opened(folder: Path, cell: cells.Cell, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], Any, Any]:
    """Configuration, model and encoding of a finished cell.

    Raises:
        ConfigError: the overrides are invalid.
        StoreError: the cell is invalid.
    """
    with usable(folder, (compose.ConfigError,)):
        if cell.module != compose.module_of(cell.config):
            family_of = str(cell.config["task"]["family"])[:80]
            raise ValueError(f"its module is {cell.module}, but its task.family is {family_of!r}")
        config = on_this_machine(cell.config)
        if overrides:
            try:
                compose.completed(config)
            except compose.ConfigError as error:
                raise ValueError(f"config.yaml: {error}") from error
            config = evaluation_config(cell.config, overrides)
    with usable(folder):  # the overrides have been checked, so the error is in the folder
        model, encoding = cell.family.load(config, folder)
        if wrong := [name for name, w in model.named_parameters() if not bool(w.isfinite().all())]:
            raise ValueError(f"weights that are not finite: {wrong[0]}")
    return config, model, encoding


def evaluation_config(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A finished cell's configuration with other data, decoding options or scores.

    Raises ConfigError, naming the keys, for keys that can be set only for training.
    """
    keys = (*family(compose.module_of(config)).EVALUATION_KEYS, *EVALUATED)
    data = [o for o in overrides if compose.names_data([o])]
    other = next((value for key, value in map(pair, data) if key == "data"), None)
    set_here = [o for o in overrides if o not in data or other is None]
    changed = copy.deepcopy(on_this_machine(config))
    if data and "fallback" in changed["data"]:
        changed["data"]["fallback"] = None  # data named by the user are never replaced
    wrong = []
    for override in set_here:
        key, value = pair(override)
        *path, last = key.split(".")
        known = override in data or key in keys or bool({*path[:1]} & {*keys})
        if not path or not known or override.startswith("~"):
            wrong.append(key)
            continue
        node = changed
        try:
            for part in path:
                node = node.setdefault(part, {})
            node[last] = yaml.safe_load(value)  # without Hydra's parser, so that using a model needs no Hydra
        except (AttributeError, TypeError, ValueError, yaml.YAMLError):
            told = "cannot be set: there is no such key, or the value cannot be read"
            raise compose.ConfigError(f"{override!r} {told}") from None
    if wrong:
        what = f"{', '.join(wrong)} cannot be set for a trained model"
        raise compose.ConfigError(f"{what}; keys that can: data, {', '.join(keys)}")
    changed = compose.completed(changed)
    if other is None:
        return changed
    return compose.with_data(changed, other, [o for o in data if not o.startswith("data=")])


def on_this_machine(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with this machine's device and launcher and only the csv logger, wherever the training ran."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    runtime = {k: v for k, v in config["runtime"].items() if k != "compile"} | {"device": device}  # of earlier versions
    return dict(config) | {"runtime": runtime, "launcher": {"name": "local"}, "logger": {"csv": {}}}
