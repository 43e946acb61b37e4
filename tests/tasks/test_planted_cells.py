"""Recorded cells changed by hand, and what the claims must say of them; every interval and outcome is computed again here."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from repro.results import archive
from repro.tables import build as tables
from repro.tables.decide import CONTRADICTED, OPEN, SUPPORTED
from tasks.commands import recorded, reproduce
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request

SCENE = 12  # scores without values for each example
SUMMARY = 27  # scores with such values, and training by epochs
CURVES = {"rested": [40.0, 42.0, 42.5, 42.4, 42.45, 42.4], "learning": [40.0, 41.0, 42.0, 43.0, 44.0, 45.0]}


class Planted:
    """The records of a table, and one claim on them."""

    def __init__(self, name: str, paper: str, number: int, columns: tuple[str], read: str, **changes) -> None:
        asked, self.records = archive.read(recorded.file_of(name, "cpu"))
        part = ["profile=cpu", f"columns={columns[0]}", f"rows={read}"]
        self.slots = reproduce.outlined(Request.read([*part, *asked["arguments"]], REPRODUCE, [name]))
        (claim,) = (c for c in compose.claims(paper) if c.id == number)
        self.claim = replace(claim, columns=columns, history=(), **changes)
        one, cells = self.slots
        self.places = {(one.rows[c.row].label, c.seed): archive.key(c.config, c.family) for c in cells}

    def copied(self) -> dict:
        """Fresh copies of all records, (row, seed) -> record, to be changed; those of other columns have no place here."""
        return {at: copy.deepcopy(one) for one in self.records for at, key in self.places.items() if one["key"] == key}

    def part(self, cells: dict, **changes):
        """The outcome of the claim's only comparison, if these are the records."""
        known = [{**one, "key": self.places[at]} for at, one in cells.items()]
        with recorded.restored(*self.slots, known) as (plan, store):
            (outcome,) = tables.build(plan, store, claims=[replace(self.claim, **changes)]).claims
        (part,) = outcome.parts
        assert part.outcome == outcome.outcome
        return part

    def score(self, one: dict) -> float:
        return scores(one)[self.claim.metrics[0]]

    def differences(self, cells: dict) -> list[float]:
        (row,), (other,) = self.claim.rows, self.claim.against
        seeds = sorted({s for r, s in cells if r == row} & {s for r, s in cells if r == other})
        return [self.score(cells[row, s]) - self.score(cells[other, s]) for s in seeds]

    def error(self, cells: dict, seeds) -> float:
        """Standard error of the mean difference over these seeds when the test examples are drawn again."""
        name = self.claim.metrics[0].removeprefix("test/")
        (row,), (other,) = self.claim.rows, self.claim.against
        of = [archive._columns(cells[r, s]["tests"]["test"]["examples"]).get(name) for r in (row, other) for s in seeds]
        if None in of:
            return 0.0
        each = np.array(of, float).reshape(2, len(seeds), -1).mean(1)
        return float(stats.sem(each[0] - each[1]))


def scores(one: dict) -> dict:
    return one["tests"]["test"]["scored"]["metrics"]


@pytest.fixture(scope="module")
def scene():
    rows = "softmax+log|sparsemax+hinge"
    return Planted("laha2018_table3", "laha2018", SCENE, ("scene",), rows, rows=("sparsemax+hinge",))


@pytest.fixture(scope="module")
def summary():
    table, rows = "niculae2017_table2", "softmax|sparsemax|fusedmax"
    planted = Planted(table, "niculae2017", SUMMARY, ("reuters",), rows, worth=0.0, experiment=table, paired=True)
    for one in planted.records:  # these records are older than the curves
        one["curve"] = {"metric": planted.slots[1][0].config["train"]["best_metric"], "dev": CURVES["rested"]}
    return planted


@pytest.mark.parametrize("added, word", [(0.0, CONTRADICTED), (0.05, SUPPORTED), (0.02, OPEN)])
def test_a_constant_added_to_a_row_changes_the_outcome_of_an_equivalence(scene, added, word):
    """The differences are -.067 with a margin of .05: .05 brings the row within it."""
    cells = scene.copied()
    d = np.add(scene.differences(cells), added)
    for seed in (4, 5, 6):
        scores(cells["sparsemax+hinge", seed])["test/f1"] += added
    part = scene.part(cells)
    assert part.outcome == word
    assert ends(part) == pytest.approx((np.mean(d), *stats.ttest_1samp(d, 0).confidence_interval(0.95)))


def ends(part):
    return part.effect, part.low, part.high


def test_half_a_point_more_supports_a_superiority_and_two_points_less_contradict_it(summary):
    words = {}
    for added in (0.0, 0.5, -2.0):
        cells = summary.copied()
        for seed in (1, 2, 3):
            scores(cells["sparsemax", seed])["test/rouge1_f"] += added
        part, d = summary.part(cells), summary.differences(cells)
        of_seeds, of_examples = np.var(d, ddof=1) / 3, summary.error(cells, (1, 2, 3)) ** 2
        df = 2 * ((of_seeds + of_examples) / of_seeds) ** 2
        half = stats.t.ppf(0.975, df) * np.sqrt(of_seeds + of_examples)
        assert ends(part) == pytest.approx((np.mean(d), np.mean(d) - half, np.mean(d) + half), rel=1e-3)
        words[added] = part.outcome
    assert words == {0.0: OPEN, 0.5: SUPPORTED, -2.0: CONTRADICTED}


def test_a_missing_seed_leaves_the_pairs_that_both_rows_have(summary):
    cells = summary.copied()
    del cells["sparsemax", 2]
    part = summary.part(cells)
    d = summary.differences(cells)
    assert list(part.differences) == [1, 3] and list(part.differences.values()) == pytest.approx(d)
    half = stats.norm.ppf(0.975) * summary.error(cells, (1, 3))  # two seeds: over test examples
    assert ends(part) == pytest.approx((np.mean(d), part.effect - half, part.effect + half), rel=1e-4)
    for lost, why, n in ((3, "one seed", 1), (1, "no pair of seeds", 0)):
        del cells["softmax", lost]
        part = summary.part(cells)
        assert (part.outcome, part.why, part.n) == (OPEN, why, n)


def test_all_runs_count_where_seeds_are_not_paired(summary):
    """Which number a seed has changes nothing; the spreads of both rows count."""
    cells = summary.copied()
    swap = {("softmax", 1): cells["softmax", 2], ("softmax", 2): cells["softmax", 1]}
    mine, theirs = ([summary.score(cells[row, s]) for s in (1, 2, 3)] for row in ("sparsemax", "softmax"))
    part, other = summary.part(cells, paired=False), summary.part({**cells, **swap}, paired=False)
    assert (part.n, part.others, part.effect) == (3, 3, pytest.approx(np.mean(mine) - np.mean(theirs)))
    assert ends(other) == pytest.approx(ends(part))
    spread = [np.var(of, ddof=1) / 3 for of in (mine, theirs)]
    total = sum(spread) + summary.error(cells, (1, 2, 3)) ** 2
    half = stats.t.ppf(0.975, total**2 / sum(v * v / 2 for v in spread)) * np.sqrt(total)
    assert ends(part)[1:] == pytest.approx((part.effect - half, part.effect + half), rel=1e-3)


def test_a_row_that_still_learns_leaves_the_claim_open_where_that_could_undo_it(summary):
    """Half a point more supports the claim; that softmax still learns could undo it, that sparsemax does could not."""
    supported = summary.copied()
    for seed in (1, 2, 3):
        scores(supported["sparsemax", seed])["test/rouge1_f"] += 0.5
    learning = (OPEN, "still learning")
    for row, said in (("sparsemax", (SUPPORTED, "")), ("softmax", learning)):
        cells = copy.deepcopy(supported)
        for seed in (1, 2, 3):
            cells[row, seed]["curve"]["dev"] = CURVES["learning"]
        part = summary.part(cells)
        assert (part.outcome, part.why, part.n) == (*said, 3), row
    del supported["softmax", 2]["curve"]  # its best epoch was the last
    assert summary.part(supported).why == "convergence not known"
