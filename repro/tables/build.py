"""Build a table as data: for each column of the experiment, our numbers next to the published ones.

As in the papers, a row shows for each column the test scores of the grid point with the best mean dev score. The
footers state the data, seeds, signatures, deviations and code version. Each row shows whether training had converged
(`convergence`). A row that has not converged, or for which this is unknown, is not compared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repro import convergence
from repro.claims.claim import Claim
from repro.claims.decide import Evidence, outcome_of
from repro.claims.outcome import Outcome
from repro.errors import ConfigError
from repro.identity import Cell, Point, Results
from repro.plan import Plan
from repro.plan.experiment import Select, unmeasured
from repro.plan.published import Numbers, Published
from repro.protocol import Metric, metric_of
from repro.statistics import Noise, mean_of
from repro.store import Store
from repro.tables import findings, footers, paired
from repro.tables.blocks import Block, Row, Table, Value, add_converged
from repro.tables.verdict import Verdict, barriers, doubts, judge, rule

UNRUN = "not run yet"


def build(
    plan: Plan,
    store: Store,
    published: Numbers | None = None,
    deviations: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    claims: Sequence[Claim] = (),
    hours: Callable[[Mapping[str, Any]], float] | None = None,
) -> Table:
    """The table of a plan's finished cells; missing and damaged cells are shown as such.

    Args:
        published: the published numbers.
        deviations: task -> scope -> texts; those that concern the experiment are listed with its own and the settings'.
        claims: the paper's claims; those about this experiment are tested on its rows.
        hours: what a cell of a configuration takes, for the rows that have not been run.
    """
    experiment = plan.experiment
    blocks = [_Column(plan, store, published or {}, number, hours).block() for number in range(len(experiment.columns))]
    from_paper = [*footers.of_settings(plan, plan.slots), *footers.of_tasks(deviations or {}, plan)]
    comparable = experiment.own or any(block.comparable for block in blocks)
    warning = "" if comparable else "; not comparable with the paper"
    outcomes = _outcomes(claims, plan, store, blocks)
    labels = {column.key: column.label for column in experiment.columns}
    return Table(
        experiment.name,
        experiment.title,
        f"profile {experiment.profile}, {footers.evidence(blocks)}{warning}",
        blocks,
        [*footers.seeds(plan, blocks), *experiment.footers, *footers.origin(blocks)],
        list(dict.fromkeys([*experiment.deviations, *([] if experiment.own else from_paper)])),
        outcomes,
        [outcome.line(labels) for outcome in outcomes if outcome.parts],
        [*footers.stuck(blocks), *footers.notes(blocks)],
    )


def _outcomes(claims: Sequence[Claim], plan: Plan, store: Store, blocks: Sequence[Block]) -> list[Outcome]:
    """The outcomes of the paper's claims on these rows. Raises ConfigError if a claim names a metric that does not exist."""
    experiment = plan.experiment
    mine = [claim for claim in claims if (claim.experiment, claim.profile) == (experiment.name, experiment.profile)]
    if not mine:
        return []
    keys = [column.key for column in experiment.columns]
    rows = {(keys[c], row.label): row for c, block in enumerate(blocks) for row in block.own if row.results}
    metrics = {name: metric for c in range(len(blocks)) for name, metric in plan.metrics(c).items()}
    further = {name for column in experiment.columns for name in column.evaluate}
    for claim in mine:
        if wrong := unmeasured(filter(None, (*claim.metrics, claim.worth_metric)), further, metrics):
            raise ConfigError(f"configs/claims/{claim.paper}.yaml, claim {claim.id}, {'; '.join(wrong)}")
    doubts: dict[str, dict[str, str]] = {}
    for (column, label), row in rows.items():
        if not row.convergence.converged:
            doubts.setdefault(column, {})[label] = row.convergence.state

    def noise(column: str, metric: str, row: str, against: str, *runs: Any) -> Noise:
        return paired.noise(rows[column, row], rows[column, against], metric, metric_of(metrics, metric), *runs)

    alike = {
        (metric, column)
        for metric in {m for claim in mine for m in claim.metrics}
        for column, block in zip(keys, blocks)
        if experiment.paired or paired.same_seeds([row for row in block.own if row.results], metric)
    }

    def scores(claim: Claim, metric: str) -> dict[str, dict[str, dict[int, float]]]:
        runs = [(*at, cell.seed, cell) for at, row in rows.items() for cell in row.results]
        if claim.grid:
            key = claim.grid if "." in claim.grid else f"mapping.{claim.grid}"
            cells = [s for s in plan.slots if experiment.rows[s.row].label in claim.rows and key in dict(s.point)]
            points = [(keys[s.column], f"{dict(s.point)[key]:g}", s.seed, s.results(store)) for s in cells]
            runs = [(column, point, seed, cell) for column, point, seed, cell in points if cell is not None]
        by_column: dict[str, dict[str, dict[int, float]]] = {}
        for column, label, seed, cell in runs:
            if metric in cell.metrics:
                by_column.setdefault(column, {}).setdefault(label, {})[seed] = cell.metrics[metric]
        return by_column

    outcomes = []
    for claim in mine:
        known = {m: scores(claim, m) for m in (*claim.metrics, claim.worth_metric) if m}
        outcomes.append(outcome_of(claim, Evidence(known, noise, doubts, metrics, bool(rows), alike)))
    return outcomes


class _Column:
    """Builds the block of one column."""

    def __init__(self, plan: Plan, store: Store, published: Numbers, number: int, hours: Any) -> None:
        self.plan, self.store, self.published, self.hours = plan, store, published, hours
        self.number, self.column, self.metrics = number, plan.experiment.columns[number], plan.metrics(number)
        self.shown = [(show.metric, metric_of(self.metrics, show.metric)) for show in self.column.show]
        self.losses: list[str] = []
        self.missing: list[str] = []

    def block(self) -> Block:
        column = self.column
        if self.number in self.plan.unavailable:
            return Block(column.label, unavailable=self.plan.unavailable[self.number])
        rows = [self._row(r) for r in range(len(self.plan.experiment.rows))]
        costs = [self._cost(r, rows) for r, row in enumerate(rows) if any(v.note == UNRUN for v in row.values)]
        first = next((cell for row in rows for cell in row.results), None)
        blanks = sum(len(group.metrics) for group in column.published)
        everything = rows + (baselines(first, dict(self.shown), column.split, blanks) if first else [])
        headers = [show.label for show in column.show]
        add_converged(everything, headers)
        reasons = dict.fromkeys(why for row in rows for v in row.verdicts if v and not v.comparable for why in v.why)
        slot = next(slot for slot in self.plan.slots if slot.column == self.number)
        facts = first.facts if first else slot.data.facts
        label = column.label
        if facts.get("stands_for") == slot.config["data"]["name"]:
            label = f"GENERATED DATA ({facts.get('name')}; the real data are unavailable), instead of: {label}"
        why = [f"Not comparable: {'; '.join(reasons)}."] if reasons else []
        below = [*footers.of_data(first, facts, column.show, self.metrics), *why, *self.missing, *costs]
        groups = [(group.label, list(group.headers)) for group in column.published]
        against = [metric for group in column.published for metric in group.against]
        alike = self.plan.experiment.paired
        block = Block(label, headers, groups, everything, self.losses, below, against=against, paired=alike)
        below += [rule([metric_of(self.metrics, full) for full in against])] * bool(groups)
        findings.find(block, self.metrics)
        return block

    def _read(self, label: str, slots: Sequence[Cell]) -> tuple[dict[str, Results], str]:
        """The stored results, as cell id -> results, and why others are not there; `losses` and `missing` have lost cells of rows that ran."""
        results: dict[str, Results] = {}
        failed: list[str] = []
        damaged = 0
        for slot in slots:
            state, stored, why = slot.found(self.store)
            if stored is not None:
                results[slot.cell_id] = stored
            elif state == "damaged":
                self.losses.append(f"{label}: {why}")
                damaged += 1
            elif state == "failed":
                point, first = _listed(slot.point), why.partition("\n")[0]
                failed.append(f"{label}{f' ({point})' if point else ''}, seed {slot.seed} failed: {first}")
        note = "failed" if failed else "missing" if results or damaged or not slots else UNRUN
        if note != UNRUN and (lost := len(slots) - len(results)):
            said = self.losses if failed else self.missing
            said.append(f"{label}: {lost} of {len(slots)} cells {'failed' if failed else 'are missing'}.")
        self.losses += failed
        return results, note

    def _cost(self, r: int, rows: Sequence[Row]) -> str:
        """What it takes to run a row: as long as the finished cells of its mapping or, if there are none, the assumed time."""
        wanted, slots = self.plan.experiment.rows, self.plan.at(r, self.number)
        times = [c.seconds for one, row in zip(wanted, rows) for c in row.results if one.mapping == wanted[r].mapping]
        cells = f"{len(slots)} cell{'s' * (len(slots) > 1)}"
        if times:
            cells += f", about {mean_of(times).mean * len(slots) / 3600:.2g} hours"
        elif self.hours:
            cells += f", about {sum(self.hours(slot.config) for slot in slots):.2g} hours (assumed)"
        return f"{wanted[r].label}: {UNRUN} ({cells})."

    def _row(self, r: int) -> Row:
        experiment, slots = self.plan.experiment, self.plan.at(r, self.number)
        row = experiment.rows[r]
        results, note = self._read(row.label, slots)
        finished, detail = select(slots, results, self.column.select)
        values = [paired.value(finished, full, metric, note) for full, metric in self.shown]
        trained = convergence.of_row(finished)
        declared = footers.declared(self.plan, slots)
        theirs: list[Published | None] = []
        verdicts: list[Verdict | None] = []
        for group in self.column.published:
            for metric, against in zip(group.metrics, group.against):
                theirs.append(printed := self.published.get((row.published, group.dataset, metric)))
                if printed is None:
                    verdicts.append(None)
                    continue
                ours = next((v.summary for v in values if v.metric == against), None)
                why = barriers(
                    experiment, self.column, row, printed, against, slots, results, self.plan.overrides, declared
                )
                unsure = doubts(slots, results, finished, against, trained)
                verdicts.append(judge(ours, printed, metric_of(self.metrics, against), why, unsure))
        return Row(row.label, detail, values, theirs, verdicts, finished, convergence=trained)


def baselines(cell: Results, shown: Mapping[str, Metric], split: str, blanks: int = 0) -> list[Row]:
    """Make a row for each baseline of a finished cell.

    Args:
        shown: `split/metric` -> metric, in the order of the columns.
        split: the test set whose outputs are described.
        blanks: the number of published columns, which stay empty.
    """
    rows = []
    for system, scores in cell.baselines.items():
        values = [
            Value(full, [] if scores.get(full) is None else [float(scores[full])], metric.decimals)
            for full, metric in shown.items()
        ]
        text, words = scores.get(f"{split}/text"), scores.get(f"{split}/words")
        detail = f"“{text}”" if text is not None else f"first {words} words" if words is not None else ""
        if system == "constant" and detail:  # a sentence from the data set, so only its length is given
            detail = f"always the same {len((text or '').split()) if words is None else words} words"
        rows.append(Row(f"{system} baseline", detail, values, [None] * blanks, [None] * blanks, baseline=True))
    return rows


def _listed(point: Point) -> str:
    return ", ".join(f"{key.removeprefix('mapping.')}={value}" for key, value in point)


def select(slots: Sequence[Cell], results: Mapping[str, Results], by: Select | None) -> tuple[list[Results], str]:
    """The results of the best grid point, and a description of that point."""
    by_point: dict[Point, list[Results]] = {}
    for slot in slots:
        finished = by_point.setdefault(slot.point, [])
        if slot.cell_id in results:
            finished.append(results[slot.cell_id])
    means: dict[Point, float] = {}
    for point, finished in by_point.items():
        if scores := [cell.metrics.get(by.metric, math.nan) if by else 0.0 for cell in finished]:
            mean = mean_of(scores).mean
            if len(by_point) == 1 or not math.isnan(mean):
                means[point] = -mean if by and by.mode == "min" else mean
    if not means:
        return [], ""
    best = max(means, key=means.__getitem__)
    detail = _listed(best)
    if len(by_point) > 1:
        detail += f", best of {len(means)} on dev"
        if len(means) < len(by_point):
            detail += f" ({len(by_point) - len(means)} without a score)"
    return by_point[best], detail
