"""Names that moved: the old name still works, with a warning, for one minor version (CONTRIBUTING.md, "Public names").

A module whose names moved away defines ``__getattr__ = moved(__name__, {"old": "sparse_attention.new"}, gone="0.3.0")``.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved(module: str, names: Mapping[str, str], gone: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose names moved.

    Args:
        module: its ``__name__``.
        names: old name in the module -> full new name.
        gone: the version without the old names.
    Returns:
        A function that finds the thing at its new place and warns (DeprecationWarning); AttributeError for other names.
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} moved: use {names[name]}; the old name goes in version {gone}",
            DeprecationWarning,
            stacklevel=2,
        )
        owner, _, last = names[name].rpartition(".")
        return getattr(importlib.import_module(owner), last)

    return __getattr__


__all__ = ["moved"]
