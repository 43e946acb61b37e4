"""Check a command line before torch is imported, which takes seconds: names, and the values that need no torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tasks.config import compose, models
from tasks.config.options import near, short, values_in
from tasks.config.overrides import (
    FLAGS,
    HYDRA,
    OF_SWEEPS,
    UNREADABLE,
    ConfigError,
    merged,
    names_in,
    refuse,
    sentence,
    swept,
    values,
)

WORDS = ("learned",)  # that a mapping may take instead of a number
KEYS = tuple(
    f"data.{key}" for key in ("path", "text", "label", "source", "target", "name", "limits")
)  # keys of data=files and data=table that try.py accepts


def check_arguments(arguments: Sequence[str]) -> None:
    """Check the flags, the key and file names, and values on a command line of `scripts/train.py`.

    What needs torch is checked later, by `tasks.config.compose`. Of a sweep, each value is checked with the first
    values of the other keys.

    Raises:
        ConfigError: a flag, key, file or value is wrong, or Hydra cannot parse an argument.
    """
    for before, word in zip(["", *arguments], arguments):
        flag, equals, _ = word.partition("=")
        if word.startswith("-") and flag not in FLAGS:
            without = f"; write {word.lstrip('-')}{'' if equals else '=VALUE'}, without dashes"
            undashed = without if equals else near(flag, FLAGS) or without
            raise ConfigError(f"{flag} is unknown here{undashed}; -h prints the help")
        if not equals and not word.startswith(("-", "~")) and not before.startswith("-"):
            raise ConfigError(f"{short(word)} {UNREADABLE}")
    overrides = [a for a in arguments if ("=" in a and not a.startswith("-")) or a.startswith("~")]
    try:
        if {"-m", "--multirun", "--plan"} & set(arguments):
            _check_sweep(overrides)
        elif not any(a.split("=")[0] in OF_SWEEPS for a in arguments):
            _check(overrides)
    except HYDRA as error:
        raise ConfigError(sentence(error)) from error


def _check(overrides: Sequence[str]) -> None:
    """Raise ConfigError for problems that are found without torch, unless other values need it: then all are reported later."""
    found = wrong_values(merged("main", overrides))
    keys = [o.lstrip("+").partition("=")[0] for o in overrides]
    later = [k for k in keys if k.startswith(("mapping.", "model.")) and not any(f"{k}=" in text for text in found)]
    if found and not later:
        raise ConfigError("; ".join(found))


def _check_sweep(overrides: Sequence[str]) -> None:
    refuse(overrides)
    if any(o.split("=")[0] == "experiment" or o.lstrip("+").startswith("hydra") for o in overrides):
        return
    keys = {key: one for key, one in swept(overrides).items() if key not in OF_SWEEPS}
    groups = [key for key in keys if (compose.CONFIGS / key.lstrip("+~")).is_dir()]
    first = {key: one.overrides[0] for key, one in keys.items() if not key.startswith("mapping.")}
    for key, one in keys.items():
        for text in one.overrides if not key.startswith("mapping") and key not in groups else ():
            _check([*(other for k, other in first.items() if k != key), text])


def wrong_values(config: DictConfig) -> list[str]:
    """One sentence for each wrong value of the nodes that are read without torch."""
    try:
        given: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:
        return []  # `compose.checked` says why
    if not all(isinstance(given.get(key), dict) for key in compose.NODES):
        return []
    found: list[str] = []
    if compose.read_plain(given, {}, found):
        found += models.wrong_values(given["task"]["family"], given["model"])
    node, name = given["mapping"], given["mapping"].get("name")
    stated = values_in(f"mapping/{name}") if isinstance(name, str) and name in names_in("mapping") else {}
    for key, value in stated.items():
        word = node.get(key)
        if isinstance(value, (int, float)) and isinstance(word, str) and word not in WORDS:
            allowed = f"a number such as {value:g}, or {WORDS[0]} where the mapping can learn it"
            found.append(f"mapping.{key}={short(word)} is not a number{near(word, WORDS)}; allowed: {allowed}")
    return found


def check_file(words: Sequence[str], overrides: Sequence[str]) -> None:
    """Check the file that `scripts/try.py` reads; `words`: arguments without a key.

    Raises ConfigError if there are words or a key is misspelt, DataError if no file is named, or it is missing or of another format.
    """
    from tasks.data.read import own

    if words:
        raise ConfigError(f"{words[0]!r} has no key; write data.path={shlex.quote(words[0])}")

    for given in (o.partition("=")[0] for o in overrides):
        if given not in KEYS and "'data.path'" in near(given, KEYS):
            raise ConfigError(f"{given} is unknown{near(given, KEYS)}")
    key = "data.path="
    path = next((str(values([o])["data.path"]) for o in reversed(overrides) if o.startswith(key) and o != key), None)
    if path is None or not (Path(path).is_dir() or [*Path(path).parent.glob(f"{Path(path).name}.*")][1:]):
        own.find(path, own.TABLES, own.NO_DEV)
