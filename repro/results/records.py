"""Read the finished cells of a store (configuration, scores and time of each) without loading their data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from repro.cell import ASKED, check_nodes, read_config
from repro.errors import StoreError
from repro.files import usable
from repro.identity import Cell, Results, digest
from repro.store import Entry, Store

KEPT = ("data", "plugins")  # nodes of the training's config.yaml; the others are those of an evaluation


@dataclass
class Read:
    """The results of cells, and an error message (`lost`) for each finished folder that could not be read."""

    records: list[Results] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def of_cells(cells: Iterable[Cell], store: Store) -> list[Results]:
    """The results of those cells that are finished and undamaged, each once."""
    found = {cell.cell_id: results for cell in cells if (results := cell.found(store)[1]) is not None}
    return list(found.values())


def read(store: Store, wanted: Callable[[str, str, str], bool] = lambda *path: True, check: bool = True) -> Read:
    """Read the finished cells of a store.

    Args:
        wanted: function of (task folder, mapping folder, id) that says whether to read a training.
        check: check every file against its manifest, as tables do; damaged cells are listed in `lost`.
    """
    result = Read()
    for entry in store:
        if not (entry.finished() and wanted(*entry.folder.parts[-3:])):
            continue
        try:
            with usable(entry.folder):
                made = _records(entry, check)
                for one in made:
                    _check(one)
            result.records += made
        except StoreError as error:
            result.lost.append(str(error))
    return result


def _check(record: Results) -> None:
    """Raise the errors that a table of the record would raise, because intact files can still be inconsistent."""
    config = record.config
    place = (config["task"]["name"], config["mapping"]["name"])
    if place != record.folder.parts[-3:-1]:
        raise ValueError(f"its config.yaml is that of {'/'.join(map(str, place))}")
    check_nodes(config)
    if wrong := [k for k, v in record.metrics.items() if type(v) not in (int, float)]:
        raise ValueError(f"{wrong[0]} in its metrics.json is not a number")
    _ = record.setting, record.flat


def _records(entry: Entry, check: bool) -> list[Results]:
    """The records of a training: one for each scoring, or one without test sets if there are no evaluations."""
    trained = entry.read(check)
    if trained is None:
        return []
    told = read_config(entry.folder)
    config = {k: v for k, v in told.items() if k not in ASKED}
    # Digest of the scoring, configuration, and name of a test set -> its evaluation.
    ways: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for level in entry.evaluations():
        if (scored := level.read(check)) is None:
            continue
        own, how, name = read_config(level.folder), digest(scored.get("scoring")), scored.get("test", "test")
        way = next((w for w in ways if w[0] == how and name not in w[2]), None)
        if way is None:
            ways.append(way := (how, {k: v if k in KEPT else own.get(k, v) for k, v in config.items()}, {}))
        way[2][name] = (level, scored)
    made = ((scored, sorted(of.items(), key=lambda one: (one[0] != "test", one[0]))) for _, scored, of in ways)
    every = [*made] or [(config, [])]
    return [Results.of(entry, trained, dict(of), told["module"], how) for how, of in every]
