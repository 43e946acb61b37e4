"""Whether a report has to be written again: a hash of all that it shows stands in its head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from repro.plan import Plan
from repro.report.placed import ENDING, files
from repro.store import Store
from repro.tables import render
from repro.tables.blocks import Table

CODE = Path(__file__).resolve().parents[1]  # repro
HEAD = 600  # bytes of a report in which the hash stands


def content(built: Sequence[Table], made: Sequence[Plan], store: Store, failed: Mapping[str, str]) -> str:
    """Of the code, the tables, the cells (by their manifests, which name every file's hash) and the figures. Running cells have no say."""
    found = hashlib.sha256()
    for piece in _pieces(built, made, store, failed):
        found.update(piece if isinstance(piece, bytes) else repr(piece).encode())
    return found.hexdigest()


def _pieces(built: Sequence[Table], made: Sequence[Plan], store: Store, failed: Mapping[str, str]) -> Iterator[object]:
    for source in sorted((*CODE.rglob("*.py"), *CODE.rglob("*.jinja"))):
        yield source.read_bytes()
    yield from (find_spec("matplotlib") is None, sorted(failed.items()))
    for table, plan in zip(built, made):
        yield from (
            render.to_text(table),
            render.to_csv(table),
            repr(plan.experiment),
            sorted(plan.unavailable.items()),
        )
        for slot in plan.slots:
            entry = slot.cell.entry(store)
            levels = [entry, *(slot.cell.evaluation(store, test) for test in slot.cell.tests)]
            yield (slot.row, slot.column, slot.point, slot.seed, slot.cell.state(store))
            yield json.dumps(slot.cell.config, sort_keys=True, default=str)
            yield from (_bytes(level.path(name)) for level in levels for name in ("manifest.json", "status.json"))
        for note in files(store.root / "figures" / plan.experiment.name, plan.experiment.profile):
            yield from (_bytes(note), _bytes(note.with_name(note.name.removesuffix(ENDING) + ".svg")))


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def holds(path: Path, content: str) -> bool:
    """Whether a file is the report of this content."""
    try:
        with path.open("rb") as file:
            return content.encode() in file.read(HEAD)
    except OSError:
        return False
