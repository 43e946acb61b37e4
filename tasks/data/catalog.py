"""The data sets that exist, and what is wrong with the `data` node of a configuration, before any data are read."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tasks.config.options import OptionsError, names_in, near
from tasks.config.options import read as read_options
from tasks.data.dataset import Loader
from tasks.data.errors import DataError
from tasks.data.manifests import load_manifest, manifest_names
from tasks.data.records import KINDS

GUIDE = "see docs/extending.md"


def set_names(kind: str | None = None) -> list[str]:
    """Names of all data sets, or only those of the given kind."""
    names = [name for name in manifest_names() if load_manifest(name)["kind"] != "vectors"]
    return names if kind is None else [name for name in names if kind == set_module(name).KIND]


def set_module(name: str) -> ModuleType | Loader:
    """The loader of a data set, or its module. Raises OptionsError if the name is unknown or its loader is incomplete."""
    manifest = load_manifest(name) if name in manifest_names() else {"kind": "vectors"}
    if manifest["kind"] == "vectors":
        known = set_names()
        why = f": data/manifests/{name}.yaml is missing, {GUIDE}" if name in names_in("data") else near(name, known)
        raise OptionsError([f"unknown data set data.name={name!r}{why}; allowed: {', '.join(known)}"])
    path = f"tasks.data.sets.{manifest.get('loader', name)}"
    module = importlib.import_module(path) if importlib.util.find_spec(path) else None
    loader = getattr(module, "SETS", {}).get(name, module)
    kind = getattr(loader, "KIND", None)
    if kind not in KINDS or not hasattr(loader, "Options") or not hasattr(loader, "load"):
        told = f"must have Options, load and a KIND ({', '.join(KINDS)}), not {kind!r}; {GUIDE}"
        raise OptionsError([f"data.name={name}: {path.replace('.', '/')}.py {told}"])
    return loader  # type: ignore[return-value]


def is_own(node: Any) -> bool:
    """Whether a `data` node describes your own data, to which the limits of a setting do not apply."""
    name = node.get("name") if isinstance(node, Mapping) else None
    return name in manifest_names() and load_manifest(name)["kind"] == "own"


def problems(node: Mapping[str, Any], kind: str | None = None) -> list[str]:
    """List the problems of a `data` node, one sentence each, before any data are read.

    Args:
        kind: the kind of data that the task reads.
    """
    try:
        module = set_module(node.get("name", ""))
        if kind is not None and kind != module.KIND:
            allowed = ", ".join(set_names(kind))
            return [f"data={node['name']} holds {KINDS[module.KIND]}; this task reads {KINDS[kind]}: {allowed}"]
        read_options(module.Options, {k: v for k, v in node.items() if k != "name"}, "data")
    except OptionsError as error:
        return error.problems
    return []


def chosen(node: Mapping[str, Any]) -> tuple[ModuleType | Loader, Any]:
    """The loader and the options that a `data` node describes. Raises DataError if it is invalid."""
    try:
        module = set_module(node.get("name", ""))
        return module, read_options(module.Options, {k: v for k, v in node.items() if k != "name"}, "data")
    except OptionsError as error:
        raise DataError("; ".join(error.problems), "the data node of the configuration", "correct it") from error
