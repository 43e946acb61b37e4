"""What the store knows of finished cells: configuration, scores and seconds of each, read back without the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from repro.cell import ASKED, check_nodes
from repro.files import StoreError, read_json, usable
from repro.identity import Cell, Found, asked_id, computed_from, digest, family, scoring
from repro.protocol import Family
from repro.store import ASIDE, Damaged, Entry, Evaluation, Level, Store
from repro.tables import convergence
from repro.tables.convergence import Convergence

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time where libyaml is there
# What says where and how, or is told a reader, not what was computed.
ASIDE_NODES = ("runtime", "logger", "launcher", "paths", "plugins")
LARGEST = 1e300  # of a metric: beyond, means overflow
ASIDE_KEYS = ("task.family", "task.deviations", "mapping.grid")


@dataclass(frozen=True)
class Scored:
    """An evaluation's test set: hash of its content, version of the evaluation."""

    sha256: str
    recipe: int | None


@dataclass(frozen=True)
class Record:
    """A finished training with the evaluations that were scored alike.

    Attributes:
        config: of the training, with the nodes that say how to score from the evaluations.
        metrics: `split/metric` -> value. tests: name of a test set -> what was scored.
        seconds: of the training and these evaluations.
        facts: of train and dev data. tested: name of a test set -> its facts. baselines, signatures, evaluations: as of `Found`.
        curve: dev score of every epoch, where it does not lie in the folder.
    """

    folder: Path
    module: str
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    tests: Mapping[str, Scored]
    seconds: float
    data_sha256: str
    recipe: int | None
    plugins: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    tested: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    curve: tuple[float, ...] | None = None

    @classmethod
    def of(cls, cell: Cell, store: Store) -> Record | None:
        """Of a cell, None unless it is finished and whole."""
        try:
            found = cell.found(store)
        except Damaged:
            return None
        if found is None:
            return None
        tests = {t.name: Scored(t.sha256, cell.family.RECIPE[1]) for t in cell.tests}
        plugins = tuple(Path(p).name for p in cell.config.get("plugins") or ())
        of_data = (cell.prepared.sha256, cell.family.RECIPE[0], plugins)
        return cls(
            found.folder, cell.module, cell.config, found.metrics, tests, found.seconds, *of_data, facts=found.facts, tested=found.tests,
            baselines=found.baselines, signatures=found.signatures, evaluations=found.evaluations,
        )  # fmt: skip

    @property
    def found(self) -> Found:
        """The same as a table of a plan has it."""
        return Found(
            self.cell_id, self.folder, self.metrics, self.signatures, self.facts, self.tested, self.baselines, {}, self.seconds,
            self.evaluations,
        )  # fmt: skip

    @property
    def scores_by_epoch(self) -> Sequence[float]:
        """The dev scores that picked the epoch; none where no curve was kept."""
        by = str((self.config.get("train") or {}).get("best_metric"))
        return convergence.dev_scores(self.folder, by) if self.curve is None else self.curve

    @property
    def converged(self) -> Convergence:
        known = self.family.METRICS
        if self.curve is None or "best_epoch" not in known:
            return convergence.of(self.config, self.metrics, self.folder, known)
        train = self.config.get("train") or {}
        metric = known.get(str(train.get("best_metric")))
        return convergence.judge(self.curve, self.metrics.get("best_epoch"), train.get("max_epochs"), metric)

    @property
    def cell_id(self) -> str:
        return self.folder.name

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def family(self) -> Family:
        return family(self.module)

    @cached_property
    def flat(self) -> dict[str, Any]:
        """Dotted key -> value of all that may tell two settings apart."""
        return flatten({k: v for k, v in self.config.items() if k not in ASIDE_NODES})

    @cached_property
    def setting(self) -> str:
        """Equal for cells that differ in their seed alone: configuration, profile, data, recipe and scoring are the same."""
        config = {**self.config, "seed": 0, "plugins": []}
        of = self.family
        computed = computed_from(config, of)[:2]
        told = (config["profile"]["name"], self.data_sha256, self.recipe, self.plugins)
        return digest(*computed, scoring(config, of), *told)

    def asked_id(self) -> str | None:
        """`identity.asked_id` of the training; None where a plugin of it is gone."""
        try:
            return asked_id(self.config, self.family, self.recipe)
        except OSError:
            return None


@dataclass
class Read:
    """Records, and a sentence for each folder that holds none although it is finished."""

    records: list[Record] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def of_cells(cells: Iterable[Cell], store: Store) -> list[Record]:
    """The finished cells, each once."""
    found = {cell.cell_id: Record.of(cell, store) for cell in cells}
    return [one for one in found.values() if one is not None]


def flatten(node: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; lists stay whole."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{at}{key}"
        if name in ASIDE_KEYS:
            continue
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{name}.")
        else:
            found[name] = value
    return found


def page(folder: Path) -> dict[str, Any]:
    """config.yaml of a folder. Raises StoreError."""
    try:
        found = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StoreError(f"{folder / 'config.yaml'} cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(found, dict) or not {"module", "task", "mapping", "seed", "profile", "data"} <= found.keys():
        raise StoreError(f"{folder / 'config.yaml'} is not the page of a cell")
    return found


def entries(store: Store, wanted: Callable[[str, str, str], bool] | None = None) -> Iterator[Entry]:
    """Finished trainings; `wanted`: (task, mapping, id) -> whether to look at it."""
    for path in sorted((store.root / "cells").glob("*/*/*/manifest.json")):
        if ASIDE not in path.parent.name and (wanted is None or wanted(*path.parent.parts[-3:])):
            yield Entry(path.parent)


def read(
    store: Store, wanted: Callable[[str, str, str], bool] | None = None, *, check: bool = True,
    ids: Collection[str] | None = None,
) -> Read:  # fmt: skip
    """The finished cells of a store.

    Args:
        wanted: (folder of the task, of the mapping, id) -> whether to read it. ids: of trainings; None: all.
        check: every file against its manifest, as tables do; what is damaged is told, not shown.
    """
    found = Read()
    for entry in entries(store, wanted):
        if ids is not None and entry.folder.name not in ids:
            continue
        try:
            with usable(entry.folder):
                made = _records(entry, check)
                for one in made:
                    _check(one)
            found.records += made
        except StoreError as error:
            found.lost.append(str(error))
    return found


def _measured(level: Level, check: bool) -> dict[str, Any] | None:
    """Raises `Damaged`."""
    stored = level.read() if check else read_json(level.path("metrics.json")) if level.finished() else None
    if stored is not None and not isinstance(stored.get("metrics"), dict):
        raise Damaged(f"{level.folder} is damaged: metrics.json holds no metrics")
    return stored


def _check(one: Record) -> None:
    """Raises what a table of it would: its files may be whole and senseless."""
    config = one.config
    place = (config["task"]["name"], config["mapping"]["name"])
    if place != one.folder.parts[-3:-1]:
        raise ValueError(f"its config.yaml is that of {'/'.join(map(str, place))}")
    check_nodes(config)
    if wrong := [k for k, v in one.metrics.items() if type(v) not in (int, float) or not (abs(v) <= LARGEST or v != v)]:
        raise ValueError(f"{wrong[0]} of its metrics.json is not a number that can be shown")
    _ = one.setting, one.flat


def _records(entry: Entry, check: bool) -> list[Record]:
    """One for each way in which the training was scored; one without test sets where it was not."""
    trained = _measured(entry, check)
    if trained is None:
        return []
    told = page(entry.folder)
    config = {k: v for k, v in told.items() if k not in ASKED}
    plugins = tuple(Path(p).name for p in config.get("plugins") or ())
    common = (str(trained.get("data_sha256", "")), trained.get("recipe"), plugins)
    seconds = float(trained.get("seconds") or 0.0)
    facts, signatures = trained.get("facts") or {}, trained.get("signatures") or {}
    # [scoring, configuration, metrics, test sets, seconds, facts of test sets, baselines, signatures, evaluations]
    ways: list[list[Any]] = []
    for folder in sorted(entry.path("evaluations").glob("*")):
        if ASIDE in folder.name or (scored := _measured(Evaluation(folder), check)) is None:
            continue
        own, how = page(folder), digest(scored.get("scoring"))
        name, what = scored.get("test", "test"), Scored(scored.get("data_sha256", ""), scored.get("recipe"))
        way = next((w for w in ways if w[0] == how and name not in w[3]), None)
        if way is None:
            as_scored = {k: v if k == "data" else own.get(k, v) for k, v in config.items()}
            ways.append(way := [how, as_scored, dict(trained["metrics"]), {}, seconds, {}, {}, dict(signatures), {}])
        way[2].update(scored["metrics"])
        way[3][name] = what
        way[4] += float(scored.get("seconds") or 0.0)
        way[5][name], way[8][name] = scored.get("facts") or {}, Evaluation(folder)
        for system, values in (scored.get("baselines") or {}).items():
            way[6].setdefault(system, {}).update(values)
        way[7].update(scored.get("signatures") or {})
    ways = ways or [["", config, trained["metrics"], {}, seconds, {}, {}, signatures, {}]]
    return [
        Record(entry.folder, told["module"], scored_as, metrics, tests, spent, *common, facts, *more)
        for _, scored_as, metrics, tests, spent, *more in ways
    ]
