"""Read the finished cells of a store (configuration, scores and time of each) without loading their data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from repro import convergence
from repro.cell import ASKED, check_nodes, read_config
from repro.convergence import Convergence
from repro.files import StoreError, usable
from repro.identity import Cell, OfFamily, Results, asked_id, computed_from, digest, scoring
from repro.store import ASIDE, Damaged, Entry, Evaluation, Store

# nodes and keys that do not change the result
ASIDE_NODES = ("runtime", "logger", "launcher", "paths", "plugins")
ASIDE_KEYS = ("task.family", "task.deviations", "mapping.grid")


@dataclass(frozen=True)
class Scored:
    """The version of an evaluation: the hash of the test set's content, and the version of the evaluation recipe."""

    sha256: str
    recipe: int | None


@dataclass(frozen=True, kw_only=True)
class Record(Results, OfFamily):
    """A finished training with the evaluations that use the same scoring.

    Attributes in addition to those of `Results`:
        module: name of the family's module.
        config: the training's configuration, with the nodes that set the scoring taken from the evaluations.
        scored: name of a test set -> version of its evaluation.
        data_sha256, recipe, plugins: those of the training.
        curve: dev score of every epoch; used if the folder has no curves.csv.
    """

    module: str
    config: Mapping[str, Any]
    scored: Mapping[str, Scored]
    data_sha256: str
    recipe: int | None
    plugins: tuple[str, ...] = ()
    curve: tuple[float, ...] | None = None

    @classmethod
    def of_cell(cls, cell: Cell, store: Store) -> Record | None:
        """The record of a cell, or None unless the cell is finished and undamaged."""
        try:
            found = cell.results(store)
        except Damaged:
            return None
        if found is None:
            return None
        trained, evaluated = cell.recipes
        facts: dict[str, Any] = {"module": cell.module, "config": cell.config, "plugins": _plugins(cell.config)}
        versions = {t.name: Scored(t.sha256, evaluated) for t in cell.tests}
        return cls(**vars(found), **facts, data_sha256=cell.data.sha256, recipe=trained, scored=versions)

    @property
    def scores_by_epoch(self) -> Sequence[float]:
        """The dev score that selects the best epoch, for every epoch; empty if no learning curve is stored."""
        by = str((self.config.get("train") or {}).get("best_metric"))
        return convergence.dev_scores(self.folder, by) if self.curve is None else self.curve

    @property
    def converged(self) -> Convergence:
        return convergence.of(self.config, self, self.family.METRICS, self.curve)

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The options in which two settings may differ, as dotted key -> value."""
        return flatten({k: v for k, v in self.config.items() if k not in ASIDE_NODES})

    @cached_property
    def setting(self) -> str:
        """A hash of configuration, profile, data, recipe and scoring; equal for cells that differ only in the seed."""
        config = {**self.config, "seed": 0, "plugins": []}
        of = self.family
        computed = computed_from(config, of)[:2]
        told = (config["profile"]["name"], self.data_sha256, self.recipe, self.plugins)
        return digest(*computed, scoring(config, of), *told)

    def asked_id(self) -> str | None:
        """`identity.asked_id` of the training, or None if one of its plugins cannot be read."""
        try:
            return asked_id(self.config, self.family, self.recipe)
        except OSError:
            return None


@dataclass
class Read:
    """The records, and an error message (`lost`) for each finished folder that could not be read."""

    records: list[Record] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def of_cells(cells: Iterable[Cell], store: Store) -> list[Record]:
    """The records of those cells that are finished, each once."""
    found = {cell.cell_id: Record.of_cell(cell, store) for cell in cells}
    return [one for one in found.values() if one is not None]


def flatten(node: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; lists are kept as values."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{at}{key}"
        if name in ASIDE_KEYS:
            continue
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


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


def _check(record: Record) -> None:
    """Raise the errors that a table of the record would raise, because intact files can still be inconsistent."""
    config = record.config
    place = (config["task"]["name"], config["mapping"]["name"])
    if place != record.folder.parts[-3:-1]:
        raise ValueError(f"its config.yaml is that of {'/'.join(map(str, place))}")
    check_nodes(config)
    if wrong := [k for k, v in record.metrics.items() if type(v) not in (int, float)]:
        raise ValueError(f"{wrong[0]} of its metrics.json is not a number that can be shown")
    _ = record.setting, record.flat


def _records(entry: Entry, check: bool) -> list[Record]:
    """The records of a training: one for each scoring, or one without test sets if there are no evaluations."""
    trained = entry.read(check)
    if trained is None:
        return []
    told = read_config(entry.folder)
    config = {k: v for k, v in told.items() if k not in ASKED}
    # Digest of the scoring, configuration, and name of a test set -> its evaluation.
    ways: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for level in map(Evaluation, sorted(entry.path("evaluations").glob("*"))):
        if ASIDE in level.folder.name or (scored := level.read(check)) is None:
            continue
        own, how, name = read_config(level.folder), digest(scored.get("scoring")), scored.get("test", "test")
        way = next((w for w in ways if w[0] == how and name not in w[2]), None)
        if way is None:
            ways.append(way := (how, {k: v if k == "data" else own.get(k, v) for k, v in config.items()}, {}))
        way[2][name] = (level, scored)
    records = []
    facts: dict[str, Any] = {"data_sha256": str(trained.get("data_sha256", "")), "recipe": trained.get("recipe")}
    for _, as_scored, evaluations in ways or [("", config, {})]:
        versions = {k: Scored(test.get("data_sha256", ""), test.get("recipe")) for k, (_, test) in evaluations.items()}
        more = {"module": told["module"], "config": as_scored, "plugins": _plugins(config), **facts, "scored": versions}
        records.append(Record.of(entry, trained, evaluations, **more))
    return records


def _plugins(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(Path(p).name for p in config.get("plugins") or ())
