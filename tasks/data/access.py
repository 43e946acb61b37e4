"""The data sets that exist: check a `data` node before any data are read; open, fetch or verify a data set."""

import contextlib
import dataclasses
import importlib.util
import inspect
import json
import os
import re
import shlex
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from repro.errors import ConfigError, near
from repro.options import read as read_options
from tasks.data.acquire import sources
from tasks.data.acquire.download import nothing_fetched
from tasks.data.dataset import SPLITS, DataSet, Loader, Splits, fingerprint
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import check_folder, publish_file, sha256_of
from tasks.data.manifests import load_manifest, manifest_names
from tasks.data.options import options_of
from tasks.data.progress import NullProgress, Progress
from tasks.data.read.formats import counting
from tasks.data.records import KINDS


def set_names(kind: str | None = None) -> list[str]:
    """Names of all data sets, or only those of the given kind."""
    names = [name for name in manifest_names() if load_manifest(name)["kind"] != "vectors"]
    return names if kind is None else [name for name in names if kind == set_module(name).KIND]


def set_module(name: str) -> Loader:
    """The loader of a data set. Raises ConfigError if the name is unknown or its loader is incomplete."""
    manifest = load_manifest(name) if name in manifest_names() else {"kind": "vectors"}
    if manifest["kind"] == "vectors":
        known = set_names()
        raise ConfigError([f"unknown data set data.name={name!r}{near(name, known)}; allowed: {', '.join(known)}"])
    path = f"tasks.data.sets.{manifest.get('loader', name)}"
    sets = getattr(importlib.import_module(path), "SETS", {}) if importlib.util.find_spec(path) else {}
    loader = sets.get(name) or sets.get(manifest.get("holds"))
    if loader is None or loader.KIND not in KINDS:
        file = f"{path.replace('.', '/')}.py must have SETS = {{{name!r}: Loader(KIND, load)}}"
        raise ConfigError([f"data.name={name}: {file}, where KIND is {' or '.join(KINDS)}; see docs/extending.md"])
    return loader


def set_options(name: str) -> type:
    """The class of the options of a data set. Raises the errors of `set_module`."""
    return options_of(name, set_module(name))


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
            reads = f"this task reads {KINDS.get(kind, kind)}: {', '.join(set_names(kind))}"
            return [f"data={node['name']} holds {KINDS[module.KIND]}; {reads}"]
        _chosen(node)
    except ConfigError as error:
        return error.problems
    return []


def _chosen(node: Mapping[str, Any]) -> tuple[Loader, Any]:
    """The loader and the options that a `data` node describes. Raises ConfigError if it is invalid."""
    name, given = node.get("name", ""), {k: v for k, v in node.items() if k != "name"}
    return set_module(name), read_options(set_options(name), given, "data")


def open_data(node: Mapping[str, Any], root: str | Path, progress: Progress | None = None) -> DataSet:
    """Find the data set that a `data` node describes. All data sets are opened by this function.

    Args:
        node: `name` and the options of the data set's loader in `tasks/data/sets`.
        root: folder for downloads and caches.

    Raises:
        DataError: the node is invalid, the data are damaged, or the disk is full.
        DataUnavailable: the data are missing or unreachable, and there is no fallback.
    """
    progress, root = progress or NullProgress(), Path(root)
    try:
        module, options = _chosen(node)
    except ConfigError as error:
        raise DataError(str(error), "the data node of the configuration", "correct it") from error
    check_folder(root)
    name, manifest = node["name"], load_manifest(node["name"])
    try:
        with counting() as counts:
            data = module.load(manifest, options, root, progress)
    except DataUnavailable as error:
        if getattr(options, "fallback", None) is None:
            raise _in(root, name, error) from error
        progress.say(f"{name} is unavailable ({error.what}); generated pairs take its place")
        limits = dataclasses.asdict(options.limits)
        toy = open_data({"name": options.fallback, "limits": limits}, root, progress)
        why = f"GENERATED TEXT, not {name}: {error.what} ({error.why})"
        notes = (why, f"for the real text: {error.next_step}", *toy.notes)
        short = (f"generated text instead of {name}", *toy.shortfalls)
        return dataclasses.replace(toy, stands_for=name, notes=notes, shortfalls=short)
    values = dataclasses.asdict(options)
    if why := sources.unverified(manifest, values, root):
        data.shortfalls = (*data.shortfalls, why)
    if manifest["kind"] == "generated":  # made from the options and the loader alone; `limits` are in `make`'s hash
        drawn = {k: v for k, v in values.items() if not isinstance(v, dict)}
        code = sha256_of(Path(inspect.getfile(module.load)))
        data.fingerprint = {s: fingerprint(own, drawn, code) for s, own in data.fingerprint.items()}
    return _told(data, root, counts, progress)


def _in(root: Path, name: str, error: DataUnavailable) -> DataUnavailable:
    """The error with a next step that fetches into `root`, if that is not the default folder."""
    if str(root) == os.environ.get("SPARSE_ATTENTION_DATA", "data/cache"):
        return error
    fetch, known = f"python scripts/data.py fetch {name}", rf"make data-{name}\b|python scripts/data\.py fetch {name}\b"
    step = re.sub(known, lambda _: f"{fetch} --root {shlex.quote(str(root))}", error.next_step)
    return DataUnavailable(error.what, error.why, step)


def _told(data: DataSet, root: Path, counts: Mapping[str, int], progress: Progress) -> DataSet:
    """Report what the readers counted, as notes of `data`, or as shortfalls if records are left out.

    The counts from reading are stored under `root`, because encoded data are not read again.
    """
    kept = root / "counted" / f"{data.name}-{fingerprint(data.fingerprint)[:16]}.json"

    def tell(counts: Mapping[str, int]) -> None:
        for what, n in counts.items():
            where = "shortfalls" if " left out" in what else "notes"
            if (said := f"{n:,} {what}") not in getattr(data, where):
                progress.say(f"{data.name}: {said}")
                setattr(data, where, (*getattr(data, where), said))

    def read(progress: Progress) -> Splits:
        with counting() as counts:
            splits = inner(progress)
        if counts:
            publish_file(kept, json.dumps(counts))
        tell(counts)
        return splits

    inner, data.read = data.read, read
    tell(counts)
    with contextlib.suppress(OSError, ValueError):  # no counts are stored
        tell(json.loads(kept.read_text(encoding="utf-8")))
    return data


def look(
    what: Literal["fetch", "show", "verify"],
    name: str,
    root: str | Path,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> str:
    """Read a data set once, without its fallback, and return a summary of its contents and its source; of vectors, how to use them.

    Args:
        what: fetch it into the cache; show its notes, its shortfalls and five of its test records too; or verify the files that are
            here: neither the hub nor any web address is contacted, but missing apt and pip data are fetched.
        options: those of the data set, e.g. `mirror` or `path`; those that are None are ignored.

    Raises the errors of `open_data`, and DataError if a file to verify has changed since it was fetched.
    """
    progress, root, manifest = progress or NullProgress(), Path(root), load_manifest(name)
    node = {"name": name} | {k: v for k, v in (options or {}).items() if v is not None}
    vectors = root / name / manifest["file"] if manifest["kind"] == "vectors" else None
    if vectors and what != "fetch" and not vectors.is_file():
        raise DataUnavailable(f"{name} was not fetched", str(vectors), manifest["get"])
    if not vectors and hasattr(set_options(name), "fallback"):
        node["fallback"] = None
    place = root if vectors else node.get("path") or node.get("mirror") or root
    check_folder(root, write=what != "verify")
    with nothing_fetched() if what == "verify" else contextlib.nullcontext():
        if place == root and what == "verify":
            sources.verify_fetched(manifest, root)
        elif place == root:
            sources.fetched(manifest, root, progress)
        if vectors:
            return f"{name}: {vectors}; use it with encode.vectors={vectors} or SPARSE_ATTENTION_GLOVE={vectors}"
        data = open_data(node, root, progress)
        splits = data.read(progress)
    counts = ", ".join(f"{len(splits[s]):,} {s}" for s in SPLITS if len(splits.get(s, ())))
    said = [f"{name}: {counts}; {data.provenance}; from {place}"]
    if what == "show":
        records = map(str, islice(splits.get("test", ()), 5))
        said += [*data.notes, *data.shortfalls, *(one[:2_000] + "…" * (len(one) > 2_000) for one in records)]
    if what == "verify":
        said += [f"sha256 of what {s} is read from: {data.fingerprint[s]}" for s in SPLITS if s in data.fingerprint]
        said += [f"short: {s}" for s in data.shortfalls]
    return "\n  ".join(said)


fetch, show, verify = (partial(look, what) for what in ("fetch", "show", "verify"))
