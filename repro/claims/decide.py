"""Decide whether a claim of a paper holds on the rows of a table.

The tested quantity is the mean of a row minus that of another, with the interval of the table (`repro.statistics`): seed
by seed if runs with the same seed are alike in this table, and otherwise over all seeds of both, by Welch's t; the
variance that runs have in common over test examples is added. With two seeds, the spread is too uncertain to decide
anything.

A claim about several rows, columns and metrics must hold for each of them. It is *supported* if every one-sided test at
5 % shows it (for superiority: that the row is better at all). It is *contradicted* only if the opposite is shown for one
of them, at 5 % divided by the number of comparisons: the row is worse (superiority), worse by more than the margin
(noninferiority), or different by more than the margin (equivalence), and by more than the paper's own numbers. *Gain
excluded* is weaker: it only rules out a gain of `Claim.smallest` or more; a loss shown to be below that counts as no
more. It is *not tested* if a row was not run. Otherwise it is *inconclusive*: a test that fails to show a difference
contradicts nothing; nor does a gain below the margin. Claims are not corrected for each other.

Rows that were still learning, or whose convergence is unknown, leave a claim open only if more training could undo the
outcome: a row that is still learning can only get better. If softmax hardly leads uniform attention, no claim is supported.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Self

import numpy as np

from repro.claims.claim import RULES, UNIFORM, Claim
from repro.claims.outcome import CONTRADICTED, DECIDED, EXCLUDED, OPEN, SUPPORTED, UNTESTABLE, UNTESTED, Outcome, Part
from repro.protocol import Metric, metric_of
from repro.statistics import FEWEST, SILENT, Mean, Noise, compared, difference_of, mean_of, t_quantile

LEVEL = 0.05  # of the one-sided tests
POWER, MOST = 0.8, 100  # the chance for which `Outcome.needs` gives a number of runs, and the largest number
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]  # column -> row -> seed -> score
# (column, metric, row, against, their seeds, whether seed by seed) -> errors of the difference over test examples
Noises = Callable[[str, str, str, str, Collection[int], Collection[int], bool], Noise]


@dataclass(frozen=True)
class Evidence:
    """What the records of a table say about a claim.

    Attributes:
        scores: metric -> column -> row -> seed -> score; the rows of a claim with a `grid` are the grid's values.
        doubts: column -> row -> why its scores are not those of the end of training.
        metrics: those of the family, by name.
        cells: whether the table has any.
        alike: the pairs (metric, column) in which runs with the same seed are alike.
    """

    scores: Mapping[str, Scores]
    noise: Noises = lambda *_: SILENT
    doubts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    cells: bool = False
    alike: Collection[tuple[str, str]] = ()

    def without(self, seeds: Collection[int]) -> Self:
        """The same without some seeds; uniform attention, with which all rows are compared, keeps its seeds."""

        def left(row: str, scores: Mapping[int, float]) -> Mapping[int, float]:
            return scores if row == UNIFORM else {s: v for s, v in scores.items() if s not in seeds}

        kept = {m: {c: {r: left(r, v) for r, v in of.items()} for c, of in at.items()} for m, at in self.scores.items()}
        return replace(self, scores=kept)


def outcome_of(claim: Claim, evidence: Evidence) -> Outcome:
    """The outcome of a claim; it is not tested if a row that it names has no scores, unless the others contradict it."""
    if claim.told:
        word = UNTESTABLE if claim.untestable else UNTESTED if claim.untested else CONTRADICTED
        return Outcome(claim, word, Part(why=claim.told))
    others = (replace(claim, rows=f.rows, against=f.against or claim.against, forms=(f,)) for f in claim.forms)
    outcome = replace(_tested(claim, evidence), forms=tuple(_tested(other, evidence) for other in others))
    failed = {CONTRADICTED, EXCLUDED}
    same = failed if outcome.outcome in failed else {outcome.outcome}
    last = next((old for old in reversed(claim.history) if old.why != RULES or old.outcome not in same), None)
    if last is None or last.outcome in same or outcome.outcome == UNTESTED:
        return outcome
    new = outcome.outcome in DECIDED and bool(last.seeds)
    confirmed = new and _tested(claim, evidence.without(last.seeds)).outcome == outcome.outcome
    return replace(outcome, seen=True, confirmed=confirmed)


def _tested(claim: Claim, evidence: Evidence) -> Outcome:
    at = [c for m in claim.metrics for c in evidence.scores.get(m, {})]
    columns, than = (_named(patterns, at) for patterns in (claim.columns, claim.than))
    if not set(columns) & set(at):
        lacking = [m for m in claim.metrics if evidence.cells and not evidence.scores.get(m)]
        why = f"no finished cell has {lacking[0]}" if lacking else "no finished cells"
        return Outcome(claim, UNTESTED, Part(why=why))
    samples = [(part, sample) for m in claim.metrics for part, sample in _samples(claim, evidence, m, columns, than)]
    made = [_decided(claim, *one, len(samples), *_doubts(claim, evidence, one[0], columns)) for one in samples]
    outcome, decides = _together(made)
    metric = metric_of(evidence.metrics, decides.metric or claim.metrics[0])
    needs = _needs(claim, [sample for _, sample in samples])
    return Outcome(claim, outcome, decides, tuple(made), metric.decimals, metric.better, needs)


def _named(patterns: Sequence[str], known: Sequence[str]) -> list[str]:
    """The columns that match the patterns, and columns named in full even if they have no scores."""
    found = [c for c in known if any(fnmatch(c, pattern) for pattern in patterns)]
    return list(dict.fromkeys(found + [c for c in patterns if not set(c) & set("*?[")]))


@dataclass(frozen=True)
class _Sample:
    """The differences of one comparison, the runs of both rows that it takes, and their mean difference."""

    differences: Mapping[int, float]
    n: int
    others: int = 0  # 0 if seed by seed
    found: Mean | None = None
    spreads: Sequence[tuple[float, int]] = ()  # variance and number of runs of the differences, or of either row
    common: float = 0.0  # the part of its error that more runs do not lower
    run: bool = True  # whether all rows have scores
    ranks: Sequence[Sequence[float]] = ()  # for a trend: the scores of the rows in each block


def _samples(
    claim: Claim, evidence: Evidence, metric: str, columns: Sequence[str], than: Sequence[str]
) -> list[tuple[Part, _Sample]]:
    """The comparisons in one metric, including those with missing scores."""
    of = {c: {r: _compared(claim, v) for r, v in rows.items()} for c, rows in evidence.scores.get(metric, {}).items()}
    whole = claim.pooled or bool(than)
    groups = [list(columns)] if whole else [[c] for c in columns]
    if claim.test == "trend":
        return [_trend(claim, {c: of.get(c, {}) for c in columns}, metric)]
    made = []
    for row, other, group in itertools.product(claim.rows, claim.against, groups):
        ours, others = (_pooled(of, r, group, than) for r in (row, other))
        same = all((metric, c) in evidence.alike for c in (*group, *than))
        mine, theirs, paired = compared(ours, others, same)
        mean = float(np.mean(list(theirs.values()))) if theirs else math.nan
        differences = {s: v - (theirs[s] if paired else mean) for s, v in mine.items() if theirs}
        share = {c: len(cs) for cs in (group, than) for c in cs if differences and not claim.ratio}
        over = [(evidence.noise(c, metric, row, other, mine, theirs, paired), n) for c, n in share.items()]
        noise = Noise(*(math.hypot(*(getattr(of, k) / n for of, n in over)) for k in ("whole", "common")))
        gaps = {c: _gap(of.get(c, {}), row, other, same) for c in group if len(group) > 1 or claim.test == "most"}
        part = Part(row, "" if whole else group[0], other, metric, columns=gaps)
        found = difference_of(mine, theirs, paired, noise) if differences else None
        run, many = bool(ours and others), 0 if paired else len(theirs)
        runs = [differences] if paired else [mine, theirs]
        spreads = [(statistics.variance(of.values()), len(of)) for of in runs if len(of) > 1]
        made.append((part, _Sample(differences, len(mine), many, found, spreads, noise.common, run)))
    return made


def _pooled(scores: Scores, row: str, columns: Sequence[str], than: Sequence[str]) -> dict[int, float]:
    """Seed -> mean score of a row over `columns`, minus that over `than`; only seeds that all of them have."""
    runs = [scores.get(c, {}).get(row, {}) for c in (*columns, *than)]
    return {
        s: float(np.mean([r[s] for r in runs[: len(columns)]]))
        - (float(np.mean([r[s] for r in runs[len(columns) :]])) if than else 0.0)
        for s in sorted(set.intersection(*map(set, runs)))
    }


def _gap(rows: Mapping[str, Mapping[int, float]], row: str, other: str, same: bool) -> float:
    mine, theirs, _ = compared(rows.get(row, {}), rows.get(other, {}), same)
    return float(np.mean([*mine.values()]) - np.mean([*theirs.values()])) if mine and theirs else math.nan


def _trend(claim: Claim, scores: Scores, metric: str) -> tuple[Part, _Sample]:
    """All values of the grid in order; a block is a seed of a column."""
    values = sorted(set.intersection(*(set(at) for at in scores.values())), key=float)
    seeds = {c: sorted(set.intersection(*(set(at[v]) for v in values)) if values else ()) for c, at in scores.items()}
    ranks = [[scores[c][v][s] for v in values] for c, found in seeds.items() for s in found]
    part = Part(f"{claim.rows[0]}, {claim.grid} = {', '.join(values)}", metric=metric)
    differences = {i: line[-1] - line[0] for i, line in enumerate(ranks, 1)}
    return part, _Sample(differences, len(differences), run=bool(values), ranks=ranks)


def _compared(claim: Claim, scores: Mapping[int, float]) -> Mapping[int, float]:
    return {s: 100 * math.log(v) if v > 0 else math.nan for s, v in scores.items()} if claim.ratio else scores


def _doubts(claim: Claim, evidence: Evidence, part: Part, columns: Sequence[str]) -> tuple[str, str]:
    """Two texts: why more training could undo "supported", and why it could undo "contradicted"."""
    at = [part.column] if part.column else list(columns)

    def learning(rows: Sequence[str]) -> list[str]:
        doubts = [(evidence.doubts.get(c, {}), r) for c in at for r in rows if claim.convergence]
        return [of_column[r] for of_column, r in doubts if r in of_column]

    better = metric_of(evidence.metrics, part.metric).better  # the direction in which training moves it
    moves = better * claim.sign if claim.test in ("noninferiority", "superiority") else 0
    ours, theirs = learning(claim.rows if claim.grid else [part.row]), learning([part.against])
    support = [*(ours if moves <= 0 else []), *(theirs if moves >= 0 else [])]
    opposite = [*(ours if moves >= 0 else []), *(theirs if moves <= 0 else [])]
    worth = evidence.scores.get(claim.worth_metric or part.metric, {})
    little = [_worthless(claim, worth.get(c, {}), part.against or part.row) for c in at if claim.worth]
    support += filter(None, little)
    return " and ".join(sorted(set(support))), " and ".join(sorted(set(opposite)))


def _worthless(claim: Claim, scores: Mapping[str, Mapping[int, float]], row: str) -> str:
    """Why this column says nothing about attention (uniform attention is as good, or was not run); empty if it does."""
    first, uniform = (scores.get(r, {}) for r in (row, UNIFORM))
    if not first:
        return ""  # without scores, the comparison is open anyway
    if not uniform:
        return f"no row of {UNIFORM}, so the benefit of attention is unknown"
    sign = 1 if claim.worth_metric else claim.sign
    both = first.keys() & uniform.keys()
    worth = sign * float(np.mean([first[s] for s in both or first]) - np.mean([uniform[s] for s in both or uniform]))
    return "" if worth >= claim.worth else f"{row} is not {claim.worth:g} better than {UNIFORM} ({worth:+.1f})"


def _decided(claim: Claim, part: Part, sample: _Sample, many: int, unsure: str, unsure_opposite: str) -> Part:
    """The outcome of one of `many` comparisons of a claim."""
    differences = list(sample.differences.values())
    part = replace(part, n=sample.n, others=sample.others, differences=sample.differences)
    few = min(sample.n, sample.others or sample.n)
    if not sample.run:
        return replace(part, outcome=UNTESTED, why="not run")
    if few < 2 or not all(map(math.isfinite, differences)):
        return replace(part, why={0: "no pair of seeds", 1: "one seed"}.get(few, "a score is not a number"))
    if claim.test == "most":
        return _most(claim, part, many)
    found = sample.found or mean_of(differences)
    low, high = found.printed or (math.nan, math.nan)
    part = replace(part, effect=found.mean, low=low, high=high)
    if sample.ranks:
        rising, falling = _page(sample.ranks, claim.sign)
        return _judged(replace(part, slack=-math.log(rising)), rising, many * falling, 1.0, unsure, unsure_opposite)
    signed, (least, most) = Mean(claim.sign * found.mean, found.error, found.df), claim.inside
    slack = min(signed.mean - least, most - signed.mean) / max(found.error, 1e-300)
    part = replace(part, slack=slack, shows=found.shows, chance=_chance(claim, found.error, found.df))
    if few < FEWEST or found.certain:
        return replace(part, why="the same difference with every seed" if found.certain else "two seeds decide nothing")
    opposite, excluded = min(_p(signed, bounds) for bounds in claim.outside), 1.0
    if claim.test == "superiority":
        excluded = _p(signed, (-math.inf, claim.smallest))
        if many * _p(signed, (-claim.smallest, math.inf)) < LEVEL:  # a loss counts from where a gain counts
            opposite = 1.0
    return _judged(part, _p(signed, claim.inside), many * opposite, many * excluded, unsure, unsure_opposite)


def _judged(part: Part, supports: float, opposite: float, excluded: float, unsure: str, unsure_opposite: str) -> Part:
    """The outcome for p-values of the claim, of its opposite, and of the test that excludes a gain."""
    if supports < LEVEL and excluded < LEVEL:
        return replace(part, why="better, but by less than the margin")
    of = {SUPPORTED: supports, CONTRADICTED: opposite, EXCLUDED: excluded}
    outcome, p = next(((word, p) for word, p in of.items() if p < LEVEL), (OPEN, 1.0))
    doubt = "" if outcome == OPEN else unsure if outcome == SUPPORTED else unsure_opposite
    return replace(part, outcome=OPEN, why=doubt) if doubt else replace(part, outcome=outcome, p=p)


def _most(claim: Claim, part: Part, many: int) -> Part:
    """Whether the direction holds in more than half of the columns: a sign test, with the interval of Clopper & Pearson."""
    from scipy.stats import binomtest

    gaps = list(part.columns.values())
    holds = sum(claim.sign * gap > 0 for gap in gaps)
    above, below = (binomtest(holds, len(gaps), 0.5, way).pvalue for way in ("greater", "less"))
    low, high = binomtest(holds, len(gaps)).proportion_ci(0.95)
    effect, low, high = (100 * share for share in (holds / len(gaps), low, high))
    part = replace(part, effect=effect, low=low, high=high, n=len(gaps), others=0, slack=-math.log(above))
    return _judged(part, above, many * below, 1.0, "", "")


def _p(mean: Mean, bounds: tuple[float, float]) -> float:
    """The p-value of one-sided tests that the mean is between the bounds: the larger of the two."""
    from scipy.special import stdtr

    gaps = (bounds[0] - mean.mean, mean.mean - bounds[1])
    return float(max(stdtr(mean.df, gap / mean.error) for gap in gaps if math.isfinite(gap)))


def _chance(claim: Claim, error: float, df: float) -> float:
    """The chance that the test shows the claim if `Claim.truth` is the true difference, by the noncentral t-distribution."""
    from scipy.special import nctdtr

    room = min(claim.truth - claim.inside[0], claim.inside[1] - claim.truth) / max(error, 1e-300)
    one = 1 - float(nctdtr(df, min(room, 1e3), t_quantile(df, 1 - 2 * LEVEL)))
    return max(2 * one - 1, 0.0) if claim.test == "equivalence" else one


def _needs(claim: Claim, samples: Sequence[_Sample]) -> int:
    """The runs a row with which all comparisons show the claim with the chance `POWER` if they are independent; 0 if over
    `MOST` or unknown. Rows that have more keep them."""
    if not all(sample.spreads for sample in samples):
        return 0
    few = max(FEWEST, min(has for sample in samples for _, has in sample.spreads))
    chances = ((n, math.prod(_chance(claim, *_planned(sample, n)) for sample in samples)) for n in range(few, MOST + 1))
    return next((n for n, chance in chances if chance >= POWER), 0)


def _planned(sample: _Sample, n: int) -> tuple[float, float]:
    """The standard error and the degrees of freedom of a comparison with at least `n` runs a row."""
    parts = [(variance / max(n, has), max(n, has) - 1) for variance, has in sample.spreads]
    total, uncertain = sum(v for v, _ in parts) + sample.common**2, sum(v * v / df for v, df in parts)
    return math.sqrt(total), min(total**2 / uncertain, 1e6) if uncertain else 1e6


def _page(blocks: Sequence[Sequence[float]], sign: int) -> tuple[float, float]:
    """p-values of Page's exact tests that scores rise, and fall, from row to row. Source: Page 1963."""
    if len(blocks) < 2 or len(blocks[0]) < 3:
        return 1.0, 1.0
    from scipy.stats import page_trend_test

    data = sign * np.asarray(blocks, float)
    return page_trend_test(data, method="exact").pvalue, page_trend_test(data[:, ::-1], method="exact").pvalue


def _together(parts: Sequence[Part]) -> tuple[str, Part]:
    """The outcome of a claim about all `parts`, and the part that decides it; measures that disagree decide nothing."""
    least = sorted(parts, key=lambda p: p.slack)
    negative = [p for p in least if p.outcome in (CONTRADICTED, EXCLUDED)]
    by_metric = {p.metric for p in negative} if len({p.metric for p in parts}) > 1 else set()
    if by_metric and any(p.outcome == SUPPORTED and p.metric not in by_metric for p in parts):
        return OPEN, replace(negative[0], outcome=OPEN, why="the measures disagree")
    for word in (CONTRADICTED, EXCLUDED, UNTESTED, OPEN, SUPPORTED):
        if mine := [p for p in least if p.outcome == word]:
            return word, mine[0]
    raise AssertionError("a claim without parts")
