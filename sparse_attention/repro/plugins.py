"""Python files of a user's own that register mappings."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


def content(plugin: str) -> str:
    """What a plugin counts by: the hash of its file, or the module's name."""
    path = Path(plugin)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else plugin


def load(plugins: Sequence[str]) -> None:
    """Import the files (or modules), each once.

    Raises:
        ValueError: a file does not exist or fails to import, naming it.
    """
    for plugin in plugins:
        path = Path(plugin)
        name = f"_plugin_{path.stem}_{content(plugin)[:8]}" if path.suffix == ".py" else plugin
        if name in sys.modules:
            continue
        try:
            if path.suffix == ".py":
                spec = importlib.util.spec_from_file_location(name, path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)
            else:
                importlib.import_module(name)
        except Exception as error:
            sys.modules.pop(name, None)
            raise ValueError(f"plugins: {plugin} cannot be imported ({type(error).__name__}: {error})") from error
