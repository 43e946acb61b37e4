"""Compare finished cells in a table: one row per setting, with mean and standard deviation over the setting's seeds.

A setting is everything that a cell depends on except the seed. Cells with different data, profile, recipe or scoring
are in separate rows and are never averaged. A row is named by its point in the grid of the plan that asked for its
cells; rows without a plan, or with one point, are named by what differs between them.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import yaml

from repro import convergence
from repro.cell import LOADER
from repro.errors import ConfigError, near
from repro.identity import Results
from repro.plan.experiment import Show
from repro.protocol import Metric, metric_of, parameters
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
            told = f"no finished cell has {short}={asked}{near(asked, there)}"
            raise ConfigError(f"{told}; existing: {', '.join(there[:20])}")
        records = left
    return list(records)


# ---- settings


def groups(records: Sequence[Results], points: Points = NO_PLAN) -> list[Block]:
    """A block for each task, with a row without values for each setting (`measured`); softmax comes first, then mappings in the given order."""
    by_task: dict[tuple[str, str], dict[Any, list[Results]]] = {}
    variants: dict[tuple[str, str], set[Any]] = {}
    for r in records:
        for name, what in r.scored.items():
            variants.setdefault((r.setting, name), set()).add(what)
    for r in records:
        # records with different test sets or evaluation recipes go into separate rows
        apart = tuple((n, w) for n, w in sorted(r.scored.items()) if len(variants[r.setting, n]) > 1)
        by_task.setdefault((r.config["task"]["name"], r.module), {}).setdefault((r.setting, apart), []).append(r)
    found = sorted(by_task.items())
    return [Block(task, rows=_told_apart(list(by_setting.values()), points)) for (task, _), by_setting in found]


def _told_apart(by_setting: Sequence[list[Results]], points: Points) -> list[Row]:
    """A row for each setting, named by its parameters and by what else differs."""
    rows: list[Row] = []
    at: dict[str, list[Row]] = {}
    for records in by_setting:
        first, *_ = results = sorted(records, key=lambda r: r.seed)
        own = parameters(first.config, first.family, [r.metrics for r in results])
        point = {f"mapping.{k}": v for k, v in own.items()}
        row = Row(first.config["mapping"]["name"], "", results=results, point=point)
        asked = points.get(first.cell_id, {})
        row.point |= {k: first.flat.get(k, v) for k, v in asked.items() if k not in ("mapping.name", *row.point)}
        rows.append(row)
        at.setdefault(str(asked), []).append(row)
    for of_point in at.values():
        _add_differences(of_point)
    for said, of in CONTENT.items():
        alike: dict[str, list[Row]] = {}
        for row in rows:
            alike.setdefault(row.label + listed(row.point), []).append(row)
        for twins in alike.values():
            if len({of(row.results[0]) for row in twins}) > 1:
                for row in twins:
                    row.point[said] = of(row.results[0])
    for row in rows:
        row.detail = listed(row.point)
    given = list(dict.fromkeys(["softmax", *(row.label for row in rows)]))

    def place(row: Row) -> tuple[int, list[tuple[int, float, str]]]:
        values = [(0, float(v), "") if is_number(v) else (1, 0.0, str(v)) for v in row.point.values()]
        return given.index(row.label), values

    return sorted(rows, key=place)


def _add_differences(rows: Sequence[Row]) -> None:
    """Add to each row's point the options in which the rows differ."""
    flats = [row.results[0].flat for row in rows]
    keys, absent = dict.fromkeys(k for flat in flats for k in flat if k != "seed"), object()
    varied = [k for k in keys if len({str(flat.get(k, absent)) for flat in flats}) > 1]
    for row, flat in zip(rows, flats):
        own = {"mapping.name", *row.point}
        if search := getattr(row.results[0].family, "SEARCH", ""):  # only the searched values of this mapping
            own |= {k for k in varied if k.startswith(search) and not k.startswith(f"{search}.{row.label}.")}
        # an architecture's own keys follow from its name, unless its settings differ in them
        same = [other for other in flats if other.get("model.name") == flat.get("model.name")]
        implied = {k for k in varied if k.startswith("model.") and len({str(f.get(k, absent)) for f in same}) == 1}
        own |= implied - {"model.name"}
        row.point |= {k: flat[k] for k in varied if k in flat and k not in own}


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- the table


def table(
    grouped: Sequence[Block], name: str, title: str, notes: Sequence[str] = (), lost: Sequence[Lost] = ()
) -> Table:
    """The settings of `groups` as a table; cells without a result are listed."""
    blocks = [measured(group) for group in grouped]
    cells = {r.cell_id for group in grouped for row in group.rows for r in row.results}
    many = sum(len(group.rows) for group in grouped)
    last = ["Mean ± standard deviation over runs.", *footers.trained(blocks), *notes, *footers.origin(blocks)]
    cells_of = f"{len(cells)} of {len(cells) + len(lost)} cells finished" if lost else f"{len(cells)} finished cells"
    subtitle = f"{cells_of}, {many} settings; " * (len(cells) + len(lost) > 1) + footers.evidence(blocks)
    return Table(name, title, subtitle, blocks, last, alerts=[*told(lost, len(cells)), *footers.stuck(blocks)])


def measured(group: Block) -> Block:
    """A block of `groups` with the values of its rows, baselines and footers."""
    rows = [replace(row) for row in group.rows]
    metrics, shown, notes = rows[0].results[0].family.METRICS, _shown(rows), []
    for row in rows:
        row.values = [paired.value(row.results, full, metric_of(metrics, full)) for full in shown]
        row.convergence = convergence.of_row(row.results)
        fewer: dict[int, list[str]] = {}
        for value in row.values:
            if (runs := len(value.runs)) not in (0, len(row.results)):
                fewer.setdefault(runs, []).append(value.metric)
        told = f"{row.label} ({row.detail}): only {{}} of its {len(row.results)} cells have {{}}."
        notes += [told.format(runs, ", ".join(full)) for runs, full in fewer.items()]
    data = _data(rows)
    below, trivial = _of_data(data, shown, metrics)
    everything = rows + trivial
    headers = list(shown.values())
    add_converged(everything, headers)
    seeds = {tuple(sorted(r.seed for r in row.results)) for row in rows}
    if len(seeds) == 1:
        notes.append(f"Seeds: {', '.join(map(str, next(iter(seeds))))}.")
    else:
        notes.append("The settings do not have the same seeds; runs.csv lists them.")
    block = Block(group.label, headers, [], everything, [], [*below, *notes])
    if len(data) == 1:  # scores on different data are not compared
        findings.find(block, metrics)
    return block


def _shown(rows: Sequence[Row]) -> dict[str, str]:
    """`split/metric` -> header: zeros and support of the attention, the dev score that selected the best epoch, the scores of each test set."""
    known = list(dict.fromkeys(m for row in rows for r in row.results for m in r.metrics))
    metrics = rows[0].results[0].family.METRICS
    of_kinds = {header: [m for m in known if m.endswith(f"/{name}")] for name, header in ATTENTION}
    shown = {next((m for m in of if m.startswith("test/")), of[0]): header for header, of in of_kinds.items() if of}
    best = dict.fromkeys(f"dev/{(row.results[0].config.get('train') or {}).get('best_metric')}" for row in rows)
    scores = [m for m in best if m in known] or [
        m for m in known if m.startswith("dev/") and metric_of(metrics, m).better
    ][:1]
    for split in dict.fromkeys(m.rpartition("/")[0] for m in known):
        if split not in ("dev", "train", ""):
            names = [n for n, m in metrics.items() if m.better and n not in NOT_SHOWN]
            scores += [f"{split}/{n}" for n in names if f"{split}/{n}" in known][:MOST_SCORES]
    return {**shown, **{m: m for m in scores}}


def _data(rows: Sequence[Row]) -> list[tuple[Row, Results]]:
    """The different data of the rows: the first row of each, with the test sets that other rows have too."""
    kinds: list[tuple[Row, Results]] = []
    for row in rows:
        for r in row.results:
            for i, (first, of) in enumerate(kinds):
                if r.data_sha256 == of.data_sha256 and all(of.scored.get(k, v) == v for k, v in r.scored.items()):
                    both: dict[str, Any] = {k: {**getattr(r, k), **getattr(of, k)} for k in MERGED}
                    systems = {k: {**r.baselines.get(k, {}), **of.baselines.get(k, {})} for k in both["baselines"]}
                    kinds[i] = first, replace(of, **both | {"baselines": systems})
                    break
            else:
                kinds.append((row, r))
    return kinds


def _of_data(
    data: Sequence[tuple[Row, Results]], shown: Mapping[str, str], metrics: Mapping[str, Metric]
) -> tuple[list[str], list[Row]]:
    """The footers (sizes, sources and omissions) and baseline rows for each data set, without repetitions."""
    lines: list[str] = []
    trivial: list[Row] = []
    known = {full: metric_of(metrics, full) for full in shown}
    scores = [full for full, metric in known.items() if metric.better]
    first = next(iter(scores), "test/")
    split = next((full for full in scores if not full.startswith("dev/")), first).partition("/")[0]
    columns = [Show(metric, header) for metric, header in shown.items()]
    for row, of in data:
        apart = f"Of {row.label} ({row.detail}): " if len(data) > 1 else ""
        told = footers.of_data(of, of.facts, columns, metrics)
        lines += [f"{apart if one.startswith(('Data: ', 'Test set')) else ''}{one}" for one in told]
        if not of.facts:
            lines.append(f"{apart}The records do not say how large the data are.")
        for system in baselines(of, known, split):
            system.detail = "; ".join(filter(None, (system.detail, f"data {of.data_sha256[:8]}" if apart else "")))
            trivial.append(system)
    return list(dict.fromkeys(lines)), trivial
