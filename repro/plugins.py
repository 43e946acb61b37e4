"""Python files of a user's own that register mappings, and the check that keeps other people's files from running.

A plugin that you name yourself (`plugins=[FILE.py]`) is run, and remembered by its path and content below `~/.config/sparse_attention`
($XDG_CONFIG_HOME). A plugin that only the config.yaml of a cell names is run if it is one of these: a cell may come from anyone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from repro.files import StoreError, write_atomic

TRUST = "read the file; if you trust it, use --trust-plugins (in Python: trust_plugins=True)"
_ADMITTED: set[str] = set()  # modules that a cell named: never remembered as the user's own


class Untrusted(StoreError):
    """A cell names a plugin that its user never named; it was not run."""


def content(plugin: str) -> str:
    """What a plugin counts by: the hash of its file, or the module's name."""
    path = Path(plugin)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else plugin


def load(plugins: Sequence[str]) -> None:
    """Import the files (or modules) that the user names, each once, and remember them.

    Raises:
        ValueError: a file does not exist or fails to import, naming it.
    """
    for plugin in plugins:
        if _name(plugin) not in _ADMITTED:
            _remember(plugin)
        _import(plugin)


def admit(plugins: Any, cell: Path, trained: Mapping[str, Any] | None = None, *, trust: bool = False) -> None:
    """Import what the config.yaml of a cell names, if it is the user's own by path and content, or with `trust`.

    Args:
        cell: its folder. trained: plugin -> content when the cell was trained, where that is known.

    Raises:
        Untrusted: names every plugin that was not run, and why. ValueError: as `load`.
    """
    if refused := {} if trust else untrusted(plugins, cell, trained):
        said = "; ".join(f"{plugin} ({why})" for plugin, why in refused.items())
        raise Untrusted(f"{cell}: its plugins were not run: {said}; {TRUST}")
    for plugin in listed(plugins):
        _ADMITTED.add(_name(plugin))
        _import(plugin)


def listed(plugins: Any) -> list[str]:
    """The node `plugins` of a configuration. Raises ValueError where it is not a list of files."""
    if not isinstance(plugins or [], list | tuple) or not all(isinstance(p, str) for p in plugins or []):
        raise ValueError(f"plugins={str(plugins)[:80]} must be a list of Python files")
    return list(plugins or [])


def untrusted(plugins: Any, cell: Path, trained: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Those that `admit` does not run -> why. Raises ValueError as `listed`."""
    told = {plugin: _why_not(plugin, cell, (trained or {}).get(plugin)) for plugin in listed(plugins)}
    return {plugin: why for plugin, why in told.items() if why}


def _why_not(plugin: str, cell: Path, trained: Any) -> str:
    file = _file(plugin)
    if file is None:
        return "there is no such file here"
    if trained is not None and trained not in (content(str(file)), plugin):
        return "it has changed since the cell was trained"
    if _mark(file).is_file() or _name(plugin) in sys.modules:
        return ""
    if file.is_relative_to(cell.resolve()):
        return "it came with the cell"
    return "you have never named this file by plugins= on this machine"


def _name(plugin: str) -> str:
    """Of the module in `sys.modules`: the same content is imported once."""
    return f"_plugin_{Path(plugin).stem}_{content(plugin)[:8]}" if plugin.endswith(".py") else plugin


def _file(plugin: str) -> Path | None:
    """The file that would be run, found without running anything: not even a package that it is in."""
    if plugin.endswith(".py"):
        return Path(plugin).resolve() if Path(plugin).is_file() else None
    parts, places, spec = plugin.split("."), None, None
    with contextlib.suppress(ImportError, KeyError, ValueError, AttributeError, TypeError):
        for i in range(len(parts)):
            if (spec := PathFinder.find_spec(".".join(parts[: i + 1]), places)) is None:
                return None
            places = list(spec.submodule_search_locations or [])
        return Path(spec.origin).resolve() if spec and spec.origin and Path(spec.origin).is_file() else None
    return None


def _mark(file: Path) -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "sparse_attention" / "plugins" / hashlib.sha256(f"{file}\n{content(str(file))}".encode()).hexdigest()


def _remember(plugin: str) -> None:
    if (file := _file(plugin)) is not None and not (mark := _mark(file)).is_file():
        with contextlib.suppress(StoreError):  # a home that cannot be written: its cells ask for --trust-plugins
            write_atomic(mark, f"{file}\n".encode())


def remember(file: Path) -> None:
    """Take a file for the user's own without running it: one that a command of theirs has written."""
    _remember(str(file))


def _import(plugin: str) -> None:
    name = _name(plugin)
    if name in sys.modules:
        return
    try:
        if plugin.endswith(".py"):
            spec = importlib.util.spec_from_file_location(name, plugin)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        else:
            importlib.import_module(name)
    except Exception as error:
        sys.modules.pop(name, None)
        raise ValueError(f"plugins: {plugin} cannot be imported ({type(error).__name__}: {error})") from error
