"""Plugins: your own Python files that register mappings. One runs only if the command names it, `plugins=[FILE.py]`.

Cells are untrusted. The config.yaml of a cell says which plugins it was trained with, but that never runs a file: the
command that evaluates the cell or predicts with it names the file again, and its content must be that of the training.
The processes that a command starts, on this machine or on others, get its plugins as path -> sha256.
"""

import hashlib
import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_RAN: dict[str, str] = {}  # path of a plugin -> sha256 of the content that ran in this process


def content(plugin: str) -> str:
    """The identity of a plugin: the sha256 of its file, or its name if the file is absent."""
    path = Path(plugin)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else plugin


def listed(plugins: Any) -> list[str]:
    """The node `plugins` of a configuration, or its text on a command line, as a list. Raises ValueError if it is not a list of files."""
    try:
        found = (yaml.safe_load(plugins) if isinstance(plugins, str) else plugins) or []
    except yaml.YAMLError:
        found = plugins
    if not isinstance(found, list | tuple) or not all(isinstance(p, str) for p in found):
        raise ValueError(f"plugins={str(plugins)[:80]} must be a list of Python files")
    return list(found)


def naming(plugins: Sequence[str]) -> str:
    """What a printed command adds to name plugins: " plugins=[FILE.py]", quoted for a shell, or nothing if there are none."""
    files = (p if re.fullmatch(r"[\w./-]+", p, re.ASCII) else json.dumps(p, ensure_ascii=False) for p in plugins)
    text = f"plugins=[{','.join(files)}]"
    return f" {shlex.quote(text)}" if plugins else ""


def pinned(plugins: Any) -> dict[str, str]:
    """Full path -> sha256 of the plugins of a configuration, as they ran in this process; for `load` in another one."""
    paths = map(os.path.abspath, listed(plugins))
    return {path: _RAN.get(path) or content(path) for path in paths}


def load(plugins: Sequence[str] | Mapping[str, str]) -> None:
    """Run plugins, each content once. If `plugins` maps paths to sha256, a file with another content is not run.

    Raises ValueError: a plugin is not a Python file, does not exist, has changed or fails to import.
    """
    for plugin in plugins:
        if not plugin.endswith(".py"):
            raise ValueError(f"plugins: {plugin} is not a Python file; give its path, plugins=[FILE.py]")
        try:
            source = Path(plugin).read_bytes()
            sha256 = hashlib.sha256(source).hexdigest()
            if same := not isinstance(plugins, Mapping) or plugins[plugin] == sha256:
                _execute(plugin, source, f"_plugin_{Path(plugin).stem}_{sha256[:8]}")
                _RAN[os.path.abspath(plugin)] = sha256
        except Exception as error:
            raise ValueError(f"plugins: {plugin} cannot be imported ({type(error).__name__}: {error})") from error
        if not same:
            raise ValueError(f"plugins: {plugin} has changed since the command named it; run the command again")


def _execute(plugin: str, source: bytes, name: str) -> None:
    """Run the very bytes that were hashed as the module `name`, without a second read or a .pyc file, unless it ran."""
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, plugin)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        exec(compile(source, plugin, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
