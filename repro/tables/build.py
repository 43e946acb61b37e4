"""Build a table as data: for each column of the experiment, our numbers next to the published ones.

As in the papers, a row shows for each column the test scores of the grid point with the best mean dev score. The
footers state the data, seeds, signatures, deviations and code version. Each row shows whether training had converged
(`convergence`). A row that has not converged, or for which this is unknown, is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from repro import convergence
from repro.identity import Cell, Found, Point
from repro.plan import Plan
from repro.plan import published as pub
from repro.plan.experiment import Column, Select, Show
from repro.protocol import Metric, metric_of
from repro.store import Damaged, Store
from repro.tables import findings, footers, paired
from repro.tables.blocks import Block, Row, Table, Value, add_converged
from repro.tables.claims import Claim
from repro.tables.decide import Evidence, Outcome, outcome_of
from repro.tables.learning import doubt
from repro.tables.statistics import holm, summarize
from repro.tables.verdict import Verdict, barriers, doubts, judge


def build(
    plan: Plan,
    store: Store,
    records: Sequence[Mapping[str, Any]] = (),
    failed: Mapping[str, str] | None = None,
    deviations: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    claims: Sequence[Claim] = (),
) -> Table:
    """The table of a plan's finished cells; missing and damaged cells are shown as such.

    Args:
        records: the published numbers.
        failed: cell id -> error, for cells that failed in this run.
        deviations: task -> scope -> texts; those that concern the experiment are listed with its own and the settings'.
        claims: the paper's claims; those about this experiment are tested on its rows.
    """
    one = plan.experiment
    columns = [_Column(plan, store, records, failed or {}, c, column) for c, column in enumerate(one.columns)]
    blocks = [column.block() for column in columns]
    from_paper = [] if one.own else [*footers.of_settings(plan), *footers.of_tasks(deviations or {}, plan)]
    listed = list(dict.fromkeys([*one.deviations, *from_paper]))
    warning = (
        "" if one.own or any(b.comparable for b in blocks) else "; its numbers are not comparable with the paper's"
    )
    labels, tested = {c.key: c.label for c in one.columns}, _tested(claims, plan, store, blocks)
    lines = [outcome.line(labels) for outcome in tested if outcome.parts]
    last = [*footers.seeds(plan, blocks), *one.footers, *footers.notes(blocks), *footers.origin(blocks)]
    return Table(one.name, one.title, f"profile {one.profile}{warning}", blocks, last, listed, tested, lines)


def _tested(claims: Sequence[Claim], plan: Plan, store: Store, blocks: Sequence[Block]) -> list[Outcome]:
    """The outcomes of the paper's claims on these rows."""
    one = plan.experiment
    mine = [claim for claim in claims if (claim.experiment, claim.profile) == (one.name, one.profile)]
    shown = [(c, row) for c, block in enumerate(blocks) for row in block.rows if mine]
    rows = {(c, row.label): row for c, row in shown if row.results and not row.baseline}
    keys = [column.key for column in one.columns]
    known = {name: m for c in range(len(blocks)) for name, m in plan.metrics(c).items()}
    trained = {(s.column, one.rows[s.row].label): s.config.get("train") or {} for s in plan.slots}
    doubts: dict[str, dict[str, str]] = {}
    for at, row in rows.items():
        if why := doubt(row.convergence, row.results, str(trained[at].get("best_metric")), known):
            doubts.setdefault(keys[at[0]], {})[at[1]] = why

    def errors(column: str, metric: str, row: str, against: str, *seeds: Collection[int]) -> float:
        first, second = (rows[keys.index(column), label] for label in (row, against))
        return paired.error(first, second, metric, metric_of(known, metric), seeds)

    def scores(claim: Claim, metric: str) -> dict[str, dict[str, dict[int, float]]]:
        runs = [(c, label, s, f) for (c, label), row in rows.items() for s, f in zip(row.seeds, row.results)]
        if claim.grid:
            of = [s for s in plan.slots if one.rows[s.row].label in claim.rows and claim.grid in dict(s.point)]
            points = [(s.column, f"{dict(s.point)[claim.grid]:g}", s.seed, s.found(store)) for s in of]
            runs = [(column, point, seed, f) for column, point, seed, f in points if f is not None]
        found: dict[str, dict[str, dict[int, float]]] = {}
        for c, label, seed, f in runs:
            if metric in f.metrics:
                found.setdefault(keys[c], {}).setdefault(label, {})[seed] = f.metrics[metric]
        return found

    made = []
    for claim in mine:
        metrics = [*claim.metrics, *([claim.worth_metric] if claim.worth_metric else [])]
        better, decimals = ({m: getattr(metric_of(known, m), k) or 0 for m in metrics} for k in ("better", "decimals"))
        evidence = Evidence({m: scores(claim, m) for m in metrics}, errors, doubts, better, decimals)
        made.append(outcome_of(claim, evidence))
    return made


class _Column:
    """Builds the block of one column."""

    def __init__(
        self, plan: Plan, store: Store, records, failed: Mapping[str, str], number: int, column: Column
    ) -> None:
        self.plan, self.store, self.records, self.failed = plan, store, records, failed
        self.number, self.column = number, column
        self.metrics = plan.metrics(number)
        self.slots = [plan.at(r, number) for r in range(len(plan.experiment.rows))]
        self.losses: list[str] = []
        self.found = [self._read(row.label, slots) for row, slots in zip(plan.experiment.rows, self.slots)]
        self.shown = list(column.show)

    def block(self) -> Block:
        if self.number in self.plan.unavailable:
            return Block(self.column.label, unavailable=self.plan.unavailable[self.number])
        rows = [self._row(r) for r in range(len(self.slots))]
        self._test(rows)
        everything = rows + self._baselines(rows)
        headers = [s.label for s in self.shown]
        add_converged(everything, headers)
        reasons = dict.fromkeys(why for row in rows for v in row.verdicts if v and not v.comparable for why in v.why)
        slot = next(s for group in self.slots for s in group)
        facts = next((f.facts for row in rows for f in row.results), slot.data.facts)
        label = self.column.label
        if facts.get("stands_for") == slot.config["data"]["name"]:
            label = f"GENERATED DATA ({facts.get('name')}; the real data are unavailable), instead of: {label}"
        why = [f"Not comparable: {'; '.join(reasons)}."] if reasons else []
        below = [*footers.of_data(rows, facts, self.shown, self.metrics), *why, *self.losses]
        groups = [(g.label, list(g.headers)) for g in self.column.published]
        against = [metric for group in self.column.published for metric in group.against]
        block = Block(label, headers, groups, everything, below, against=against)
        below += footers.of_comparison(block, self.metrics)
        findings.find(block, self.metrics)
        return block

    def _test(self, rows: Sequence[Row]) -> None:
        """Test every converged row against the first row, with Holm's correction over the rows of each metric."""
        compared = [row for row in rows[1:] if row.results and row.convergence.converged]
        if not compared or not rows[0].results or not rows[0].convergence.converged:
            return
        for i, show in enumerate(self.shown):
            known = metric_of(self.metrics, show.metric)
            tests = {"examples": paired.by_examples} | ({"seeds": paired.by_seeds} if known.better else {})
            for kind, test in tests.items():
                found = {r: test(rows[0], row, show.metric, known) for r, row in enumerate(compared)}
                for r, p in holm({r: p for r, p in found.items() if p is not None}).items():
                    compared[r].values[i].p_values[kind] = p

    def _metric(self, show: Show) -> Metric:
        """The metric of a shown number, with the direction, decimals and unit that the experiment sets."""
        said = {k: v for k in ("better", "decimals", "unit") if (v := getattr(show, k)) is not None}
        return replace(metric_of(self.metrics, show.metric), **said)

    def _read(self, label: str, slots: Sequence[Cell]) -> dict[str, Found]:
        """Read the stored results, as cell id -> results; missing and damaged cells are reported in `losses`."""
        found: dict[str, Found] = {}
        for slot in slots:
            try:
                stored = slot.found(self.store)
            except Damaged as error:
                self.losses.append(f"{label}: {error}")
                continue
            if stored is not None:
                found[slot.cell_id] = stored
        if lost := len(slots) - len(found):
            how = "failed" if any(s.cell_id in self.failed for s in slots) else "are missing"
            self.losses.append(f"{label}: {lost} of {len(slots)} cells {how}.")
        return found

    def _row(self, r: int) -> Row:
        row, slots, found = self.plan.experiment.rows[r], self.slots[r], self.found[r]
        chosen, detail = select(slots, found, self.column.select)
        finished = [found[s.cell_id] for s in chosen]
        broken = any(s.cell_id in self.failed for s in slots)
        note = "failed" if broken else "missing"
        values = [paired.value(finished, show.metric, self._metric(show), note) for show in self.shown]
        trained = convergence.together([convergence.of(s.config, f, self.metrics) for s, f in zip(chosen, finished)])
        declared = footers.declared(self.plan, slots)
        theirs: list[pub.Published | None] = []
        verdicts: list[Verdict | None] = []
        for group in self.column.published:
            for metric, against in zip(group.metrics, group.against):
                printed = pub.lookup(self.records, row.published, group.dataset, metric)
                ours = next((v.summary for v in values if v.metric == against), None)
                theirs.append(printed)
                if printed is None:
                    verdicts.append(None)
                    continue
                one, by_hand = self.plan.experiment, self.plan.overrides
                why = barriers(one, self.column, row, printed, against, slots, found, by_hand, declared)
                unsure = doubts(slots, chosen, found, against, trained)
                verdicts.append(judge(ours, printed, metric_of(self.metrics, against), why, unsure))
        return Row(
            row.label, detail, values, theirs, verdicts, finished, convergence=trained, seeds=[s.seed for s in chosen]
        )

    def _baselines(self, rows: Sequence[Row]) -> list[Row]:
        """The baselines stored with the first finished cell."""
        first = next((f for row in rows for f in row.results), None)
        shown = {s.metric: self._metric(s).decimals for s in self.shown}
        blanks = sum(len(g.metrics) for g in self.column.published)
        return baselines(first, shown, self.column.split, blanks) if first else []


def baselines(cell: Found, shown: Mapping[str, int], split: str, blanks: int = 0) -> list[Row]:
    """Make a row for each baseline of a finished cell.

    Args:
        shown: `split/metric` -> decimals, in the order of the columns.
        split: the test set whose outputs are described.
        blanks: the number of published columns, which stay empty.
    """
    made = []
    for system, scores in cell.baselines.items():
        values = [
            Value(metric, [] if scores.get(metric) is None else [float(scores[metric])], decimals)
            for metric, decimals in shown.items()
        ]
        detail = _trivial(system, scores.get(f"{split}/text"), scores.get(f"{split}/words"))
        nothing: list[Any] = [None] * blanks
        made.append(Row(f"{system} baseline", detail, values, nothing, nothing, baseline=True))
    return made


def _trivial(system: str, text: str | None, words: int | None) -> str:
    """Describe a baseline's output; a constant output is a sentence from the data set, so only its length is given."""
    if system == "constant" and (text is not None or words is not None):
        count = len(text.split()) if words is None and text is not None else words
        return f"always the same {count} words"
    return f"“{text}”" if text is not None else f"first {words} words" if words is not None else ""


def select(slots: Sequence[Cell], results: Mapping[str, Found], by: Select | None) -> tuple[list[Cell], str]:
    """The finished slots of the best grid point, and a description of that point."""
    by_point: dict[Point, list[Cell]] = {}
    for slot in slots:
        by_point.setdefault(slot.point, []).append(slot)
    best: tuple[float, Point] | None = None
    compared = 0
    for point, members in by_point.items():
        finished = [results[s.cell_id] for s in members if s.cell_id in results]
        scores = [f.metrics.get(by.metric, math.nan) for f in finished] if by else [0.0] * len(finished)
        if not scores or (math.isnan(mean := summarize(scores).mean) and len(by_point) > 1):
            continue
        compared += 1
        signed = -mean if by and by.mode == "min" else mean
        if best is None or signed > best[0]:
            best = (signed, point)
    if best is None:
        return [], ""
    detail = ", ".join(f"{key}={value}" for key, value in best[1])
    if len(by_point) > 1:
        detail += f", best of {compared} on dev"
        if compared < len(by_point):
            detail += f" ({len(by_point) - compared} without a score)"
    return [s for s in by_point[best[1]] if s.cell_id in results], detail
