"""Data sets: acquired, verified, read in their published formats. Nothing here knows a model.

    data = open_data({"name": "multi30k", "mirror": "FOLDER"}, root, progress)      # found, fingerprinted, not read
    splits = data.read(progress)                                                    # {"train": records, ...}

A set is a file in `tasks/data/sets`, its page in `data/manifests` and its options in `configs/data`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from repro.files import SEAL, broken_seal, sealed
from tasks.config.options import OptionsError, near
from tasks.config.options import read as read_options
from tasks.data.acquire import sources
from tasks.data.acquire.download import nothing_fetched
from tasks.data.dataset import SPLITS, DataSet, content_sha256, fingerprint
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import check_folder, publish_file
from tasks.data.manifests import load_manifest, manifest_names
from tasks.data.progress import NullProgress, Progress
from tasks.data.read.formats import counting
from tasks.data.records import KINDS

__all__ = [
    "SPLITS", "DataError", "DataSet", "DataUnavailable", "NullProgress", "Progress", "content_sha256", "fetch", "fetch_vectors", "is_own",
    "load_manifest", "manifest_names", "open_data", "problems", "set_module", "set_names", "verify",
]  # fmt: skip


def set_names(kind: str | None = None) -> list[str]:
    """All data sets, or those of a kind."""
    sets = importlib.import_module("tasks.data.sets")
    names = sorted(m.name for m in pkgutil.iter_modules(sets.__path__) if not m.name.startswith("_"))
    return names if kind is None else [name for name in names if kind == set_module(name).KIND]


def set_module(name: str) -> ModuleType:
    """The module of a data set. Raises OptionsError naming the nearest one."""
    known = set_names()
    if name not in known:
        raise OptionsError([f"data.name={name!r} is no data set{near(name, known)}; allowed: {', '.join(known)}"])
    return importlib.import_module(f"tasks.data.sets.{name}")


def is_own(node: Any) -> bool:
    """Whether a `data` node describes data of one's own, which no setting knows."""
    name = node.get("name") if isinstance(node, Mapping) else None
    return name in manifest_names() and load_manifest(name)["kind"] == "own"


def problems(node: Mapping[str, Any], kind: str | None = None) -> list[str]:
    """What is wrong with a `data` node, found before any data are read: one sentence each.

    Args:
        kind: of data that the task reads.
    """
    try:
        module = set_module(node.get("name", ""))
        if kind is not None and kind != module.KIND:
            return [
                f"data={node['name']} holds {KINDS[module.KIND]}; this task reads {KINDS[kind]}: {', '.join(set_names(kind))}"
            ]
        _options(module, node)
    except OptionsError as error:
        return error.problems
    return []


def _options(module: ModuleType, node: Mapping[str, Any]) -> Any:
    return read_options(module.Options, {k: v for k, v in node.items() if k != "name"}, "data")


def open_data(node: Mapping[str, Any], root: str | Path, progress: Progress | None = None) -> DataSet:
    """Find the data set that a `data` node describes: the one door to all of them.

    Args:
        node: `name` and the options of `tasks/data/sets/<name>.py`.
        root: folder for downloads and caches.

    Raises:
        DataError: a wrong node, damaged data, a full disk. DataUnavailable: data missing or unreachable, and no fallback.
    """
    progress = progress or NullProgress()
    if found := problems(node):
        raise DataError("; ".join(found), "the data node of the configuration", "correct it")
    check_folder(Path(root))
    module = set_module(node["name"])
    options = _options(module, node)
    try:
        with counting() as counts:
            data = module.load(options, Path(root), progress)
        if why := sources.unverified(load_manifest(node["name"]), dataclasses.asdict(options), Path(root)):
            data.shortfalls = (*data.shortfalls, why)
        return _told(data, Path(root), counts, progress)
    except DataUnavailable as error:
        if getattr(options, "fallback", None) is None:
            raise
        progress.say(f"{node['name']} cannot be had ({error.what}); going on with generated pairs")
        return _generated(node["name"], options, root, error, progress)


def _told(data: DataSet, root: Path, counts: Mapping[str, int], progress: Progress) -> DataSet:
    """`data` that says what was counted when it was found, and when it is or once was read: what is left out is a shortfall.

    What reading counts is kept under `root`, since encoded data are not read again.
    """
    kept = root / "counted" / f"{data.name}-{fingerprint(data.fingerprint)[:16]}.json"

    def tell(counts: Mapping[str, int]) -> None:
        for what, n in counts.items():
            short = " left out" in what
            before = data.shortfalls if short else data.notes
            if (said := f"{n:,} {what}") not in before:
                progress.say(f"{data.name}: {said}")
                setattr(data, "shortfalls" if short else "notes", (*before, said))

    def read(progress: Progress) -> Mapping[str, Sequence[Any]]:
        with counting() as counts:
            splits = inner(progress)
        if counts:
            with publish_file(kept) as temporary:
                temporary.write_text(json.dumps(sealed(counts)), encoding="utf-8")
        tell(counts)
        return splits

    inner, data.read = data.read, read
    tell(counts)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nothing was counted
        known = json.loads(kept.read_text(encoding="utf-8"))
        if why := broken_seal(known):
            progress.say(f"{kept} {why}; count again what is left out of the data: scripts/data.py verify {data.name}")
        if not why or SEAL not in known:
            tell({what: n for what, n in known.items() if what != SEAL})
    return data


def _generated(name: str, options: Any, root: str | Path, error: DataError, progress: Progress) -> DataSet:
    """Generated pairs in place of a set that cannot be had; says so wherever the numbers are shown."""
    limits = dataclasses.asdict(options.limits)
    toy = open_data({"name": options.fallback, "limits": limits}, root, progress)
    return dataclasses.replace(
        toy,
        stands_for=name,
        notes=(
            f"GENERATED TEXT, not {name}: {error.what} ({error.where})", f"for the real text: {error.next_step}", *toy.notes,
        ),
        shortfalls=(f"generated text instead of {name}", *toy.shortfalls),
    )  # fmt: skip


def fetch(
    name: str, root: str | Path, options: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> str:
    """Bring a data set into the cache, read it once, and say what came and from where.

    Args:
        options: of the set, e.g. `mirror` or `path`; those that are None are left out.

    Raises:
        DataError: as `open_data`.
    """
    progress = progress or NullProgress()
    node = {"name": name} | {k: v for k, v in (options or {}).items() if v is not None}
    if found := problems(node):
        raise DataError("; ".join(found), "what was asked for", "correct it")
    check_folder(Path(root), write=True)
    module = set_module(name)
    if hasattr(module.Options, "fallback"):
        node["fallback"] = None  # what was asked for by name is never replaced
    manifest = load_manifest(name)
    if manifest.get("sources") and not node.get("path") and not node.get("mirror"):
        data = sources.first(
            manifest, progress,
            {
                "hub": lambda source: open_data(node, root, progress),
                "url": lambda source: (sources.fetched(manifest, Path(root), progress), open_data(node, root, progress))[1],
            },
        )  # fmt: skip
    else:
        data = open_data(node, root, progress)
    return _counted(name, data, data.read(progress), node.get("path") or node.get("mirror") or root)


def verify(
    name: str, root: str | Path, options: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> str:
    """Read a whole data set that is already here, hold it against what is known of it, and say what is short.

    Nothing is asked of the hub or of web addresses (sets of apt and pip are brought when they are missing).

    Raises:
        DataError: as `open_data`; a file that is not what it was when it was fetched.
    """
    progress = progress or NullProgress()
    node = {"name": name} | {k: v for k, v in (options or {}).items() if v is not None}
    if hasattr(set_module(name).Options, "fallback"):
        node["fallback"] = None
    with nothing_fetched():
        if not node.get("path") and not node.get("mirror"):
            sources.verify_fetched(load_manifest(name), Path(root))
        data = open_data(node, root, progress)
        splits = data.read(progress)
    said = [_counted(name, data, splits, node.get("path") or node.get("mirror") or root)]
    said += [f"sha256 of what {s} is read from: {data.fingerprint[s]}" for s in SPLITS if s in data.fingerprint]
    return "\n  ".join([*said, *(f"short: {s}" for s in data.shortfalls)])


def _counted(name: str, data: DataSet, splits: Mapping[str, Sequence[Any]], place: Any) -> str:
    counts = ", ".join(f"{len(splits[s]):,} {s}" for s in SPLITS if len(splits.get(s, ())))
    return f"{name}: {counts}; {data.provenance}; from {place}"


def fetch_vectors(name: str, root: str | Path, progress: Progress, fetching: bool = True) -> str:
    """Bring the word vectors of a manifest of kind vectors, or with `fetching=False` verify them; how to use them."""
    manifest = load_manifest(name)
    if fetching:
        sources.fetched(manifest, Path(root), progress)
    file = Path(root) / name / manifest["file"]
    if not file.is_file():
        raise DataUnavailable(f"{name} was not fetched", str(file), manifest["get"])
    if not fetching:
        sources.verify_fetched(manifest, Path(root))
    return f"{name}: {file}; use it with encode.vectors={file} or SPARSE_ATTENTION_GLOVE={file}"
