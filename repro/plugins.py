"""Your own Python files that register mappings, and the check that keeps untrusted files from running.

A plugin that you name yourself (`plugins=[FILE.py]`) runs, and its path and content are remembered in `~/.config/sparse_attention`
($XDG_CONFIG_HOME). A plugin that only the config.yaml of a cell names runs if it is remembered: cells are untrusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.files import StoreError, write_atomic

TRUST = "read the file; if you trust it, use --trust-plugins (in Python: trust_plugins=True)"
_ADMITTED: set[str] = set()  # modules named by a cell: never remembered as the user's own


class Untrusted(StoreError):
    """A cell names an untrusted plugin; it was not run."""


def content(plugin: str) -> str:
    """What identifies a plugin: the hash of its file, or its name if the file is absent."""
    path = Path(plugin)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else plugin


def load(plugins: Sequence[str]) -> None:
    """Import the files that the user names, each once, and remember them.

    Raises:
        ValueError: it is not a Python file, does not exist or fails to import.
    """
    for plugin in plugins:
        if _name(plugin) not in _ADMITTED:
            remember(Path(plugin))
        _import(plugin)


def admit(plugins: Any, cell: Path, trained: Mapping[str, Any] | None = None, *, trust: bool = False) -> None:
    """Import the plugins of a cell if each is the user's own by path and content, or with `trust`.

    Args:
        cell: its folder. trained: plugin -> content when the cell was trained, if known.

    Raises:
        Untrusted: names every plugin that was not run, and why. ValueError: as in `load`.
    """
    if refused := {} if trust else untrusted(plugins, cell, trained):
        said = "; ".join(f"{plugin} ({why})" for plugin, why in refused.items())
        raise Untrusted(f"{cell}: its plugins were not run: {said}; {TRUST}")
    for plugin in listed(plugins):
        _ADMITTED.add(_name(plugin))
        _import(plugin)


def listed(plugins: Any) -> list[str]:
    """The node `plugins` of a configuration. Raises ValueError if it is not a list of files."""
    if not isinstance(plugins or [], list | tuple) or not all(isinstance(p, str) for p in plugins or []):
        raise ValueError(f"plugins={str(plugins)[:80]} must be a list of Python files")
    return list(plugins or [])


def untrusted(plugins: Any, cell: Path, trained: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Plugin that `admit` does not run -> why. Raises ValueError as in `listed`."""
    found = {plugin: _why_not(plugin, cell, (trained or {}).get(plugin)) for plugin in listed(plugins)}
    return {plugin: why for plugin, why in found.items() if why}


def _why_not(plugin: str, cell: Path, trained: Any) -> str:
    file = Path(plugin).resolve()
    if file.suffix != ".py" or not file.is_file():
        return "the file does not exist here"
    if trained is not None and trained != content(plugin):
        return "it has changed since the cell was trained"
    if _mark(file).is_file() or _name(plugin) in sys.modules:
        return ""
    if file.is_relative_to(cell.resolve()):
        return "it came with the cell"
    return "you have never named this file by plugins= on this machine"


def _name(plugin: str) -> str:
    """Its module in `sys.modules`: the same content is imported once."""
    return f"_plugin_{Path(plugin).stem}_{content(plugin)[:8]}"


def _mark(file: Path) -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "sparse_attention" / "plugins" / hashlib.sha256(f"{file}\n{content(str(file))}".encode()).hexdigest()


def remember(file: Path) -> None:
    """Trust a file without running it: one that the user's own command has written."""
    if (file := file.resolve()).is_file() and not (mark := _mark(file)).is_file():
        with contextlib.suppress(StoreError):  # a home that cannot be written: its cells ask for --trust-plugins
            write_atomic(mark, f"{file}\n".encode())


def _import(plugin: str) -> None:
    name = _name(plugin)
    if name in sys.modules:
        return
    if not plugin.endswith(".py"):
        raise ValueError(f"plugins: {plugin} is not a Python file; give its path, plugins=[FILE.py]")
    try:
        spec = importlib.util.spec_from_file_location(name, plugin)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        raise ValueError(f"plugins: {plugin} cannot be imported ({type(error).__name__}: {error})") from error
