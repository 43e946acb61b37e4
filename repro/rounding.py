"""Hashes of configurations, and rounding errors in their numbers: 0.30000000000000004 names the same cell as 0.3."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

# keys of config.yaml outside the configuration; `overrides` is in those of earlier versions
ASKED = ("module", "overrides", "further", "test", "origin")
SHORT = 11  # digits of a number that was typed; one with more is left as it is


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
