"""Plugins: your own Python files that register mappings. A check keeps untrusted files from running.

A plugin that you name yourself (`plugins=[FILE.py]`) runs, and its path and content are remembered in
`~/.config/sparse_attention` ($XDG_CONFIG_HOME). Cells are untrusted, so a plugin that is named only in the config.yaml
of a cell runs only if it is remembered.
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
_ADMITTED: set[str] = set()  # plugin modules that a cell names; they are never remembered as the user's own


class Untrusted(StoreError):
    """A cell names an untrusted plugin, which was not run."""


def content(plugin: str) -> str:
    """The identity of a plugin: the hash of its file, or its name if the file is absent."""
    path = Path(plugin)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else plugin


def load(plugins: Sequence[str]) -> None:
    """Import the plugins that the user names, each once, and remember them.

    Raises:
        ValueError: a plugin is not a Python file, does not exist or fails to import.
    """
    for plugin in plugins:
        if _name(plugin) not in _ADMITTED:
            remember(Path(plugin))
        _import(plugin)


def admit(plugins: Any, cell: Path, trained: Mapping[str, Any] | None = None, *, trust: bool = False) -> None:
    """Import the plugins of a cell if each is the user's own by its path and content, or if `trust` is true.

    Args:
        cell: folder of the cell.
        trained: plugin -> its content when the cell was trained, if known.

    Raises:
        Untrusted: a plugin is untrusted; the message names each such plugin and the reason. ValueError: as in `load`.
    """
    if refused := {} if trust else untrusted(plugins, cell, trained):
        said = "; ".join(f"{plugin} ({why})" for plugin, why in refused.items())
        raise Untrusted(f"{cell}: its plugins were not run: {said}; {TRUST}")
    for plugin in listed(plugins):
        _ADMITTED.add(_name(plugin))
        _import(plugin)


def listed(plugins: Any) -> list[str]:
    """The `plugins` node of a configuration as a list. Raises ValueError if the node is not a list of files."""
    if not isinstance(plugins or [], list | tuple) or not all(isinstance(p, str) for p in plugins or []):
        raise ValueError(f"plugins={str(plugins)[:80]} must be a list of Python files")
    return list(plugins or [])


def untrusted(plugins: Any, cell: Path, trained: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Map each plugin that `admit` would not run to the reason. Raises ValueError as in `listed`."""
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
    """The plugin's module name in `sys.modules`; it includes a hash, so the same content is imported only once."""
    return f"_plugin_{Path(plugin).stem}_{content(plugin)[:8]}"


def _mark(file: Path) -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "sparse_attention" / "plugins" / hashlib.sha256(f"{file}\n{content(str(file))}".encode()).hexdigest()


def remember(file: Path) -> None:
    """Remember a file as trusted without running it; for files that the user's own command has written."""
    if (file := file.resolve()).is_file() and not (mark := _mark(file)).is_file():
        with contextlib.suppress(StoreError):  # if home is read-only, cells with this plugin ask for --trust-plugins
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
