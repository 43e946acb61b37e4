"""Compare finished cells in a table: one row per setting, with mean and standard deviation over the setting's seeds.

A setting is everything that a cell depends on except the seed. Cells with different data, profile, recipe or scoring
are in separate rows and are never averaged. A row is named by its point in the grid of the plan that asked for its
cells; rows without a plan, or with one point, are named by what differs between them.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeGuard

import yaml

from repro import convergence
from repro.cell import LOADER
from repro.errors import ConfigError, near
from repro.identity import Results
from repro.plan.experiment import Show
from repro.protocol import Metric, metric_of, parameters
from repro.statistics import Mean, mean_of
from repro.tables import findings, footers, paired
from repro.tables.blocks import Block, Row, Table, add_converged
from repro.tables.build import baselines

ATTENTION = (("attention_zeros", "zeros"), ("attention_support", "support"))
NAMED = ("task", "mapping", "data", "model", "optim", "schedule", "profile")  # nodes that a filter compares by name
MERGED = ("scored", "tests", "signatures", "baselines")  # fields of `Results` by test set
NOT_SHOWN = ("loss", "ppl")
MOST_LOST = 12  # maximum number of cells without a result that are listed below the table
Points = Mapping[str, Mapping[str, Any]]  # id of a cell -> its point in the grid of a plan: dotted key -> value
NO_PLAN: Points = {}
MOST_SCORES = 4  # maximum number of scores per test set in the table; runs.csv has all scores
CONTENT: dict[str, Callable[[Results], Any]] = {  # names of differences between settings of the same configuration
    "data content": lambda r: r.data_sha256[:8],
    "training recipe": lambda r: r.recipe,
    "plugins": lambda r: ",".join(r.plugins),
    "test sets": lambda r: ",".join(f"{n} {w.sha256[:8]} v{w.recipe}" for n, w in sorted(r.scored.items())),
}


@dataclass
class Setting:
    """Cells that differ only in their seed.

    `differs` has what names this setting besides the mapping and its parameters, as dotted key -> value.
    """

    records: list[Results]
    differs: dict[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Results:
        return self.records[0]

    @property
    def mapping(self) -> str:
        return self.first.config["mapping"]["name"]

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The mapping's parameters."""
        return parameters(self.first.config, self.first.family, [r.metrics for r in self.records])

    @property
    def detail(self) -> str:
        """The setting's parameters and differences as text."""
        return listed(self.values)

    @property
    def values(self) -> dict[str, Any]:
        """The setting's parameters and differences, as dotted key -> value."""
        return {**{f"mapping.{k}": v for k, v in self.parameters.items()}, **self.differs}

    @property
    def own(self) -> set[str]:
        """The keys that need not be added to the name."""
        return {"mapping.name", *self.values}

    def summary(self, metric: str) -> Mean | None:
        scores = [r.metrics[metric] for r in self.records if metric in r.metrics]
        return mean_of(scores) if scores else None

    @property
    def seeds(self) -> list[int]:
        return sorted(r.seed for r in self.records)


@dataclass(frozen=True)
class Lost:
    """A cell of a sweep that has no result.

    Attributes:
        point: the values that tell it from the sweep's other cells, as text.
        state: "failed", or what else became of it. why: the reason, in one line; may be empty.
        place: column and row of an experiment's table.
    """

    cell_id: str
    task: str
    mapping: str
    point: Mapping[str, Any]
    seed: int
    state: str
    why: str = ""
    place: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        place = f"{self.task}: {self.mapping}{f' ({listed(self.point)})' if self.point else ''}, seed {self.seed}"
        return f"{place}: {': '.join(filter(None, (self.state, self.why)))}"


def told(lost: Sequence[Lost], finished: int) -> list[str]:
    """Sentences on the cells without a result, beside `finished` cells that have one."""
    failed = sum(one.state == "failed" for one in lost)
    total = f"of {finished + len(lost)} cells"
    counts = [f"{failed} {total} failed"] * bool(failed)
    counts += [f"{len(lost) - failed} {total} without a result"] * (len(lost) > failed)
    more = [f"and {len(lost) - MOST_LOST} more; manifest.json lists them."] * (len(lost) > MOST_LOST)
    return [f"WARNING: {', '.join(counts)}."] * bool(lost) + [one.text for one in lost[:MOST_LOST]] + more


@dataclass
class Group:
    """The settings of one task, and the choice of the metrics to show."""

    task: str
    settings: list[Setting]

    @property
    def cells(self) -> list[Results]:
        return [r for s in self.settings for r in s.records]

    def of(self, seed: int) -> "Group | None":
        """The cells with this seed, or None if there are none."""
        settings = [replace(s, records=[r for r in s.records if r.seed == seed]) for s in self.settings]
        return Group(self.task, found) if (found := [s for s in settings if s.records]) else None

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return self.cells[0].family.METRICS

    @cached_property
    def measured(self) -> list[str]:
        """Every `split/metric` that at least one cell has."""
        return list(dict.fromkeys(m for r in self.cells for m in r.metrics))

    @cached_property
    def scores(self) -> list[str]:
        """The dev score that selected the best epoch, then the scores of each test set in the family's order."""
        best = dict.fromkeys(f"dev/{(s.first.config.get('train') or {}).get('best_metric')}" for s in self.settings)
        shown = [m for m in best if m in self.measured] or [
            m for m in self.measured if m.startswith("dev/") and self.metric(m).better
        ][:1]
        for split in dict.fromkeys(m.rpartition("/")[0] for m in self.measured):
            if split not in ("dev", "train", ""):
                names = [n for n, m in self.metrics.items() if m.better and n not in NOT_SHOWN]
                shown += [f"{split}/{n}" for n in names if f"{split}/{n}" in self.measured][:MOST_SCORES]
        return shown

    @property
    def score(self) -> str | None:
        """The score to use in plots: the first score of a test set, or else the dev score."""
        return next((m for m in self.scores if not m.startswith("dev/")), next(iter(self.scores), None))

    @cached_property
    def attention(self) -> dict[str, str]:
        """`split/metric` -> header for zeros and support, from the test set if measured there, or else from dev."""
        by_header = {header: [m for m in self.measured if m.endswith(f"/{name}")] for name, header in ATTENTION}
        return {next((m for m in of if m.startswith("test/")), of[0]): header for header, of in by_header.items() if of}

    def metric(self, full: str) -> Metric:
        return metric_of(self.metrics, full)


def text(value: Any) -> str:
    """A value from a configuration as text, in the syntax of an override."""
    if isinstance(value, float):
        return f"{value:.12g}"  # as `_plain`: two values have two texts
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def listed(values: Mapping[str, Any]) -> str:
    """Options, as dotted key -> value, in one line."""
    return ", ".join(f"{key.removeprefix('mapping.')}={text(value)}" for key, value in values.items())


# ---- selection of cells


def conditions(filters: Mapping[str, str]) -> dict[str, Callable[[Any], bool]]:
    """Turn filters (`task=toy`, `mapping.lam=0.1,0.5`, `seed=[1,2]`) into key -> function that tests a value."""
    return {key: _test(wanted) for key, wanted in filters.items()}


def _test(wanted: str) -> Callable[[Any], bool]:
    values = [*wanted.strip("[]").split(","), wanted]
    told = {_plain(v) for one in values for v in (one, yaml.load(one, LOADER))}
    return lambda value: _plain(value) in told


def _plain(value: Any) -> str:
    """A value as text. Numbers get 12 digits, however they are written (YAML 1.1 reads 1e-05 as text)."""
    with contextlib.suppress(TypeError, ValueError):
        return f"{float(value):.12g}" if not isinstance(value, bool) else text(value)
    return text(value)


def fitting(records: Sequence[Results], filters: Mapping[str, str]) -> list[Results]:
    """The records that pass the filters; task=toy is short for task.name=toy, and the same holds for the other nodes.

    Raises:
        ConfigError: no record has a key (the message names the nearest known key) or a value (the message lists the
            existing values).
    """
    known = dict.fromkeys(k for r in records for k in r.flat)
    for key, test in conditions({f"{k}.name" if k in NAMED else k: v for k, v in filters.items()}).items():
        short = key.removesuffix(".name")
        if key not in known:
            likely = [k.removesuffix(".name") for k in known]
            raise ConfigError(f"{short} is unknown to these cells{near(short, likely)}")
        left = [r for r in records if key in r.flat and test(r.flat[key])]
        if not left:
            there = sorted({text(r.flat[key]) for r in records if key in r.flat})
            asked = filters.get(short, filters.get(key))
            raise ConfigError(
                f"no finished cell has {short}={asked}{near(asked, there)}; existing: {', '.join(there[:20])}"
            )
        records = left
    return list(records)


# ---- settings


def groups(records: Sequence[Results], points: Points = NO_PLAN) -> list[Group]:
    """Group the records into settings, and the settings by task; softmax comes first, then mappings in the given order."""
    by_task: dict[tuple[str, str], dict[Any, list[Results]]] = {}
    variants: dict[tuple[str, str], set[Any]] = {}
    for r in records:
        for name, what in r.scored.items():
            variants.setdefault((r.setting, name), set()).add(what)
    for r in records:
        # records with different test sets or evaluation recipes go into separate rows
        apart = tuple((n, w) for n, w in sorted(r.scored.items()) if len(variants[r.setting, n]) > 1)
        by_task.setdefault((r.config["task"]["name"], r.module), {}).setdefault((r.setting, apart), []).append(r)
    return [Group(task, _told_apart(list(found.values()), points)) for (task, _), found in sorted(by_task.items())]


def _told_apart(by_setting: Sequence[list[Results]], points: Points) -> list[Setting]:
    settings = [Setting(sorted(records, key=lambda r: r.seed)) for records in by_setting]
    at: dict[str, list[Setting]] = {}
    for s in settings:
        point = points.get(s.first.cell_id, {})
        s.differs = {key: s.first.flat.get(key, value) for key, value in point.items() if key not in s.own}
        at.setdefault(str(point), []).append(s)
    for of_point in at.values():
        _add_differences(of_point)
    for said, of in CONTENT.items():
        alike: dict[str, list[Setting]] = {}
        for s in settings:
            alike.setdefault(s.mapping + s.detail, []).append(s)
        for twins in alike.values():
            if len({of(s.first) for s in twins}) > 1:
                for s in twins:
                    s.differs[said] = of(s.first)
    given = list(dict.fromkeys(["softmax", *(s.mapping for s in settings)]))

    def place(s: Setting) -> tuple[int, list[tuple[int, float, str]]]:
        values = [(0, float(v), "") if is_number(v) else (1, 0.0, str(v)) for v in s.values.values()]
        return given.index(s.mapping), values

    return sorted(settings, key=place)


def _add_differences(settings: Sequence[Setting]) -> None:
    """Add to `differs` the options in which settings differ."""
    keys = dict.fromkeys(k for s in settings for k in s.first.flat if k != "seed")
    absent = object()
    varied = [k for k in keys if len({str(s.first.flat.get(k, absent)) for s in settings}) > 1]
    for s in settings:
        own = s.own
        if search := getattr(s.first.family, "SEARCH", ""):  # only the searched values of this mapping
            own |= {k for k in varied if k.startswith(search) and not k.startswith(f"{search}.{s.mapping}.")}
        # an architecture's own keys follow from its name, unless its settings differ in them
        same = [o.first.flat for o in settings if o.first.flat.get("model.name") == s.first.flat.get("model.name")]
        implied = {k for k in varied if k.startswith("model.") and len({str(f.get(k, absent)) for f in same}) == 1}
        own |= implied - {"model.name"}
        s.differs |= {k: s.first.flat[k] for k in varied if k in s.first.flat and k not in own}


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- the table


def table(
    grouped: Sequence[Group], name: str, title: str, notes: Sequence[str] = (), lost: Sequence[Lost] = ()
) -> Table:
    """The settings as a table, with one block per task and one row per setting; cells without a result are listed."""
    blocks = [_block(group) for group in grouped]
    cells = {r.cell_id for group in grouped for r in group.cells}
    many = sum(len(g.settings) for g in grouped)
    last = ["Mean ± standard deviation over runs.", *footers.trained(blocks), *notes, *footers.origin(blocks)]
    cells_of = f"{len(cells)} of {len(cells) + len(lost)} cells finished" if lost else f"{len(cells)} finished cells"
    subtitle = f"{cells_of}, {many} settings; " * (len(cells) + len(lost) > 1) + footers.evidence(blocks)
    return Table(name, title, subtitle, blocks, last, alerts=[*told(lost, len(cells)), *footers.stuck(blocks)])


def _block(group: Group) -> Block:
    shown = {**group.attention, **{m: m for m in group.scores}}
    rows, notes = [], []
    for s in group.settings:
        values = [paired.value(s.records, metric, group.metric(metric)) for metric in shown]
        fewer: dict[int, list[str]] = {}
        for value in values:
            if (runs := len(value.runs)) not in (0, len(s.records)):
                fewer.setdefault(runs, []).append(value.metric)
        told = f"{s.mapping} ({s.detail}): only {{}} of its {len(s.records)} cells have {{}}."
        notes += [told.format(runs, ", ".join(metrics)) for runs, metrics in fewer.items()]
        trained = convergence.of_row(s.records)
        rows.append(Row(s.mapping, s.detail, values, [], [], list(s.records), convergence=trained))
    data = _data(group)
    below, trivial = _of_data(group, data, shown)
    everything = rows + trivial
    headers = list(shown.values())
    add_converged(everything, headers)
    seeds = {tuple(s.seeds) for s in group.settings}
    if len(seeds) == 1:
        notes.append(f"Seeds: {', '.join(map(str, next(iter(seeds))))}.")
    else:
        notes.append("The settings do not have the same seeds; runs.csv lists them.")
    block = Block(group.task, headers, [], everything, [], [*below, *notes])
    if len(data) == 1:  # scores on different data are not compared
        findings.find(block, group.metrics)
    return block


def _data(group: Group) -> list[tuple[Setting, Results]]:
    """The different data of the settings: the first setting of each, with the test sets that other settings have too."""
    kinds: list[tuple[Setting, Results]] = []
    for setting in group.settings:
        for r in setting.records:
            for i, (first, of) in enumerate(kinds):
                if r.data_sha256 == of.data_sha256 and all(of.scored.get(k, v) == v for k, v in r.scored.items()):
                    both: dict[str, Any] = {k: {**getattr(r, k), **getattr(of, k)} for k in MERGED}
                    systems = {k: {**r.baselines.get(k, {}), **of.baselines.get(k, {})} for k in both["baselines"]}
                    kinds[i] = first, replace(of, **both | {"baselines": systems})
                    break
            else:
                kinds.append((setting, r))
    return kinds


def _of_data(
    group: Group, data: Sequence[tuple[Setting, Results]], shown: Mapping[str, str]
) -> tuple[list[str], list[Row]]:
    """The footers (sizes, sources and omissions) and baseline rows for each data set, without repetitions."""
    lines: list[str] = []
    trivial: list[Row] = []
    split = (group.score or "test/").partition("/")[0]
    columns = [Show(metric, header) for metric, header in shown.items()]
    for s, of in data:
        apart = f"Of {s.mapping} ({s.detail}): " if len(data) > 1 else ""
        told = footers.of_data(of, of.facts, columns, group.metrics)
        lines += [f"{apart if one.startswith(('Data: ', 'Test set')) else ''}{one}" for one in told]
        if not of.facts:
            lines.append(f"{apart}The records do not say how large the data are.")
        for row in baselines(of, {metric: group.metric(metric) for metric in shown}, split):
            row.detail = "; ".join(filter(None, (row.detail, f"data {of.data_sha256[:8]}" if apart else "")))
            trivial.append(row)
    return list(dict.fromkeys(lines)), trivial
