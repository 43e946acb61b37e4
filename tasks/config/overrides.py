"""Merge overrides into one configuration with Hydra. Needs no torch.

The chosen config files are composed once and cached; the values are set on a copy. This is ten times as fast as composing
every time, since most configurations of an experiment differ only in values. Every Hydra error becomes one sentence.
"""

import copy
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from repro.errors import ConfigError, near, short
from tasks.config.files import CONFIGS, names_in, values_in
from tasks.config.request import Override, parsed

NONE: Mapping[str, Collection[str]] = {}
HYDRA = (HydraException, OmegaConfBaseException)


@contextmanager
def reading() -> Iterator[None]:
    """Context in which Hydra reads our configs; inside another such context, that one is reused."""
    if GlobalHydra.instance().is_initialized():
        yield
        return
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        yield


def merged(file: str, overrides: Sequence[Override]) -> DictConfig:
    """Merge a file of configs/ with the files that it and `overrides` choose, then set the values given by `overrides`.

    Raises ConfigError if an override is invalid, or has several values.
    """
    values = [one.value for one in overrides]  # raises ConfigError for several
    if file == "main":
        overrides = as_custom(overrides)
        values = [one.value for one in overrides]
    try:
        config = copy.deepcopy(_composed(file, tuple(one for one in overrides if one.chooses)))
        for one, value in zip(overrides, values):
            if not one.chooses:
                _set(config, one, value)
    except HYDRA as error:
        raise ConfigError(sentence(error)) from error
    return config


def as_custom(overrides: Sequence[Override]) -> list[Override]:
    """Overrides in which a mapping of a plugin is `mapping=custom mapping.name=NAME`, and its parameters can be set.

    Raises ConfigError if `mapping.name` would replace the name of a mapping in configs/mapping, but not its parameters.
    """
    chosen = [one for one in overrides if one.key == "mapping" and one.chooses]
    name = chosen[-1].value if chosen else "softmax"
    own = name not in names_in("mapping")
    named = next((one for one in overrides if one.key == "mapping.name"), None)
    if named and (own or name != "custom") and not any(one.key == "mapping" and not one.chooses for one in overrides):
        told = f"{named.text} is for mapping=custom, not for mapping={name}; write mapping={short(named.value)} instead"
        raise ConfigError(told)
    if not own and name != "custom":
        return list(overrides)
    found = []
    for one in overrides:
        if own and one in chosen:
            found += [parsed("mapping=custom"), parsed(f"mapping.name={one.value}")]
        elif re.fullmatch(r"mapping\.(?!name|at|grid)\w+", one.key) and not (one.adds or one.parsed.is_delete()):
            found.append(parsed(f"++{one.text}"))  # custom.yaml has no parameters
        else:
            found.append(one)
    return found


def _set(config: DictConfig, override: Override, value: object) -> None:
    """Set, add or delete one value. Raises ConfigError if the key does not exist, or if a key to add exists already."""
    key, parsed = override.key, override.parsed
    there = OmegaConf.select(config, key, throw_on_missing=False)
    if parsed.is_delete():
        if there is None:
            raise ConfigError(f"~{key} deletes nothing: there is no {key}")
        node, _, last = key.rpartition(".")
        with open_dict(config):
            del OmegaConf.select(config, node)[last]
        return
    if parsed.is_add() and there is not None and not isinstance(value, (dict, list)):
        raise ConfigError(f"+{key} exists already; write {key}={value}")
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=parsed.is_add() or parsed.is_force_add())
    except (ConfigAttributeError, ConfigKeyError) as error:
        told = f"{key} is not in the configuration{_nearest(key, config)}; --cfg job shows all keys"
        raise ConfigError(told) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error


def lacking(key: str, mappings: Iterable[str], own: Mapping[str, Collection[str]] = NONE) -> list[str]:
    """The mappings (files in configs/mapping) that have no parameter `key`, such as `mapping.lam`.

    `own` has the parameters of the user's mappings. Only `custom` has a name that can be set. Raises ConfigError if none
    of the mappings has the parameter.
    """
    there = [n for n in mappings if n in {*names_in("mapping"), *own}]
    files = {n: [*own[n], "at", "grid"] if n in own else values_in(f"mapping/{n}") for n in there}
    parameter = key.split(".")[1]
    without = [name for name, file in files.items() if parameter not in file]
    if parameter == "name":
        without = [name for name in files if name != "custom"]
        if files and len(without) == len(files):
            raise ConfigError(f"{key} is for mapping=custom, not for {', '.join(files)}; write mapping=NAME instead")
    if files and len(without) == len(files):
        known = dict.fromkeys(k for file in files.values() for k in file if k not in ("name", "at", "grid"))
        have = f"of {', '.join(files)}" if len(files) < 6 else "of these mappings"
        told = f"{key} is not a parameter {have}{near(parameter, known)}; parameters: {', '.join(known) or 'none'}"
        raise ConfigError(told)
    return without


@lru_cache(512)
def _composed(file: str, chosen: tuple[Override, ...]) -> DictConfig:
    """Hydra's `compose`, restricted to our files; otherwise it would merge them with `task/translation` from fairseq."""
    store = ConfigStore.instance()
    registered = store.repo
    store.repo = {k: v for k, v in registered.items() if k == "hydra" or k.startswith("_")}
    try:
        with reading():
            config = compose(file, overrides=[one.parsed.input_line for one in chosen])
            for one in chosen:
                if one.key == "optim":  # what a setting changes belongs to the setting's own choice
                    config.optim = compose(f"optim/{one.value}").optim
            return config
    finally:
        store.repo = registered


def sentence(error: Exception) -> str:
    """A Hydra error as one sentence."""
    text = str(error)
    if setting := re.match(r"(?:In '[^']*': )?Could not find 'setting/(\w+)_([^/_']*)'", text):
        task, profile = setting.groups()
        known = [name.removeprefix(f"{task}_") for name in names_in("setting") if name.startswith(f"{task}_")]
        told = f"profile={profile} does not exist for task={task}, which has: {', '.join(known)}"
        return told
    if known := re.match(r"Could not override '([^']+)'", text):
        return f"{known[1]} is not in the configuration; --cfg job shows all keys"
    lines = [line.strip() for line in text.splitlines() if line.strip() and "HYDRA_FULL_ERROR" not in line]
    composing = isinstance(error, ConfigCompositionException) and error.__cause__
    cause = str(error.__cause__).splitlines()[:1] if composing else []
    key = getattr(error, "full_key", None)
    return ": ".join([*([key] if key else []), *lines[:1], *cause])


def _nearest(key: str, config: DictConfig) -> str:
    """A text that suggests the nearest known key and lists all keys at the same level."""
    path, _, last = key.rpartition(".")
    node = OmegaConf.select(config, path) if path else config
    if path and node is None:
        return _nearest(path, config)
    if not isinstance(node, DictConfig):
        return ""
    known: Any = OmegaConf.to_container(node, resolve=False)
    names = [str(name) for name in known if name != "hydra"]
    all_keys = [f"{name}.{k}" for name in names if not path and isinstance(known[name], dict) for k in known[name]]
    inside = [k for k in all_keys if k.endswith(f".{last}")] or [k for k in all_keys if k.endswith(f"_{last}")]
    if inside:
        return f" (did you mean {' or '.join(map(repr, inside))}?)"
    return f"{near(last, names)}; {path or 'it'} has: {', '.join(names)}"
