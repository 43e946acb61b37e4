"""Hashes of configurations, and rounding errors in their numbers: 0.30000000000000004 names the same cell as 0.3."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import yaml

from repro.files import read_json
from repro.store import Entry, Store

# keys of config.yaml outside the configuration; `overrides` is in those of earlier versions
ASKED = ("module", "overrides", "further", "test", "origin")
SHORT = 11  # digits of a number that was typed; one with more is left as it is
_MANY_DIGITS = re.compile(r"\d\.\d{9,}")  # in a file: a number may have a rounding error


def digest(*parts: Any) -> str:
    """A hash of JSON values as 16 hex digits; the order of keys does not matter."""
    text = json.dumps(parts, sort_keys=True, default=lambda v: os.fspath(v) if isinstance(v, os.PathLike) else str(v))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rounded(value: Any) -> Any:
    """A value, or all values of a configuration, without the rounding errors of sums: 0.3 for 0.30000000000000004.

    A number keeps its digits unless they are a short number and an error in the last places.
    """
    if isinstance(value, float) and math.isfinite(value):
        short = f"{value:.15g}"
        digits = short.partition("e")[0].replace(".", "").strip("-0")
        return float(short) if len(digits) <= SHORT else value
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


@lru_cache
def _configs(folder: Any) -> tuple[tuple[Entry, dict[str, Any], dict[str, Any]], ...]:
    """The finished trainings in a folder whose configuration has rounding errors; and it without them, and the metrics."""
    found = []
    for path in sorted(folder.glob("*/config.yaml")):
        text = path.read_text(encoding="utf-8", errors="replace")
        entry = Entry(path.parent)
        if not _MANY_DIGITS.search(text) or not entry.finished():
            continue
        with suppress(yaml.YAMLError, AttributeError):  # a file that is no configuration is no other cell
            config = yaml.safe_load(text)
            if (mended := rounded(config)) != config:
                here = [path.with_name(str(name)) for name in mended.get("plugins") or ()]
                mended["plugins"] = [str(one) if one.is_file() else one.name for one in here]
                found.append((entry, mended, read_json(path.with_name("metrics.json")) or {}))
    return tuple(found)


def finished(store: Store, task: str, mapping: str, named: Callable[..., str]) -> dict[str, str]:
    """Id without rounding errors -> id of the finished training that has them in its configuration.

    Args:
        named: the id of a training, from its configuration, its family's module and its metrics.json.
    """
    found = {}
    for entry, config, stored in _configs(store.root / "cells" / task / mapping):
        with suppress(KeyError, TypeError, ValueError, OSError):  # of another version, or a plugin is gone
            own = {k: v for k, v in config.items() if k not in ASKED}
            found[named(own, config["module"], stored)] = entry.folder.name
    return found
