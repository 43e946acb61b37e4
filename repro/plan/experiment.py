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
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

from repro.identity import near
from repro.protocol import Metric


class ExperimentError(ValueError):
    """An experiment file is invalid; the message lists all errors."""


@dataclass(frozen=True)
class Show:
    """One of our metrics that a column shows."""

    metric: str
    label: str


@dataclass(frozen=True)
class Select:
    """How to choose a grid point: by the largest (`max`) or smallest (`min`) mean of `metric` over the seeds."""

    metric: str
    mode: str = "max"


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


@dataclass(frozen=True)
class _Profile:
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[str, ...] = ()
    comparable: bool = False
    not_comparable: str = ""
    deviations: tuple[str, ...] = ()
    footers: tuple[str, ...] = ()


def read(values: Mapping[str, Any], name: str, profile: str) -> Experiment:
    """Read an experiment from a file's content (plain containers) for one of its profiles.

    Raises:
        ExperimentError: there are unknown keys (each reported with the nearest known one), wrong types or undefined
            names; the message lists all errors.
    """
    problems: list[str] = []
    values = {"seeds": (), **values, "name": name, "profile": profile}
    named = dict(values.pop("profiles", None) or {})
    profiles = {k: typed(_Profile, v, f"profiles.{k}", problems) for k, v in named.items()}
    columns = values.get("columns")
    if isinstance(columns, Mapping):
        values["columns"] = [{"key": k, **v} if isinstance(v, Mapping) else v for k, v in columns.items()]
    whole = typed(Experiment, values, "", problems)
    if profile not in profiles:
        problems.append(
            f"profile={profile!r} is unknown{near(profile, profiles)}; allowed: {', '.join(profiles) or 'none'}"
        )
    if whole is not None:
        problems += _loose_ends(whole, {k: v for k, v in profiles.items() if v is not None})
    chosen = profiles.get(profile)
    if problems or whole is None or chosen is None:
        raise ExperimentError(f"experiment {name}: " + "; ".join(problems))
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
    )


def _loose_ends(whole: Experiment, profiles: Mapping[str, _Profile]) -> list[str]:
    """Errors in the names that a file uses, such as names it does not define, and in related values."""
    keys, labels = [c.key for c in whole.columns], [r.label for r in whole.rows]
    problems = _strangers("draw", whole.draw, labels, ", which is not a row")
    for key, one in profiles.items():
        problems += _strangers(f"profiles.{key}.columns", one.columns, keys)
        problems += _strangers(f"profiles.{key}.rows", one.rows, labels)
        if not one.seeds or not one.columns:
            problems.append(f"profiles.{key} needs at least one seed and one column")
    problems += [f"two rows are called {label!r}" for label, count in Counter(labels).items() if count > 1]
    for row in whole.rows:
        where = f"rows.{row.label}.grids"
        problems += _strangers(where, row.grids, [c.grid for c in whole.columns if c.grid], ", which no column uses")
        for grid, points in row.grids.items():
            lists = isinstance(points, Mapping) and all(isinstance(v, (list, tuple)) and v for v in points.values())
            if points != "own" and not lists:
                problems.append(f"{where}.{grid}={points!r} must be `own` or {{parameter: [values]}}")
    for column in whole.columns:
        if column.select is not None and column.select.mode not in ("max", "min"):
            problems.append(f"columns.{column.key}.select.mode={column.select.mode!r} is invalid; allowed: max, min")
        for group in column.published:
            where = f"columns.{column.key}.published.{group.label}"
            if not len(group.metrics) == len(group.against) == len(group.headers):
                problems.append(f"{where} needs as many `against` and labels as metrics")
            shown = [s.metric for s in column.show]
            problems += _strangers(f"{where}.against", group.against, shown, ", which is not shown")
    return problems


def _strangers(where: str, used: Iterable[str], known: Sequence[str], which: str = "") -> list[str]:
    return [f"{where} names {name!r}{which}{near(name, known)}" for name in used if name not in known]


def check(column: Column, metrics: Mapping[str, Metric]) -> list[str]:
    """Errors in the metrics that a column names; `metrics` are those of the task's family."""
    sets = ("test", "dev", "train", *column.evaluate)
    problems = []
    for full in dict.fromkeys([*(s.metric for s in column.show), *([column.select.metric] if column.select else [])]):
        split, slash, name = full.rpartition("/")
        if slash and split not in sets:
            problems.append(
                f"{full}: {split!r} is not a test set of this column{near(split, sets)}; allowed: {', '.join(sets)}"
            )
        if name not in metrics:
            problems.append(f"{full}: {name!r} is not measured{near(name, metrics)}; allowed: {', '.join(metrics)}")
    return problems


def typed(cls: Any, values: Any, where: str, problems: list[str]) -> Any:
    """Make a `cls` (a dataclass) from a plain mapping; adds any errors to `problems` and then returns None."""
    said = len(problems)
    if not isinstance(values, Mapping):
        problems.append(f"{where or 'the file'} must be a mapping, not {values!r}")
        return None
    known = {f.name: f for f in fields(cls)}
    label = values.get("key") or values.get("label")
    prefix = f"{where}.{label}." if label else f"{where}." if where else ""
    problems += [
        f"{prefix}{k} is unknown{near(k, known)}; allowed: {', '.join(known)}" for k in values if k not in known
    ]
    found, hints = {}, get_type_hints(cls)
    for key, one in known.items():
        if key in values:
            found[key] = _value(hints[key], values[key], f"{prefix}{key}", problems)
        elif one.default is MISSING and one.default_factory is MISSING:
            problems.append(f"{prefix}{key} must be given")
    return cls(**found) if len(problems) == said else None


def _value(hint: Any, value: Any, where: str, problems: list[str]) -> Any:
    """Convert `value` to a field's type `hint`: text, number, tuple[..., ...], mapping, one of these dataclasses, None."""
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Mapping: "a mapping"}
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
            problems.append(f"{where}={value!r} must be a list")
            return ()
        flat = [v for one in value for v in (one if isinstance(one, list) else [one])]  # an anchor's list within a list
        return tuple(_value(inner[0], v, where, problems) for v in flat)
    of = Mapping if get_origin(hint) is Mapping else inner[0] if inner else hint  # X | None
    if is_dataclass(of):
        return typed(of, value, where, problems)
    if not isinstance(value, (int, float) if of is float else of) or (isinstance(value, bool) and of in (int, float)):
        problems.append(f"{where}={value!r} must be {names[of]}")
    return value
