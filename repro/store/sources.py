"""The source files that a cell's numbers come from, and which of them have changed since.

`of` hashes the files that its family, model and mapping use, and the user's own modules that its plugins import. Their
hashes are kept in provenance.json, by path from the project's root (`module:NAME` for the user's modules), so that two
checkouts with the same code agree, and an edit of a document, a test or another mapping changes nothing. They are not
part of the cell's id: a changed comment must not train every cell again.
"""

import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from repro.files import sha256_of
from repro.store.provenance import ROOT

CODE = (".py", ".cpp", ".h", ".hpp", ".cu")
MAPPINGS, MODELS = "sparse_attention/mappings", "models"
SHARED = ("sparse_attention", "tasks/layers", "tasks/training", "tasks/fairseq_plugin")


def of(module: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Path or `module:NAME` -> hash, for a cell of the family `module`; the plugins have been loaded."""
    mapping = config.get("mapping") or {}
    mappings = {str(one.get("name")) for one in (mapping, *(mapping.get("at") or {}).values())}
    ours = _ours(module, str((config.get("model") or {}).get("name")), tuple(sorted(mappings)))
    return {path: _hash(ROOT / path) for path in ours} | _theirs(module, config)


def changed(
    provenance: Mapping[str, Any], module: str, config: Mapping[str, Any], today: dict[str, str] | None = None
) -> list[str]:
    """The files that differ today from those that a cell was trained or evaluated with.

    Empty for a cell without hashes. `today` keeps the hashes of the project's files, for calls about other cells.
    """
    kept, today = provenance.get("sources") or {}, {} if today is None else today
    today |= {path: _hash(ROOT / path) for path in kept if path not in today and not path.startswith("module:")}
    theirs = _theirs(module, config)
    return sorted(path for path, sha in kept.items() if (theirs.get(path) or today.get(path)) != sha)


def _theirs(module: str, config: Mapping[str, Any]) -> dict[str, str]:
    return {f"module:{name}": _hash(file) for name, file in _imported(module, config.get("plugins") or ()).items()}


@lru_cache(512)
def _ours(module: str, model: str, mappings: tuple[str, ...]) -> tuple[str, ...]:
    """The project's files that a family uses: the shared ones, its own, and those of its model and its mappings."""
    family = module.rpartition(".")[2]
    every = {path.stem for path in (ROOT / "tasks" / "cells").glob("[a-z]*.py")}
    families = {family} & every
    for _ in every:  # a family may use others
        texts = (_text(file) for one in families for file in (f"tasks/cells/{one}.py", *_code(f"tasks/{one}")))
        families |= every & {*re.findall(r"tasks\.(\w+)", "".join(texts))}
    kept: set[str] = set()
    for folder in (*SHARED, *(f"tasks/{one}" for one in families)):
        kept |= {*_code(folder)}
    kept |= {*_code("tasks/cells")} if families else set()
    kept -= {f"tasks/{place}/{one}.py" for place in ("cells", "fairseq_plugin") for one in every - families}
    for folder in (MAPPINGS, *(f"tasks/{one}/{MODELS}" for one in families)):
        files = {path for path in kept if path.startswith(f"{folder}/")}
        wanted = mappings if folder == MAPPINGS else (model,)
        kept -= files - _needed(files, wanted)
    return tuple(sorted(kept))


def _needed(files: set[str], names: Iterable[str]) -> set[str]:
    """Those of the files that have one of the names, register it or are imported by such a file; and private ones."""
    registers = re.compile(rf'register\(\s*"({"|".join(map(re.escape, names))})"')
    found = {f for f in files if Path(f).stem in names or registers.search(_text(f))}
    depth = min((f.count("/") for f in files), default=0)
    found |= {f for f in files if Path(f).name.startswith("_") and f.count("/") == depth}
    while True:
        words = {*re.findall(r"\w+", " ".join(re.findall(r"^.*\bimport\b.*$", "\n".join(map(_text, found)), re.M)))}
        if not (more := {f for f in files if Path(f).stem in words} - found):
            return found
        found |= more


@lru_cache(64)
def _code(folder: str) -> tuple[str, ...]:
    paths = (p for p in (ROOT / folder).rglob("*") if p.suffix in CODE)
    return tuple(sorted(p.relative_to(ROOT).as_posix() for p in paths))


@lru_cache(1024)
def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def _hash(file: Path) -> str:
    """The first 12 hex digits of a file's sha256; empty if it is gone."""
    try:
        return sha256_of(file)[:12]
    except OSError:
        return ""


def _imported(module: str, plugins: Iterable[str]) -> dict[str, Path]:
    """The user's modules, name -> file: those that plugins name, directly or not, and a registered family's own."""
    words = {word for plugin in plugins if Path(plugin).is_file() for word in _words(Path(plugin))}
    words |= {*module.split(".")} if not module.startswith("tasks.") else set()
    files = {name: getattr(one, "__file__", None) for name, one in sys.modules.items()} if words else {}
    found: dict[str, Path] = {}
    while True:
        named = {name: Path(file) for name, file in files.items() if file and words.issuperset(name.split("."))}
        more = {name: file for name, file in named.items() if name not in found and _users(file)}
        if not more:
            return found
        found |= more
        words |= {word for file in more.values() for word in _words(file)}


def _words(file: Path) -> list[str]:
    return re.findall(r"\w+", file.read_text(encoding="utf-8", errors="replace"))


def _users(file: Path) -> bool:
    """Whether a file is the user's: not Python's, not installed, and not a part of this project."""
    there = file.resolve()
    installed = {"site-packages", "dist-packages"} & {*there.parts}
    python = there.is_relative_to(Path(sysconfig.get_paths()["stdlib"]).resolve())
    ours = any(there.is_relative_to(ROOT / one) for one in ("sparse_attention", "repro", "tasks"))
    return not (installed or python or ours) and there.suffix == ".py"
