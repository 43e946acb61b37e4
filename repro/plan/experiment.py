"""Experiment files, `configs/experiment/<name>.yaml`; types and names are checked when a file is read.

    title, paper            title of the experiment, and the paper it reproduces
    opening                 text that a run prints first, for example how long it takes
    draw: [labels]          printed last: what the scores show, and these rows' attention for one test example
    published               name of the file with the published numbers
    paired                  true if runs with the same seed share their data, or were timed together
    rows:     - {label, published, mapping, overrides: [...], grids: {<column's grid>: own | {parameter: [values]}}}
    columns:  key: {label, overrides: [...], grid, evaluate: [data sets], select: {metric, mode},
                    show: [{metric, label}], not_comparable: why,
                    published: [{label, dataset, metrics, against, labels}]}
    profiles: demo: {columns: [keys], rows: [labels], seeds: [1, 2], comparable: true, not_comparable: why,
                     deviations: [...], footers: [...]}

`overrides` are overrides of the configuration. A row with a grid becomes one cell per grid point, column and seed. In
each column, `select` keeps the grid point with the best mean dev score over the seeds, as in the papers. `own` means
the grid in the mapping's yaml file.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from repro import options
from repro.errors import ConfigError, near
from repro.options import choice
from repro.protocol import Metric


@dataclass(frozen=True)
class Show:
    """One of our metrics that a column shows."""

    metric: str
    label: str


@dataclass(frozen=True)
class Select:
    """How to choose a grid point: by the largest (`max`) or smallest (`min`) mean of `metric` over the seeds."""

    metric: str
    mode: str = choice("max", "min", default="max")


@dataclass(frozen=True)
class PublishedGroup:
    """Published numbers that are shown next to ours.

    Each of the `metrics` published for `dataset` is compared with one of our metrics (`against`).
    """

    label: str
    dataset: str
    metrics: tuple[str, ...]
    against: tuple[str, ...]
    labels: tuple[str, ...] = ()

    @property
    def headers(self) -> tuple[str, ...]:
        return self.labels or self.metrics


@dataclass(frozen=True)
class Row:
    """A mapping with its settings; `published` is its label in the paper, or "" if the paper has no such row."""

    label: str
    mapping: str
    published: str = ""
    overrides: tuple[str, ...] = ()
    grids: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[str, ...]:
        return (f"mapping={self.mapping}", *self.overrides)


# What a user adds: a row for each of several values, and one row in their place whose `grids` are these values, or None.
Added = tuple[Sequence[Row], Row | None]


@dataclass(frozen=True)
class Column:
    """A task and its data.

    `evaluate` names further test sets; `not_comparable` says why the column never gets a verdict.
    """

    key: str
    label: str
    show: tuple[Show, ...]
    overrides: tuple[str, ...] = ()
    grid: str = ""
    evaluate: tuple[str, ...] = ()
    select: Select | None = None
    published: tuple[PublishedGroup, ...] = ()
    not_comparable: str = ""

    @property
    def split(self) -> str:
        """The test set of the first score shown, e.g. `test` or `duc2004`."""
        return next((s.metric.partition("/")[0] for s in self.show), "test")


@dataclass(frozen=True)
class Profile:
    """The columns, rows and seeds of a profile, and what is said of it; without `rows`, it has all rows."""

    key: str
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[str, ...] = ()
    comparable: bool = False
    not_comparable: str = ""
    deviations: tuple[str, ...] = ()
    footers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """The rows, columns and seeds of an experiment in one profile; with `own` data, no paper is compared."""

    name: str
    profile: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    paper: str = ""
    published: str = ""
    comparable: bool = False
    not_comparable: str = ""
    own: bool = False
    opening: str = ""
    draw: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    footers: tuple[str, ...] = ()
    paired: bool = False
    profiles: tuple[Profile, ...] = ()  # those of the file, while it is read

    def adapted(
        self,
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        seeds: Sequence[int] = (),
        added: Iterable[Added] = (),
        data: str = "",
    ) -> "Experiment":
        """The experiment as a command changes it.

        Args:
            rows, columns: patterns of those to keep, by label, of columns also by key; their order stays.
            seeds: in place of its own.
            added: further rows; if every column selects a grid point, those with a grid.
            data: name of the user's data; it becomes the heading, and no paper is compared.

        Raises ConfigError if a pattern matches nothing.
        """
        kept = self._fitting("columns", columns, [((column.key, column.label), column) for column in self.columns])
        own = self._fitting("rows", rows, [((row.label,), row) for row in self.rows])
        selected = all(column.select is not None for column in kept)
        for each, tuned in added:
            grids = {column.grid: tuned.grids for column in kept} if tuned else {}
            own += [replace(tuned, grids=grids)] if tuned and selected else each
        adapted = replace(self, rows=tuple(own), columns=tuple(kept), seeds=tuple(seeds) or self.seeds)
        if not data:
            return adapted
        labels = [f"{data}, {column.key}" if len(kept) > 1 else data for column in kept]
        told = {"published": (), "not_comparable": "other data"}
        kept = [replace(column, label=label, **told) for column, label in zip(kept, labels)]
        return replace(adapted, columns=tuple(kept), opening="")  # the opening is about the experiment's own data

    def _fitting(self, what: str, patterns: Sequence[str], named: Sequence[tuple[Sequence[str], Any]]) -> list[Any]:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for names, _ in named for name in names):
                where = f"{what}={pattern} matches no {what[:-1]} of {self.name}, profile={self.profile}"
                known = "; ".join(names[0] for names, _ in named)
                raise ConfigError(f"{where}: {known} (several: '{what}=ONE|OTHER')")
        return [one for names, one in named if not patterns or any(fnmatchcase(n, p) for p in patterns for n in names)]

    def problems(self) -> list[str]:
        """Errors in the names that a file uses, such as names it does not define, and in related values."""
        keys, labels = [c.key for c in self.columns], [r.label for r in self.rows]
        profiles = [one.key for one in self.profiles]
        problems = _strangers("draw", self.draw, labels, ", which is not a row")
        if self.profile not in profiles:
            there = ", ".join(profiles) or "none"
            problems.append(f"profile={self.profile!r} is unknown{near(self.profile, profiles)}; allowed: {there}")
        for one in self.profiles:
            problems += _strangers(f"profiles.{one.key}.columns", one.columns, keys)
            problems += _strangers(f"profiles.{one.key}.rows", one.rows, labels)
            if not one.seeds or not one.columns:
                problems.append(f"profiles.{one.key} needs at least one seed and one column")
        problems += [f"two rows are called {label!r}" for label, count in Counter(labels).items() if count > 1]
        for row in self.rows:
            where = f"rows.{row.label}.grids"
            problems += _strangers(where, row.grids, [c.grid for c in self.columns if c.grid], ", which no column uses")
            for grid, points in row.grids.items():
                lists = isinstance(points, Mapping) and all(isinstance(v, (list, tuple)) and v for v in points.values())
                if points != "own" and not lists:
                    problems.append(f"{where}.{grid}={points!r} must be `own` or {{parameter: [values]}}")
        for column in self.columns:
            for group in column.published:
                where = f"columns.{column.key}.published.{group.label}"
                if not len(group.metrics) == len(group.against) == len(group.headers):
                    problems.append(f"{where} needs as many `against` and labels as metrics")
                shown = [s.metric for s in column.show]
                problems += _strangers(f"{where}.against", group.against, shown, ", which is not shown")
        return problems


def read(values: Mapping[str, Any], name: str, profile: str) -> Experiment:
    """Read an experiment from a file's content (plain containers) for one of its profiles.

    Raises:
        ConfigError: there are unknown keys (each reported with the nearest known one), wrong types or undefined
            names; the message lists all errors.
    """
    values = {"seeds": (), **values, "name": name, "profile": profile}
    for group in ("columns", "profiles"):
        if isinstance(of := values.get(group), Mapping):
            values[group] = [{"key": k, **v} if isinstance(v, Mapping) else v for k, v in of.items()]
    try:
        whole = options.read(Experiment, values)
    except ConfigError as error:
        raise ConfigError(f"experiment {name}: {error}") from None
    (chosen,) = (one for one in whole.profiles if one.key == profile)
    by_key = {c.key: c for c in whole.columns}
    return replace(
        whole,
        rows=tuple(r for r in whole.rows if not chosen.rows or r.label in chosen.rows),
        seeds=chosen.seeds,
        columns=tuple(by_key[key] for key in chosen.columns),
        comparable=chosen.comparable or whole.comparable,
        not_comparable=chosen.not_comparable or whole.not_comparable,
        deviations=whole.deviations + chosen.deviations,
        footers=whole.footers + chosen.footers,
        profiles=(),
    )


def _strangers(where: str, used: Iterable[str], known: Sequence[str], which: str = "") -> list[str]:
    return [f"{where} names {name!r}{which}{near(name, known)}" for name in used if name not in known]


def unmeasured(named: Iterable[str], further: Iterable[str], metrics: Mapping[str, Metric]) -> list[str]:
    """Errors in names of metrics, `name` or `split/name`; further: test sets besides the data's own; metrics: the family's."""
    sets = ("test", "dev", "train", *further)
    problems = []
    for full in dict.fromkeys(named):
        split, slash, name = full.rpartition("/")
        if slash and split not in sets:
            problems.append(f"{full}: {split!r} is not a test set here{near(split, sets)}; allowed: {', '.join(sets)}")
        if name not in metrics:
            problems.append(f"{full}: {name!r} is not measured{near(name, metrics)}; allowed: {', '.join(metrics)}")
    return problems
