"""Merge the overrides of a command line into one configuration with Hydra. Needs no torch.

Every Hydra error becomes one sentence.
The chosen config files are composed once and cached; the other overrides are applied to a copy, by Hydra's own
function. This is ten times as fast as composing every time, since most configurations of an experiment differ only in
values.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tasks.config.options import CONFIGS, ConfigError, names_in, near, quoted, short, values_in

# Keys under these prefixes are chosen by the user and can be deleted; every other key is needed.
DELETABLE = ("mapping.at.", "mapping.grid.", "task.tune.parameters.")
OF_SWEEPS = ("sweep", "grid", "experiment")  # arguments of a sweep that are not configuration keys
PATHS = ("data.path", "data.mirror", "encode.vectors", "paths.data")  # whose values are files or folders
WORD = re.compile(r"[^,\[\]{}():=]*[^\x00-\x7f][^,\[\]{}():=]*")  # with a letter that Hydra's parser refuses
SEVERAL = ("logger",)  # groups from which several files may be chosen
HYDRA = (HydraException, OmegaConfBaseException)
# What `scripts/train.py` accepts besides overrides: its own flags, and Hydra's, which would answer with a page of usage.
FLAGS = (
    "-m", "--multirun", "--plan", "-h", "--help", "-c", "--cfg", "-p", "--package", "-r", "--run", "-i", "--info", "--resolve",
    "--version", "--hydra-help", "-sc", "--shell-completion", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir",
    "--experimental-rerun",
)  # fmt: skip
UNREADABLE = "cannot be read; write KEY=VALUE, +KEY=VALUE or GROUP=NAME, and put lists, mappings and special characters in quotes"


@contextmanager
def reading() -> Iterator[None]:
    """Context in which Hydra reads our configs; inside another such context, that one is reused."""
    if GlobalHydra.instance().is_initialized():
        yield
        return
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        yield


def merged(file: str, overrides: Sequence[str]) -> DictConfig:
    """Merge a file of configs/ with the files that it and `overrides` choose, then set the values given by `overrides`.

    Raises ConfigError if an override is invalid.
    """
    refuse(overrides)
    parsed = [_parsed(one) for one in overrides]
    values(overrides)  # raises ConfigError for several values
    chosen = tuple(o for o, one in zip(overrides, parsed) if _chooses(one))
    config = None
    try:
        config = copy.deepcopy(_composed(file, chosen))
        ConfigLoaderImpl._apply_overrides_to_config([one for one in parsed if not _chooses(one)], config)
    except HYDRA as error:
        raise ConfigError(sentence(error, config)) from error
    return config


def refuse(overrides: Sequence[str]) -> None:
    """Raise ConfigError for overrides that delete a required key or choose a file that does not exist."""
    keys = [o[1:].partition("=")[0] for o in overrides if o.startswith("~")]
    found = [
        f"~{key} is invalid: every configuration needs this key; set it, as {key}=..."
        for key in keys if not key.startswith((*DELETABLE, "hydra"))
    ]  # fmt: skip
    for one in map(_parsed, overrides):
        if one.is_delete() or one.is_hydra_override() or not _chooses(one):
            continue
        group, known = one.key_or_group, names_in(one.key_or_group)
        values = one.sweep_iterator() if one.is_sweep_override() else (one.value(),)
        several = (
            name for value in values for name in (value if isinstance(value, list) and group in SEVERAL else [value])
        )
        for name in several:
            if one.package is None and (not isinstance(name, str) or name not in known):
                found.append(unknown(group, name, known))
    if found:
        raise ConfigError("; ".join(found))


def lacking(key: str, mappings: Iterable[str]) -> list[str]:
    """The mappings (files in configs/mapping) that have no parameter `key`, such as `mapping.lam`.

    Raises ConfigError if none of them has it.
    """
    files = {name: values_in(f"mapping/{name}") for name in mappings if name in names_in("mapping")}
    parameter = key.split(".")[1]
    without = [name for name, file in files.items() if parameter not in file]
    if files and len(without) == len(files):
        known = dict.fromkeys(k for file in files.values() for k in file if k not in ("name", "at", "grid"))
        have = f"of {', '.join(files)}" if len(files) < 6 else "of these mappings"
        raise ConfigError(
            f"{key} is not a parameter {have}{near(parameter, known)}; parameters: {', '.join(known) or 'none'}"
        )
    return without


@dataclass(frozen=True)
class Swept:
    """A key on a command line with all its values.

    Attributes:
        text: the argument as typed.
        overrides: one override for each value.
        glob: True if the values come from a glob pattern.
    """

    text: str
    overrides: tuple[str, ...]
    glob: bool = False


def swept(overrides: Sequence[str]) -> dict[str, Swept]:
    """Key -> its values.

    The syntax is that of Hydra's basic sweeper: a,b choice(a,b) range(1,5) glob(*) sort(...) shuffle(...).

    Raises:
        ConfigError: an override has a syntax error, an unknown file or an interval.
    """
    refuse(overrides)
    found: dict[str, Swept] = {}
    for text, one in zip(overrides, map(_parsed, overrides)):
        if not one.is_sweep_override():
            values = [text]
        elif not one.is_discrete_sweep():
            raise ConfigError(
                f"{text!r} is an interval, which only hydra/sweeper=optuna can search; list the values, as KEY=1,2,3"
            )
        else:
            values = [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
        if not values:
            raise ConfigError(
                f"{text!r} fits nothing; configs/{one.key_or_group} has: {', '.join(_Files.get_group_options(one.key_or_group))}"
            )
        found.pop(key := one.get_key_element(), None)
        found[key] = Swept(text, tuple(dict.fromkeys(values)), isinstance(one._value, Glob))
    return found


def values(overrides: Sequence[str]) -> dict[str, object]:
    """Key -> its value, as Hydra reads it. Raises ConfigError if an override cannot be read or has several values."""
    parsed = {text: _parsed(text) for text in overrides}
    if several := [text for text, one in parsed.items() if one.is_sweep_override()]:
        raise ConfigError(f"{several[0]!r} has several values; scripts/train.py -m runs one after the other")
    return {one.get_key_element().lstrip("+~"): one.value() for one in parsed.values()}


def spelled(override: str) -> str:
    """An override as Hydra's parser reads it.

    In quotes where a path has special characters, or a word is not ASCII; ``mapping.at.PLACE=NAME`` sets the mapping's name.
    """
    key, _, value = override.partition("=")
    if place := re.fullmatch(r"mapping\.at\.\w+(\.\w+)?", key):  # no place is in the files
        key = f"++{key}" if place[1] or value.startswith("{") else f"++{key}.name"
        override = f"{key}={value}"
    if key.lstrip("+") in PATHS and not re.search(r"""^(null)?$|^["'[{]|\$\{|,|^[a-z]+\(.*\)$""", value):
        return f"{key}={quoted(os.path.expanduser(value))}"
    if value.isascii() or re.search("[\"']", value):
        return override
    return f"{key}={re.sub(WORD, lambda word: quoted(word[0].strip()), value)}"


class _Files:
    """The names of config files, which Hydra's parser needs to expand a glob."""

    @staticmethod
    def get_group_options(group_name: str, results_filter: object = None) -> list[str]:
        return names_in(group_name)


@lru_cache(4096)
def _parsed(override: str) -> Override:
    """An override as parsed by Hydra. Raises ConfigError if Hydra cannot parse it."""
    try:
        (one,) = OverridesParser.create(config_loader=_Files()).parse_overrides([spelled(override)])  # type: ignore[arg-type]
    except (HydraException, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{override[:200]!r} {UNREADABLE}") from error
    if not one.key_or_group:
        raise ConfigError(f"{override[:200]!r} {UNREADABLE}")
    return one


def _chooses(one: Override) -> bool:
    """True if an override chooses a config file or configures Hydra itself."""
    group = (CONFIGS / one.key_or_group).is_dir() and (one.is_sweep_override() or not isinstance(one.value(), dict))
    return group or one.package is not None or one.is_hydra_override()


@lru_cache(512)
def _composed(file: str, chosen: tuple[str, ...]) -> DictConfig:
    """Hydra's `compose`, restricted to our files; else it would merge them with `task/translation` from fairseq.

    Unless an override is Hydra's, its own node is composed without its launcher, sweeper and help, a third of the time.
    """
    store = ConfigStore.instance()
    registered = store.repo
    own = registered["hydra"]  # Hydra's plugins add to it while this composes
    whole, bare = own["config.yaml"], copy.deepcopy(own["config.yaml"])
    bare.node["defaults"] = [
        d for d in whole.node["defaults"] if {*d} & {"hydra_logging", "job_logging"}
    ]  # in main.yaml
    if not any(_parsed(o).is_hydra_override() for o in chosen):
        own["config.yaml"] = bare
    store.repo = {"hydra": own} | {k: v for k, v in registered.items() if k.startswith("_")}
    try:
        with reading():
            return compose(file, overrides=list(chosen))
    finally:
        store.repo, own["config.yaml"] = registered, whole


def unknown(group: str, name: object, known: Sequence[str]) -> str:
    """The error message for an unknown file name in a config group."""
    return f"{group}={short(name)} is unknown{near(name, known)}; configs/{group} has: {', '.join(known) or 'nothing'}"


def sentence(error: Exception, config: DictConfig | None = None) -> str:
    """A Hydra error as one sentence that names the override, the possible values and the nearest of them.

    Args:
        config: the configuration whose keys are suggested (default: that of main.yaml).
    """
    text = str(error)
    if isinstance(error, ConfigError):
        return text
    if page := re.match(r"(?:In '[^']*': )?Could not find '([^']+)/([^/']*)'", text):
        group, name = page.groups()
        known = names_in(group)
        if group == "setting":
            task, _, profile = name.rpartition("_")
            there = [one.rpartition("_")[2] for one in known if one.startswith(f"{task}_")]
            return f"profile={profile} does not exist for task={task}, which has: {', '.join(there)}"
        return unknown(group, name, known)
    if key := re.match(r"Could not override '([^']+)'", text):
        return f"{key[1]} is not in the configuration{_nearest(key[1], config or _composed('main', ()))}; --cfg job shows all keys"
    lines = [line.strip() for line in text.splitlines() if line.strip() and "HYDRA_FULL_ERROR" not in line]
    cause = (
        str(error.__cause__).splitlines()[:1]
        if isinstance(error, ConfigCompositionException) and error.__cause__
        else []
    )
    key = getattr(error, "full_key", None)
    return ": ".join([*([key] if key else []), *lines[:1], *cause])


def _nearest(key: str, config: DictConfig) -> str:
    """Text that suggests the known key nearest to an unknown one and lists all keys at its level."""
    known = OmegaConf.to_container(config, resolve=False)
    *path, last = key.split(".")
    for depth, part in enumerate(path):
        if not isinstance(known, dict):
            return ""
        if part not in known:
            path, last = path[:depth], part
            break
        known = known[part]
    if not isinstance(known, dict):
        return ""
    names = [str(name) for name in known if name != "hydra"]
    inside = [f"{node}.{last}" for node in names if not path and isinstance(known[node], dict) and last in known[node]]
    if inside:
        return f" (did you mean {' or '.join(map(repr, inside))}?)"
    return f"{near(last, names)}; {'.'.join(path) or 'it'} has: {', '.join(names)}"
