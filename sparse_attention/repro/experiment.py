"""An experiment as it stands in `configs/experiment/<name>.yaml`, typed and checked when it is read.

    title, paper            what it repeats
    published               name of the page with the printed numbers
    rows:     - {label, published, mapping, overrides: [...], grids: {<column's grid>: own | {parameter: [values]}}}
    columns:  key: {label, overrides: [...], grid, evaluate: [data sets], select: {metric, mode},
                    show: [{metric, label, decimals, unit, better}], not_comparable: why,
                    published: [{label, dataset, metrics, against, labels}]}
    profiles: demo: {columns: [keys], rows: [labels], seeds: [1, 2], comparable: true, not_comparable: why,
                     deviations: [...], footers: [...]}

`overrides` are the configuration's. A row with a grid becomes one cell a point and column; `select` keeps, per column,
the point with the best mean dev score over the seeds, as the papers did. `own` is the grid of the mapping's page.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from sparse_attention.repro.protocol import Metric


class ExperimentError(ValueError):
    """Everything that is wrong with an experiment's page, collected."""


def _many(of: type, default: Any = ()) -> Any:
    return field(default=default, metadata={"many": of})


@dataclass(frozen=True)
class Show:
    """A number of ours that a column shows; what is None here is as its `Metric` says."""

    metric: str
    label: str
    decimals: int | None = field(default=None, metadata={"one": int})
    unit: str | None = None
    better: int | None = field(default=None, metadata={"one": int})


@dataclass(frozen=True)
class Select:
    """What chooses among the points of a grid: the largest (`max`) or smallest (`min`) mean over seeds."""

    metric: str
    mode: str = "max"


@dataclass(frozen=True)
class PublishedGroup:
    """Printed numbers shown beside ours: `metrics` of the printed `dataset`, each held `against` a metric of ours."""

    label: str
    dataset: str
    metrics: tuple[str, ...] = _many(str, MISSING)
    against: tuple[str, ...] = _many(str, MISSING)
    labels: tuple[str, ...] = _many(str)

    @property
    def headers(self) -> tuple[str, ...]:
        return self.labels or self.metrics


@dataclass(frozen=True)
class Row:
    """A mapping with its settings; `published` is its label in the paper ("": the paper has no such row)."""

    label: str
    mapping: str
    published: str = ""
    overrides: tuple[str, ...] = _many(str)
    grids: Mapping[str, Any] = field(default_factory=dict, metadata={"one": Mapping})

    @property
    def changes(self) -> tuple[str, ...]:
        return (f"mapping={self.mapping}", *self.overrides)


@dataclass(frozen=True)
class Column:
    """A task and its data; `evaluate` names further test sets, `not_comparable` says why it never gets a verdict."""

    key: str
    label: str
    show: tuple[Show, ...] = _many(Show, MISSING)
    overrides: tuple[str, ...] = _many(str)
    grid: str = ""
    evaluate: tuple[str, ...] = _many(str)
    select: Select | None = field(default=None, metadata={"one": Select})
    published: tuple[PublishedGroup, ...] = _many(PublishedGroup)
    not_comparable: str = ""

    @property
    def split(self) -> str:
        """The test set whose scores come first, e.g. `test` or `duc2004`."""
        return next((s.metric.partition("/")[0] for s in self.show), "test")


@dataclass(frozen=True)
class Experiment:
    """Rows by columns by seeds under one profile."""

    name: str
    profile: str
    title: str
    rows: tuple[Row, ...] = _many(Row, MISSING)
    columns: tuple[Column, ...] = _many(Column, MISSING)
    seeds: tuple[int, ...] = _many(int, MISSING)
    paper: str = ""
    published: str = ""
    comparable: bool = field(default=False, metadata={"one": bool})
    not_comparable: str = ""
    deviations: tuple[str, ...] = _many(str)
    footers: tuple[str, ...] = _many(str)


@dataclass(frozen=True)
class _Profile:
    columns: tuple[str, ...] = _many(str, MISSING)
    seeds: tuple[int, ...] = _many(int, MISSING)
    rows: tuple[str, ...] = _many(str)
    comparable: bool = field(default=False, metadata={"one": bool})
    not_comparable: str = ""
    deviations: tuple[str, ...] = _many(str)
    footers: tuple[str, ...] = _many(str)


def read(values: Mapping[str, Any], name: str, profile: str) -> Experiment:
    """The experiment of a page (plain containers) under one of its profiles.

    Raises:
        ExperimentError: unknown keys (with the nearest known one), wrong types, names that point nowhere; all of them.
    """
    problems: list[str] = []
    values = dict(values)
    profiles = {
        k: _take(_Profile, v, f"profiles.{k}", problems) for k, v in dict(values.pop("profiles", None) or {}).items()
    }
    columns = values.get("columns")
    if isinstance(columns, Mapping):
        values["columns"] = [{"key": k, **v} if isinstance(v, Mapping) else v for k, v in columns.items()]
    page = _take(
        Experiment, values | {"name": name, "profile": profile, "seeds": values.get("seeds", ())}, "", problems
    )
    if profile not in profiles:
        problems.append(
            f"there is no profile {profile!r}{near(profile, profiles)}; there are: {', '.join(profiles) or 'none'}"
        )
    if page is not None:
        problems += _loose_ends(page, {k: v for k, v in profiles.items() if v is not None})
    chosen = profiles.get(profile)
    if problems or page is None or chosen is None:
        raise ExperimentError(f"experiment {name}: " + "; ".join(problems))
    by_key = {c.key: c for c in page.columns}
    return Experiment(
        name, profile, page.title, tuple(r for r in page.rows if not chosen.rows or r.label in chosen.rows),
        tuple(by_key[key] for key in chosen.columns), chosen.seeds, page.paper, page.published,
        chosen.comparable or page.comparable, chosen.not_comparable or page.not_comparable,
        page.deviations + chosen.deviations, page.footers + chosen.footers,
    )  # fmt: skip


def _loose_ends(page: Experiment, profiles: Mapping[str, _Profile]) -> list[str]:
    """Names that a page uses and does not define."""
    found = []
    keys, labels = [c.key for c in page.columns], [r.label for r in page.rows]
    for key, one in profiles.items():
        found += [f"profiles.{key}.columns names {c!r}{near(c, keys)}" for c in one.columns if c not in keys]
        found += [f"profiles.{key}.rows names {r!r}{near(r, labels)}" for r in one.rows if r not in labels]
        if not one.seeds or not one.columns:
            found.append(f"profiles.{key} needs at least one seed and one column")
    found += [f"two rows are called {label!r}" for label in dict.fromkeys(labels) if labels.count(label) > 1]
    grids = [c.grid for c in page.columns if c.grid]
    for row in page.rows:
        for grid, points in row.grids.items():
            if grid not in grids:
                found.append(f"rows.{row.label}.grids names {grid!r}, which is no column's grid{near(grid, grids)}")
            lists = isinstance(points, Mapping) and all(isinstance(v, (list, tuple)) and v for v in points.values())
            if points != "own" and not lists:
                found.append(f"rows.{row.label}.grids.{grid}={points!r} must be `own` or {{parameter: [values]}}")
    for column in page.columns:
        shown = [s.metric for s in column.show]
        if column.select is not None and column.select.mode not in ("max", "min"):
            found.append(f"columns.{column.key}.select.mode={column.select.mode!r} is not possible; allowed: max, min")
        for group in column.published:
            where = f"columns.{column.key}.published.{group.label}"
            if not len(group.metrics) == len(group.against) == len(group.headers):
                found.append(f"{where} needs as many `against` and labels as metrics")
            found += [
                f"{where} is held against {a!r}, which is not shown{near(a, shown)}"
                for a in group.against
                if a not in shown
            ]
    return found


def check(column: Column, metrics: Mapping[str, Metric]) -> list[str]:
    """What is wrong with the metrics that a column names, given those of its family."""
    sets = ("test", "dev", "train", *column.evaluate)
    found = []
    for full in dict.fromkeys([*(s.metric for s in column.show), *([column.select.metric] if column.select else [])]):
        split, slash, name = full.rpartition("/")
        if slash and split not in sets:
            found.append(f"{full}: {split!r} is no set of this column{near(split, sets)}; allowed: {', '.join(sets)}")
        if name not in metrics:
            found.append(f"{full}: {name!r} is not measured{near(name, metrics)}; measured are: {', '.join(metrics)}")
    return found


def _take(cls: Any, values: Any, where: str, problems: list[str]) -> Any:
    """An instance of `cls` from a plain mapping; None when something is wrong, which is then in `problems`."""
    said = len(problems)
    if not isinstance(values, Mapping):
        problems.append(f"{where or 'the page'} must be a mapping, not {values!r}")
        return None
    known = {f.name: f for f in fields(cls)}
    label = values.get("key") or values.get("label")
    prefix = f"{where}.{label}." if label else f"{where}." if where else ""
    problems += [
        f"{prefix}{k} is unknown{near(k, known)}; allowed: {', '.join(known)}" for k in values if k not in known
    ]
    found = {}
    for key, one in known.items():
        if key in values:
            found[key] = _value(one.metadata, values[key], f"{prefix}{key}", problems)
        elif one.default is MISSING and one.default_factory is MISSING:
            problems.append(f"{prefix}{key} must be given")
    return cls(**found) if len(problems) == said else None


def _value(metadata: Mapping[str, Any], value: Any, where: str, problems: list[str]) -> Any:
    if "many" not in metadata:
        return _one(metadata.get("one", str), value, where, problems)
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        problems.append(f"{where}={value!r} must be a list")
        return ()
    return tuple(_one(metadata["many"], v, where, problems) for v in value)


def _one(of: Any, value: Any, where: str, problems: list[str]) -> Any:
    if of in (Show, Select, PublishedGroup, Row, Column):
        return _take(of, value, where, problems)
    if not isinstance(value, of) or (isinstance(value, bool) and of is int):
        names = {str: "text", int: "a whole number", bool: "true or false", Mapping: "a mapping"}
        problems.append(f"{where}={value!r} must be {names[of]}")
    return value


def near(word: Any, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing."""
    found = difflib.get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
