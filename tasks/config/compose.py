"""Turn Hydra overrides into a complete, checked configuration made of plain dicts and lists.

`tasks.config.overrides` calls Hydra, and is imported only to merge overrides: a finished cell is loaded without. Every
node is read through a dataclass: one of `tasks.config.nodes`, or the `Options` of the family, data set, model or schedule.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from repro import identity, plugins
from repro.errors import ConfigError, near, short
from repro.identity import pair
from repro.options import plain, read, read_each
from repro.rounding import rounded
from tasks import data, loggers
from tasks.config import models, nodes
from tasks.config.files import CONFIGS, NAME, NODES, TOP
from tasks.config.files import names_in as names_in
from tasks.config.pages import claims, experiment, own_row, page, papers, published  # noqa: F401
from tasks.config.schedules import SCHEDULES

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from tasks.config.request import Override, Request

ROOT = Path(__file__).resolve().parents[2]
OF_FAMILY = {"task": "Task", "encode": "Encode", "decode": "Decode"}

Compose = Callable[..., dict[str, Any]]


@contextmanager
def composer(writes: bool = True) -> Iterator[Compose]:
    """Context manager for a function `compose(overrides, user=None) -> configuration`, which caches its results.

    `user` is the part of the overrides that the user typed; None means all. Data that the user names or sets are never
    replaced by generated data. If nothing `writes`, as for a plan, folders need not be writable.
    """
    from tasks.config.overrides import merged, reading
    from tasks.config.request import parse

    composed: dict[tuple[tuple[str, ...], ...], dict[str, Any]] = {}

    def resolve(overrides: Sequence[str] = (), user: Sequence[str] | None = None) -> dict[str, Any]:
        key = (tuple(overrides), tuple(overrides if user is None else user))
        if key not in composed:
            read = parse(overrides)
            config = merged("main", read)
            follow(config, read)
            composed[key] = checked(config, [one for one in read if one.text in key[1]], writes)
        return composed[key]

    with reading():
        yield resolve


def names_data(overrides: Sequence[str]) -> bool:
    """True if an override chooses a data set or sets one of its keys."""
    return any(pair(override)[0].partition(".")[0] == "data" for override in overrides)


def named(request: Request) -> None:
    """Raise ConfigError if a request names no task."""
    if "task" not in request.keys:
        known = names_in("task")
        raise ConfigError(f"no task is named; add task=NAME, one of: {', '.join(known)}")


def chosen(request: Request, shown: bool = False) -> DictConfig:
    """The configuration of a request before its values are checked; needs no torch, whose import takes seconds.

    For a sweep, it has the first value of each key, and no mapping. Raises ConfigError if the request has misspelt names or
    keys, or names no task and is not only `shown`.
    """
    from tasks.config.overrides import merged

    if not shown:
        named(request)
    if request.many:
        return merged("main", [one.each[0] for one in request.keys.values() if one.node != "mapping"])
    config = merged("main", list(request.keys.values()))
    follow(config, request.keys.values())
    return config


def follow(config: DictConfig, overrides: Iterable[Override]) -> None:
    """Apply what `overrides` imply: defaults for the user's own data, and which parameters are searched.

    A mapping's parameter that overrides set is removed from those that training searches, `task.tune.parameters`;
    ConfigError if they set both.
    """
    from omegaconf import DictConfig, OmegaConf

    keys = {one.key for one in overrides}
    limits = any(one.key == "data.limits" or (one.key == "data" and isinstance(one.value, dict)) for one in overrides)
    own_defaults(config, keys, limits)
    searched, at = (OmegaConf.select(config, key) for key in ("task.tune.parameters", "mapping.at"))
    if not isinstance(searched, DictConfig) or not isinstance(config.get("mapping"), DictConfig):
        return
    given = [(one.get("name"), set(one)) for one in (at or {}).values() if isinstance(one, DictConfig)]
    if not given:
        own = {key.split(".")[1] for key in keys if key.startswith("mapping.")}
        own.update(*(one.value for one in overrides if one.key == "mapping" and isinstance(one.value, dict)))
        given = [(config.mapping.get("name"), own)]
    for name, own in given:
        for key in own & {*(searched.get(name) or ())}:
            place = f"task.tune.parameters.{name}.{key}"
            if any(f"{place}.".startswith(f"{one}.") for one in keys - {"task"}):
                told = "the first is one value, the second the values to choose from on dev; leave one of them out"
                raise ConfigError(f"mapping.{key} and {place} are both set: {told}")
            searched[name] = {k: v for k, v in searched[name].items() if k != key}


def own_defaults(config: DictConfig, keys: Collection[str], limits: bool) -> None:
    """If the data are the user's own, replace what a setting says about its data, except the `keys` that overrides set.

    There are no size limits. Pairs of texts are segmented reversibly, with as many units as fit the texts, unless an
    override says how. chrF, which suits every language, is measured in addition to BLEU, and macro-F1 in addition to accuracy.
    """
    if not data.is_own(config.get("data")):
        return
    if "limits" in config.data and not limits:
        for split in config.data.limits:
            if f"data.limits.{split}" not in keys:
                config.data.limits[split] = None
    if "joint" in config.encode and not {"encode", "encode.tokenizer", "encode.subword"} & {*keys}:
        for key, value in {"tokenizer": "raw", "subword": "sentencepiece", "vocab_size": None, "min_count": 1}.items():
            if f"encode.{key}" not in keys:
                config.encode[key] = value
    scores = list(config.task.get("scores") or ())
    family = models.part(config.task.family, "options") if config.task.family in models.FAMILIES else None
    beside = {"chrf"} if "bleu" in scores else {"macro_f1"} if getattr(family, "CLASSES", False) else set()
    if beside and "task.scores" not in keys:
        config.task.scores = [*scores, *beside.difference(scores)]


def checked(config: DictConfig, typed: Collection[Override], writes: bool = True) -> dict[str, Any]:
    """Resolve, complete and check a composed configuration; `typed` are the overrides that the user typed.

    Raises ConfigError if it is invalid; the message lists all problems.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values: Any = rounded(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        key = str(error.full_key or "configuration")
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error
    values.pop("hydra", None)
    own = values.get("data")
    if isinstance(own, dict) and "fallback" in own and any(one.node == "data" for one in typed):
        own["fallback"] = None
    config = completed(values)
    if (config["profile"]["name"], values["runtime"]["device"], config["runtime"]["device"]) == ("gpu", "auto", "cpu"):
        config["runtime"]["device"] = "auto"  # a plan may go on; `reproduce.check_launcher` refuses to run it
    family = models.part(config["task"]["family"], "options")
    if unused := [one for one in typed if one.node in getattr(family, "NOT_USED", {})]:
        said, node = ", ".join(one.text for one in unused), unused[0].node
        raise ConfigError(f"{said} would change nothing: {family.NOT_USED[node]}")
    places = {key: folder for key, folder in config["paths"].items() if key == "outputs" or not Path(folder).is_dir()}
    for key, folder in places.items() if writes else ():
        if why := _unwritable(folder):
            raise ConfigError(f"paths.{key}={folder} cannot be written: {why}; set paths.{key}=FOLDER")
    return config


@lru_cache
def _unwritable(folder: str) -> str:
    """Why a folder (or its nearest existing parent) is not writable; an empty string if it is writable."""
    place = Path(folder)
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        Path(tempfile.mkdtemp(prefix=".", dir=place)).rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read every node through its dataclass, which fills in defaults and normalises values.

    Raises ConfigError, listing all problems, if a value is invalid.
    """
    known = (*NODES, *TOP)
    told = f"; a configuration has: {', '.join(known)}"
    found = [f"{key} is unknown{near(key, known)}{told}" for key in values if key not in known]
    given = {}
    for key in NODES:
        given[key] = values.get(key)
        if not isinstance(given[key], Mapping):
            told = f"{key}={short(given[key])} must be a mapping of options; set them one by one, as {key}.OPTION=VALUE"
            found.append(told)
    if found:
        raise ConfigError(found)
    config: dict[str, Any] = {}

    def take(key: str, reader: Callable[..., Any], *arguments: Any) -> None:
        """Set `config[key]` to what the reader returns, or add the problems that it raises to those found."""
        try:
            config[key] = reader(*arguments)
        except ValueError as error:
            found.extend(getattr(error, "problems", [str(error)]))

    take("top", _rest, {k: values[k] for k in TOP if k in values}, nodes.Top, "")
    for key, cls in nodes.SINGLE.items():
        take(key, _rest, given[key], cls, key)
    for key, classes in {**nodes.NAMED, "schedule": {k: v.Options for k, v in SCHEDULES.items()}}.items():
        take(key, _named, given[key], classes, key)
    take("logger", read_each, loggers.options(), given["logger"], "logger")
    family, of = _family(given["task"], found), given["task"].get("family")
    if family:
        for key, name in OF_FAMILY.items():
            take(key, _rest, given[key], getattr(family, name), key, ("name", "family") if key == "task" else ())
        if of_data := data.problems(given["data"], family.KIND):
            found += of_data
        else:
            take("data", _rest, given["data"], data.set_options(given["data"]["name"]), "data", ("name",))
    take("plugins", plugins.load, config.get("top", {}).get("plugins", ()))
    take("mapping", models.mapping, given["mapping"])
    if config.get("launcher", {}).get("name") != "slurm":  # its jobs run on other machines, with other GPUs
        _device(config.get("runtime", {}), found)
    if family:
        take("architecture", models.architecture, of, given["model"].get("name", ""))
        if architecture := config.get("architecture"):
            take("model", _rest, given["model"], architecture.Options, "model", ("name",))
        if "model" in config and "mapping" in config:
            found += models.problems(config["mapping"], architecture.PLACES, of)
    if not found:
        config |= config.pop("top")
        found = _together(config, family)
    if found:
        raise ConfigError(found)
    return {key: config[key] for key in (*NODES, *TOP)}


def _family(task: Mapping[str, Any], problems: list[str]) -> ModuleType | None:
    """The options module of the task's family, or None if the family is unknown; they are added to `problems`."""
    name = task.get("family")
    own = task.get("name")
    if not isinstance(own, str) or not NAME.fullmatch(own):
        told = "must be a name of letters, digits, - and _: it names the cells' folder"
        problems.append(f"task.name={short(own)} {told}")
    if isinstance(name, str) and name in models.FAMILIES:
        return models.part(name, "options")
    told = f"task.family={short(name)} is unknown{near(name, models.FAMILIES)}; allowed: {', '.join(models.FAMILIES)}"
    problems.append(told)
    return None


def _rest(node: Mapping[str, Any], cls: type, key: str, own: Sequence[str] = ()) -> dict[str, Any]:
    """Read a node that has the keys `own` in addition to the options of `cls`."""
    return {k: node[k] for k in own} | plain(read(cls, {k: v for k, v in node.items() if k not in own}, key))


def _named(node: Mapping[str, Any], classes: Mapping[str, type], key: str) -> dict[str, Any]:
    """Read a node whose `name` selects the dataclass for its other keys."""
    name = node.get("name")
    if not isinstance(name, str) or name not in classes:
        raise ConfigError(f"{key}.name={short(name)} is unknown{near(name, classes)}; allowed: {', '.join(classes)}")
    return _rest(node, classes[name], key, ("name",))


def _device(runtime: dict[str, Any], problems: list[str]) -> None:
    """Replace runtime.device=auto with the device that will be used, and check that the device is available."""
    import torch

    there = torch.cuda.is_available() and runtime.get("devices") != "none"
    if runtime.get("device") == "cuda" and runtime.get("devices") == "none":
        problems.append("runtime.device='cuda' contradicts runtime.devices=none; allowed: auto, cpu")
    elif runtime.get("device") == "cuda" and not there:
        problems.append("runtime.device='cuda' is unavailable: torch finds no GPU here; allowed: auto, cpu")
    if runtime.get("device") == "auto":
        runtime["device"] = "cuda" if there else "cpu"


def _together(config: Mapping[str, Any], family: ModuleType) -> list[str]:
    """Conflicts between nodes, each of which is valid by itself."""
    architecture = models.architecture(config["task"]["family"], config["model"]["name"])
    found = [p for module in (family, architecture) if hasattr(module, "problems") for p in module.problems(config)]
    if config["train"]["precision"] == "fp16" and config["runtime"]["device"] == "cpu":
        found.append("train.precision=fp16 needs a GPU; use bf16 or fp32, or runtime.device=cuda")
    if config["train"]["class_weights"] and not getattr(family, "CLASSES", False):
        told = f"train.class_weights is for classifiers; task={config['task']['name']} has no classes; leave it out"
        found.append(told)
    best = config["train"]["best_metric"]
    known = identity.family(module_of(config)).METRICS
    if best not in known:
        allowed = sorted(known.keys() & set(nodes.BEST))
        told = f"train.best_metric={best!r} is not measured by task={config['task']['name']}; allowed: {', '.join(allowed)}"
        found.append(told)
    return found


def module_of(config: Mapping[str, Any]) -> str:
    """Name of the module that implements the cells of a configuration's task family (`repro.protocol.Family`)."""
    return f"tasks.cells.{config['task']['family']}"


def with_data(config: Mapping[str, Any], name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A complete configuration with its data set replaced by `name` of configs/data, e.g. for a further test set.

    `overrides` set its keys, as `data.path=FOLDER`; if neither they nor the environment set its mirror, it has that of
    `config`. Raises ConfigError if the data set is unknown or of the wrong kind, or a key or value is invalid.
    """
    from omegaconf import OmegaConf

    from tasks.config.overrides import merged
    from tasks.config.request import parse

    if not (CONFIGS / "data" / f"{name}.yaml").exists():
        known = names_in("data")
        raise ConfigError(f"data={name!r} is an unknown data set{near(name, known)}; known: {', '.join(known)}")
    if wrong := [o for o in overrides if not names_data([o])]:
        raise ConfigError(f"{', '.join(wrong)} is not a key of the data; only these can be set here, as data.KEY=VALUE")
    chosen = merged(f"data/{name}", parse(overrides))
    around = OmegaConf.create({key: value for key, value in config.items() if key != "data"})
    OmegaConf.set_struct(chosen, False)
    values: Any = OmegaConf.to_container(OmegaConf.merge(around, chosen), resolve=True)
    if "fallback" in values["data"]:
        values["data"]["fallback"] = None
    if values["data"].get("mirror", "") is None:  # the folder that the command names holds all sets
        values["data"]["mirror"] = config["data"].get("mirror")
    return completed(values)
