"""A cell (a training with its evaluations), the ids that identify it, and its results in the store.

The id of a training is a hash of everything that can change the weights: the resolved configuration (without the keys
that set where to run and how to score), the content of the train and dev data, and the version of the training recipe.
The id of an evaluation is a hash of the training's id, the content of the test set, the scoring keys (`EVALUATION_KEYS`
of the family) and the version of the evaluation recipe. The Git commit and package versions are recorded but not
hashed, because changing a comment must not invalidate every finished cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from repro import convergence, plugins
from repro.protocol import Family, Prepared, TestSet, family, flatten, parameters, value_at
from repro.rounding import digest as digest
from repro.store import Damaged, Entry, Evaluation, Level, Store, check_names

Stored = Mapping[str, Any]  # metrics.json of a training or an evaluation
Point = tuple[tuple[str, Any], ...]  # a grid point: (dotted key, value) of each parameter
READ_FOR_DATA = ("data", "encode", "task", "decode", "model", "plugins")  # nodes that may affect how data are prepared

# Nodes that are left out of the hashed configuration. The hash covers the name and content of `data` and the content of
# the `plugins` files instead; the other nodes do not change the result.
NOT_IDENTITY = ("runtime", "logger", "launcher", "paths", "profile", "plugins", "data")
SAID = ("family", "deviations")  # keys of `task` that do not change the result
ASIDE_NODES = ("runtime", "logger", "launcher", "paths", "plugins")  # nodes in which two settings do not differ


class OfFamily:
    """The seed, family and recipes of a configuration, for a class with a `config` and the name of the family's `module`."""

    module: str
    config: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def family(self) -> Family:
        return family(self.module)

    @property
    def recipes(self) -> tuple[int, int]:
        return recipes(self.config, self.family)


class Scored(NamedTuple):
    """The version of an evaluation: the hash of the test set's content, and the version of the evaluation recipe."""

    sha256: str
    recipe: int | None


@dataclass(frozen=True)
class Results(OfFamily):
    """The results of a finished cell, which combine those of its training and of the evaluations with one scoring.

    Attributes:
        metrics: `split/metric` -> value, for the training and every test set.
        signatures: metric -> how it was computed, for metrics where this is known only after the computation.
        facts: facts about the train and dev data. tests: name of a test set -> facts about it.
        baselines: trivial systems, as name -> metric -> value.
        shortfalls: "train" or the name of a test set -> why these data differ from the paper's.
        seconds: time of the training and the evaluations together. module: name of the family's module.
        evaluations: name of a test set -> folder of its evaluation. levels: that of the training, and these.
        config: the training's configuration, with the nodes that set the scoring taken from the evaluations.
        scored: name of a test set -> version of its evaluation.
        data_sha256, recipe: those of the training. curve: columns of curves.csv; if None, the file is read.
    """

    cell_id: str
    folder: Path
    metrics: Mapping[str, float]
    signatures: Mapping[str, str]
    facts: Mapping[str, Any]
    tests: Mapping[str, Mapping[str, Any]]
    baselines: Mapping[str, Mapping[str, Any]]
    shortfalls: Mapping[str, tuple[str, ...]]
    seconds: float
    evaluations: Mapping[str, Evaluation]
    module: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    scored: Mapping[str, Scored] = field(default_factory=dict)
    data_sha256: str = ""
    recipe: int | None = None
    curve: Mapping[str, Sequence[float]] | None = None
    levels: tuple[Level, ...] = ()

    @classmethod
    def of(
        cls,
        entry: Entry,
        trained: Stored,
        evaluated: Mapping[str, tuple[Evaluation, Stored]],
        module: str,
        config: Mapping[str, Any],
    ) -> Self:
        """Combine the metrics.json of a training with those of its evaluations (`evaluated`, by test set name)."""
        baselines: dict[str, dict[str, Any]] = {}
        for _, one in evaluated.values():
            for system, values in (one.get("baselines") or {}).items():
                baselines.setdefault(system, {}).update(values)
        levels = (trained, *(one for _, one in evaluated.values()))
        by_set = {"train": trained, **{name: one for name, (_, one) in evaluated.items()}}
        return cls(
            cell_id=entry.folder.name,
            folder=entry.folder,
            metrics={name: value for one in levels for name, value in one["metrics"].items()},
            signatures={name: how for one in levels for name, how in (one.get("signatures") or {}).items()},
            facts=trained.get("facts") or {},
            tests={name: one.get("facts") or {} for name, (_, one) in evaluated.items()},
            baselines=baselines,
            shortfalls={name: tuple(one.get("shortfalls") or ()) for name, one in by_set.items()},
            seconds=sum(float(one.get("seconds") or 0.0) for one in levels),
            evaluations={name: level for name, (level, _) in evaluated.items()},
            scored={k: Scored(one.get("data_sha256", ""), one.get("recipe")) for k, (_, one) in evaluated.items()},
            data_sha256=str(trained.get("data_sha256", "")),
            recipe=trained.get("recipe"),
            module=module,
            config=config,
            curve=entry.curve,
            levels=(entry, *(level for level, _ in evaluated.values())),
        )

    @property
    def plugins(self) -> tuple[str, ...]:
        """The names of the plugins' files."""
        return tuple(Path(p).name for p in self.config.get("plugins") or ())

    @property
    def best_metric(self) -> str:
        """The metric that selects the best epoch, on dev."""
        return str((self.config.get("train") or {}).get("best_metric"))

    @property
    def scores_by_epoch(self) -> Sequence[float]:
        """The dev score that selects the best epoch, for every epoch; empty if no learning curve is stored."""
        return self.curves.get(f"dev/{self.best_metric}", [])

    @cached_property
    def curves(self) -> Mapping[str, Sequence[float]]:
        """The columns of curves.csv; of records, those that `convergence.of` reads, and the epoch."""
        return convergence.read_curves(self.folder) if self.curve is None else self.curve

    @property
    def converged(self) -> convergence.Convergence:
        return convergence.of(self)

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The options in which two settings may differ, as dotted key -> value."""
        return flatten({k: v for k, v in self.config.items() if k not in ASIDE_NODES})

    @cached_property
    def setting(self) -> str:
        """A hash of configuration, profile, data, recipe and scoring; equal for cells that differ only in the seed."""
        config = {**self.config, "seed": 0, "plugins": []}
        of = self.family
        told = (config["profile"]["name"], self.data_sha256, self.recipe, self.plugins)
        return digest(*computed_from(config, of)[:2], scoring(config, of), *told)

    def asked_id(self) -> str | None:
        """`identity.asked_id` of the training, or None if one of its plugins cannot be read."""
        try:
            return asked_id(self.config, self.family, self.recipe)
        except OSError:
            return None


@dataclass(frozen=True)
class Cell(OfFamily):
    """A training with its evaluations, at its place in a table. It has ids, and can run, once its data are prepared.

    Attributes:
        config: the resolved, checked configuration in plain containers.
        module: name of the family's module (`protocol.Family`).
        prepared: the train and dev data; None until they are prepared.
        tests: the test sets to evaluate on; empty until the data are prepared.
        further: name of a test set from another data set -> the data node of that set.
        origin: where the cell was first requested: `experiment` or `sweep`, `row`, `column` and `heading`; not part of
            the id.
        known_id: id of a training that is already finished; used even if the recipe has changed.
        known: its results, if they are from a record; no store has them.
        row, column: numbers of the row and column of the table; not part of the id.
        point: the grid point; empty without a grid.
    """

    config: Mapping[str, Any]
    module: str
    prepared: Prepared | None = None
    tests: tuple[TestSet, ...] = ()
    further: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    known_id: str = ""
    known: Results | None = None
    row: int = 0
    column: int = 0
    point: Point = ()

    @property
    def data(self) -> Prepared:
        """The prepared data. Raises ValueError if they are not prepared."""
        if self.prepared is None:
            raise ValueError(f"the data of {self.task}/{self.mapping} are not prepared")
        return self.prepared

    @cached_property
    def data_key(self) -> str:
        """A hash of everything that can affect how the data are prepared; equal for cells that share their data."""
        return digest({k: self.config.get(k) for k in READ_FOR_DATA}, self.config["paths"]["data"])

    def with_data(self, prepared: Prepared, further: Sequence[TestSet] = ()) -> Self:
        """This cell with its data; its test sets are the data set's own and `further`."""
        return replace(self, prepared=prepared, tests=(*([prepared.test] if prepared.test else []), *further))

    @property
    def task(self) -> str:
        return self.config["task"]["name"]

    @property
    def mapping(self) -> str:
        return self.config["mapping"]["name"]

    @property
    def parameters(self) -> str:
        """The mapping's parameters as text."""
        return ", ".join(f"{k}={v}" for k, v in parameters(self.config, self.family).items())

    @property
    def label(self) -> str:
        """The row and column of the cell's table; an empty string for a cell that belongs to no table."""
        column = self.origin.get("heading") or self.origin.get("column")
        return ", ".join(text for text in (self.origin.get("row"), column) if text)

    @cached_property
    def training_id(self) -> str:
        """The id of the training, which also names its folder: 16 hex digits."""
        if self.known_id:
            return self.known_id
        return digest(*computed_from(self.config, self.family), self.data.sha256, self.recipes[0])

    def evaluation_id(self, test: TestSet) -> str:
        """The id of this training's evaluation on `test`: 16 hex digits."""
        return digest(self.training_id, test.name, test.sha256, self.scoring, self.recipes[1])

    @property
    def scoring(self) -> dict[str, Any]:
        """The values of the scoring keys, as dotted key -> value."""
        return scoring(self.config, self.family)

    @property
    def cell_id(self) -> str:
        """The id of the training together with its scoring keys; cells with equal ids are the same work."""
        return digest(self.training_id, self.scoring)

    def entry(self, store: Store) -> Entry:
        return store.entry(self.task, self.mapping, self.training_id)

    def evaluation(self, store: Store, test: TestSet) -> Evaluation:
        return self.entry(store).evaluation(self.evaluation_id(test))

    def config_of(self, test: TestSet) -> Mapping[str, Any]:
        """The configuration with its data node replaced by that of the test set."""
        return {**self.config, "data": self.further[test.name]} if test.name in self.further else self.config

    def with_tests(self, other: Self) -> Self:
        """A copy of this cell with the test sets of `other` added."""
        tests = (*self.tests, *(t for t in other.tests if t.name not in {own.name for own in self.tests}))
        known = self.known if other.known else None
        return replace(self, tests=tests, further={**self.further, **other.further}, known=known)

    def results(self, store: Store) -> Results | None:
        """The known or stored results, or None unless the training and all evaluations are done. Raises `Damaged`."""
        if self.known is not None:
            return self.known
        entry = self.entry(store)
        if (trained := entry.read()) is None:
            return None
        scored: dict[str, tuple[Evaluation, Stored]] = {}
        for test in self.tests:
            level = self.evaluation(store, test)
            if (stored := level.read()) is None:
                return None
            scored[test.name] = (level, _short(stored, test))
        return Results.of(entry, _short(trained, self.data), scored, self.module, self.config)

    def done(self, store: Store) -> bool:
        """Whether the training and all evaluations are complete and undamaged."""
        return self.state(store) == "done"

    def state(self, store: Store) -> str:
        """The state of the cell: "queued", "running", "done", "failed", "lost" or "damaged"."""
        return self.found(store)[0]

    def found(self, store: Store) -> tuple[str, Results | None, str]:
        """The state of the cell, its results if it is done, and else the reason if there is one."""
        try:
            if (results := self.results(store)) is not None:
                return "done", results, ""
        except Damaged as error:
            return "damaged", None, str(error)
        status = self.entry(store).status()
        state = "queued" if status["state"] == "done" else status["state"]  # an evaluation is missing
        return state, None, str(status.get("error", "")) if state in ("failed", "lost") else ""


def _short(stored: Stored, now: Prepared | TestSet) -> Stored:
    """The stored results with the shortfalls that the loader now reports added to the stored ones."""
    return {**stored, "shortfalls": tuple(dict.fromkeys([*(stored.get("shortfalls") or ()), *now.shortfalls]))}


def computed_from(config: Mapping[str, Any], family: Family) -> tuple[dict[str, Any], str, list[str]]:
    """Everything that a training depends on, except the content of its data.

    Returns (configuration, name of the data set, content of the plugins).
    """
    kept = {k: v for k, v in as_named(config, family).items() if k not in NOT_IDENTITY}
    relevant = {k: dict(v) if isinstance(v, Mapping) else v for k, v in kept.items()}
    relevant["task"] = {k: v for k, v in relevant["task"].items() if k not in SAID}
    relevant["mapping"].pop("grid", None)
    # the path of a file (word vectors) does not matter, because the hash of the data covers the file's content
    encode = relevant.get("encode") or {}
    relevant["encode"] = {k: Path(v).name if isinstance(v, str) else v for k, v in encode.items()}
    for key in family.EVALUATION_KEYS:
        *path, last = key.split(".")
        node = relevant
        for part in path:
            node[part] = node = dict(node.get(part) or {})
        node.pop(last, None)
    return relevant, config["data"]["name"], [*dict.fromkeys(plugins.content(p) for p in config.get("plugins") or [])]


def scoring(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The values of the scoring keys, as dotted key -> value; a family's LATER_KEYS are included only if set."""
    unset = [key for key in getattr(family, "LATER_KEYS", ()) if not value_at(config, key)]
    left_out = {*(f"task.{key}" for key in SAID), *unset}
    config = as_named(config, family)
    return {key: value_at(config, key) for key in family.EVALUATION_KEYS if key not in left_out}


def as_named(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """A configuration without a family's unset LATER_KEYS, and without the keys that it leaves `unread`."""
    named, unread = dict(config), getattr(family, "unread", lambda _: ())(config)
    for key in (*getattr(family, "LATER_KEYS", ()), *unread):
        node, _, last = key.rpartition(".")
        if isinstance(named.get(node), Mapping) and (key in unread or not named[node].get(last)):
            named[node] = {k: v for k, v in named[node].items() if k != last}
    return named


def asked_id(config: Mapping[str, Any], family: Family, recipe: int | None = None) -> str:
    """An id of a training that needs no prepared data: it hashes the data node instead of the content of the data.

    `recipe` is the version of the training recipe; None means the current version.
    """
    recipe = recipes(config, family)[0] if recipe is None else recipe
    return digest(*computed_from(config, family), config["data"], recipe)


def recipes(config: Mapping[str, Any], family: Family) -> tuple[int, int]:
    """The current versions of training and evaluation: the family's, or those of the configuration's model."""
    return getattr(family, "RECIPES", {}).get(value_at(config, "model.name"), family.RECIPE)


def pair(override: str) -> tuple[str, str]:
    """KEY=VALUE, +KEY=VALUE or ~KEY as (key, value), as typed; the value is empty without "="."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def prepare(cell: Cell, progress: Any = None) -> Cell:
    """The cell with its data acquired and encoded, and those of its further test sets."""
    check_names(cell.task, cell.mapping)
    plugins.load(plugins.pinned(cell.config.get("plugins")))
    prepared = cell.family.prepare(cell.config, progress)
    folder, configs = Path(prepared.folder), [{**cell.config, "data": node} for node in cell.further.values()]
    return cell.with_data(prepared, [cell.family.prepare_test(one, folder, progress) for one in configs])
