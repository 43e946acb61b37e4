"""Decide whether a claim of a paper holds on the rows of a table.

The tested quantity is the mean of a row minus that of another, over all seeds of both. The test is Welch's t, with the
variance from drawing other test examples added; the degrees of freedom are Satterthwaite's. If the claim says so
(`paired`), differences are taken seed by seed, because runs with one seed were timed together or share their data.
Otherwise, two runs with the same seed are taken as unrelated: the seed draws different initial weights for two models. With two seeds, the spread is too uncertain to decide anything.

A claim about several rows, columns and metrics must hold for each of them. It is *supported* if every one-sided test at
5 % shows it (for superiority: that the row is better at all). It is *contradicted* only if the opposite is shown for one
of them, at 5 % divided by the number of comparisons: the row is worse (superiority), worse by more than the margin
(noninferiority), or different by more than the margin (equivalence), and by more than the paper's own numbers. *Gain
excluded* is weaker: it only rules out a gain of `Claim.smallest` or more. It is *not tested* if a row was not run.
Otherwise it is *inconclusive*: a test that fails to show a difference contradicts nothing; nor does a gain below the
margin. Claims are not corrected for each other.

Rows that were still learning, or whose convergence is unknown, leave a claim open only if more training could undo the
outcome: a row that is still learning can only get better. If softmax hardly leads uniform attention, no claim is supported.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Self

import numpy as np

from repro.claims.claim import UNIFORM, Claim
from repro.protocol import Metric, metric_of
from repro.statistics import FEWEST, Mean, difference_of, interval, mean_of

SUPPORTED, CONTRADICTED, EXCLUDED = "supported", "contradicted", "gain excluded"
OPEN, UNTESTED, UNTESTABLE = "inconclusive", "not tested", "cannot be tested"
DECIDED = (SUPPORTED, CONTRADICTED, EXCLUDED)
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]  # column -> row -> seed -> score
# (column, metric, row, against, their seeds) -> standard error of the difference over test examples
Errors = Callable[[str, str, str, str, Collection[int], Collection[int]], float]


@dataclass(frozen=True)
class Evidence:
    """What the records of a table say about a claim.

    Attributes:
        scores: metric -> column -> row -> seed -> score; the rows of a claim with a `grid` are the grid's values.
        doubts: column -> row -> why its scores are not those of the end of training.
        metrics: those of the family, by name.
        cells: whether the table has any.
    """

    scores: Mapping[str, Scores]
    errors: Errors = lambda *_: 0.0
    doubts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    cells: bool = False

    def without(self, seeds: Collection[int]) -> Self:
        """The same without some seeds; uniform attention, with which all rows are compared, keeps its seeds."""

        def left(row: str, scores: Mapping[int, float]) -> Mapping[int, float]:
            return scores if row == UNIFORM else {s: v for s, v in scores.items() if s not in seeds}

        kept = {
            m: {c: {r: left(r, of) for r, of in rows.items()} for c, rows in at.items()}
            for m, at in self.scores.items()
        }
        return replace(self, scores=kept)


@dataclass(frozen=True)
class Part:
    """One comparison; numbers are NaN where there is none.

    Attributes:
        column: the column, or "" for all of them.
        effect, low, high: mean difference and its 95 % interval, in the metric's unit; with fewer than `FEWEST` seeds,
            the interval covers the test examples alone. NaN if unknown. For the test `most`, per cent of columns.
        n, others: seeds of the row, and of `against` if they are not paired; of `most`, columns.
        shows: the smallest true effect that the test would show with a chance of 80 %.
        differences: seed -> score minus that of `against` with the same seed, or minus their mean.
        columns: column -> mean difference, for a pooled claim.
        slack: standard errors between the effect and the nearest bound of `Claim.inside`.
    """

    row: str = ""
    column: str = ""
    against: str = ""
    metric: str = ""
    outcome: str = OPEN
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    others: int = 0
    why: str = ""
    shows: float = math.nan
    differences: Mapping[int, float] = field(default_factory=dict)
    columns: Mapping[str, float] = field(default_factory=dict)
    slack: float = -math.inf

    @property
    def seeds(self) -> str:
        return f"{self.n}" + (f" and {self.others}" if self.others not in (0, self.n) else "")

    @property
    def known(self) -> tuple[float, float] | None:
        """The interval, or None if it is not known."""
        return (self.low, self.high) if math.isfinite(self.low) else None

    def measured(self, decimals: int) -> str:
        """The effect with its interval; empty if there is none."""
        if math.isnan(self.effect):
            return ""
        return f"{self.effect:+.{decimals}f}{interval(self.known, min(self.n, self.others or self.n), decimals)}"

    def numbers(self, decimals: int) -> str:
        """The effect with its interval and seeds, and why it decides nothing."""
        if math.isnan(self.effect):
            return self.why
        return f"{self.measured(decimals)}, n = {self.seeds}" + (f"; {self.why}" if self.why else "")

    def text(self, decimals: int) -> str:
        return f"{self.outcome} ({self.numbers(decimals)})"


@dataclass(frozen=True)
class Outcome:
    """A claim with its outcome.

    Attributes:
        part: the comparison that decides, the one with the least evidence for the claim.
        decimals, better: those of the metric that decides.
        seen: the outcome depends on a change made after its records were seen.
        confirmed: seeds that had not been seen then give the same outcome.
    """

    claim: Claim
    outcome: str
    part: Part
    parts: tuple[Part, ...] = ()
    decimals: int = 2
    better: int = 0
    seen: bool = False
    confirmed: bool = False

    @property
    def counts(self) -> bool:
        """Whether the claim counts as decided."""
        return self.outcome in DECIDED and (self.confirmed or not self.seen)

    def line(self, labels: Mapping[str, str]) -> str:
        """The outcome in one sentence; labels: column -> label."""
        said: dict[str, list[str]] = {}
        for part in self.parts:
            where = f" on {labels[part.column].partition(';')[0]}" if part.column and len(labels) > 1 else ""
            text = part.numbers if part.outcome == self.outcome else part.text
            said.setdefault(text(self.decimals), []).append(f"{part.row}{where}")
        each = "; ".join(f"{', '.join(who)}: {text}" for text, who in said.items())
        word, one = "not decided" if self.outcome == OPEN else self.outcome, self.claim
        here = f"; here: {one.here}" * bool(one.here)
        asked = f"{one.place}{here}; {', '.join(one.metrics)}{one.compared(' against ')}, {one.asks}"
        return f"Claim {one.id} {word}: “{one.claim}” ({asked}). {each}."


def outcome_of(claim: Claim, known: Evidence) -> Outcome:
    """The outcome of a claim; it is not tested if a row that it names has no scores, unless the others contradict it."""
    if claim.told:
        word = UNTESTABLE if claim.untestable else UNTESTED if claim.untested else CONTRADICTED
        return Outcome(claim, word, Part(why=claim.told))
    outcome = _tested(claim, known)
    last = claim.history[-1] if claim.history else None
    if last is None or outcome.outcome in (last.outcome, UNTESTED):
        return outcome
    new = outcome.outcome in DECIDED and bool(last.seeds)
    confirmed = new and _tested(claim, known.without(last.seeds)).outcome == outcome.outcome
    return replace(outcome, seen=True, confirmed=confirmed)


def _tested(claim: Claim, known: Evidence) -> Outcome:
    at = [c for m in claim.metrics for c in known.scores.get(m, {})]
    columns, than = (_named(patterns, at) for patterns in (claim.columns, claim.than))
    if not set(columns) & set(at):
        lacking = [m for m in claim.metrics if known.cells and not known.scores.get(m)]
        return Outcome(
            claim, UNTESTED, Part(why=f"no finished cell has {lacking[0]}" if lacking else "no finished cells")
        )
    samples = [(part, sample) for m in claim.metrics for part, sample in _samples(claim, known, m, columns, than)]
    made = [_decided(claim, *one, 0.05 / len(samples), *_doubts(claim, known, one[0], columns)) for one in samples]
    outcome, decides = _together(made)
    metric = metric_of(known.metrics, decides.metric or claim.metrics[0])
    return Outcome(claim, outcome, decides, tuple(made), metric.decimals, metric.better)


def _named(patterns: Sequence[str], known: Sequence[str]) -> list[str]:
    """The columns that match the patterns, and columns named in full even if they have no scores."""
    found = [c for c in known if any(fnmatch(c, pattern) for pattern in patterns)]
    return list(dict.fromkeys(found + [c for c in patterns if not set(c) & set("*?[")]))


@dataclass(frozen=True)
class _Sample:
    """The differences of one comparison; if not paired, the deviations of `against` from its mean; the error over examples."""

    differences: Mapping[int, float]
    theirs: Sequence[float] = ()
    error: float = 0.0
    run: bool = True  # whether all rows have scores
    ranks: Sequence[Sequence[float]] = ()  # for a trend: the scores of the rows in each block


def _samples(
    claim: Claim, known: Evidence, metric: str, columns: Sequence[str], than: Sequence[str]
) -> list[tuple[Part, _Sample]]:
    """The comparisons in one metric, including those with missing scores."""
    of = {c: {r: _compared(claim, v) for r, v in rows.items()} for c, rows in known.scores.get(metric, {}).items()}
    whole = claim.pooled or bool(than)
    groups = [list(columns)] if whole else [[c] for c in columns]
    if claim.test == "trend":
        return [_trend(claim, {c: of.get(c, {}) for c in group}, metric) for group in groups]
    made = []
    pairs = zip(claim.rows, claim.against) if claim.pairs else itertools.product(claim.rows, claim.against or ("",))
    for (row, other), group in itertools.product(pairs, groups):
        mine, theirs = (_pooled(of, r, group, than) for r in (row, other))
        if not claim.against:
            theirs = dict(_compared(claim, dict.fromkeys(mine, claim.value or 0.0)))
        if claim.paired or not claim.against:
            seeds = (sorted(mine.keys() & theirs.keys()),) * 2
            differences, rest = {s: mine[s] - theirs[s] for s in seeds[0]}, []
        else:
            seeds = sorted(mine), sorted(theirs)
            mean = float(np.mean(list(theirs.values()))) if theirs else math.nan
            differences = {s: mine[s] - mean for s in seeds[0] if theirs}
            rest = [v - mean for v in theirs.values()]
        share = {c: len(cs) for cs in (group, than) for c in cs if other and differences and not claim.ratio}
        error = math.hypot(*(known.errors(c, metric, row, other, *seeds) / n for c, n in share.items()))
        gaps = {c: _gap(of.get(c, {}), row, other, claim.paired) for c in group if len(group) > 1}
        part = Part(row, "" if whole else group[0], other, metric, columns=gaps)
        made.append((part, _Sample(differences, rest, error, bool(mine and theirs))))
    return made


def _pooled(scores: Scores, row: str, columns: Sequence[str], than: Sequence[str]) -> dict[int, float]:
    """Seed -> mean score of a row over `columns`, minus that over `than`; only seeds that all of them have."""
    runs = [scores.get(c, {}).get(row, {}) for c in (*columns, *than)]
    return {
        s: float(np.mean([r[s] for r in runs[: len(columns)]]))
        - (float(np.mean([r[s] for r in runs[len(columns) :]])) if than else 0.0)
        for s in sorted(set.intersection(*map(set, runs)))
    }


def _gap(rows: Mapping[str, Mapping[int, float]], row: str, other: str, paired: bool) -> float:
    mine, theirs = (rows.get(r, {}) for r in (row, other))
    use = (mine.keys() & theirs.keys(),) * 2 if paired else (mine.keys(), theirs.keys())
    means = [np.mean([of[s] for s in seeds]) if seeds else math.nan for of, seeds in zip((mine, theirs), use)]
    return float(means[0] - means[1])


def _trend(claim: Claim, scores: Scores, metric: str) -> tuple[Part, _Sample]:
    """All rows in order, or all values of the grid; the blocks are the seeds, of each column if there are several."""
    rows: Sequence[str] = claim.rows
    if claim.grid:
        rows = sorted(set.intersection(*(set(at) for at in scores.values())), key=float)
    blocks = [
        (c, s)
        for c, at in scores.items()
        for s in sorted(set.intersection(*(set(at.get(r, {})) for r in rows)) if rows else ())
    ]
    ranks = [[scores[c][r][s] for r in rows] for c, s in blocks]
    name = f"{claim.rows[0]}, {claim.grid} = {', '.join(rows)}" if claim.grid else " < ".join(rows)
    part = Part(name, "" if claim.pooled else next(iter(scores)), metric=metric)
    run = bool(rows) and all(at.get(r) for at in scores.values() for r in rows)
    if claim.pooled:
        return part, _Sample({i: line[-1] - line[0] for i, line in enumerate(ranks, 1)}, run=run, ranks=ranks)
    (at,) = scores.values()
    first, last = (at.get(r, {}) for r in (rows[0], rows[-1]))
    differences = {s: last[s] - first[s] for s in sorted(first.keys() & last.keys())}
    return part, _Sample(differences, run=run, ranks=ranks or [[]])


def _compared(claim: Claim, scores: Mapping[int, float]) -> Mapping[int, float]:
    return {s: 100 * math.log(v) if v > 0 else math.nan for s, v in scores.items()} if claim.ratio else scores


def _doubts(claim: Claim, known: Evidence, part: Part, columns: Sequence[str]) -> tuple[str, str]:
    """Two texts: why more training could undo "supported", and why it could undo "contradicted"."""
    at = [part.column] if part.column else list(columns)

    def learning(rows: Sequence[str]) -> list[str]:
        return [known.doubts[c][r] for c in at for r in rows if claim.convergence and r in known.doubts.get(c, {})]

    better = metric_of(known.metrics, part.metric).better  # the direction in which training moves it
    moves = better * claim.sign if claim.test in ("noninferiority", "superiority") else 0
    ours, theirs = learning(claim.rows if claim.test == "trend" else [part.row]), learning([part.against])
    support = [*(ours if moves <= 0 else []), *(theirs if moves >= 0 else [])]
    opposite = [*(ours if moves >= 0 else []), *(theirs if moves <= 0 else [])]
    worth = known.scores.get(claim.worth_metric or part.metric, {})
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


def _decided(claim: Claim, part: Part, sample: _Sample, level: float, unsure: str, unsure_opposite: str) -> Part:
    """The outcome of one comparison; `level` is the level of the tests of the opposite."""
    differences, theirs = list(sample.differences.values()), list(sample.theirs)
    part = replace(part, n=len(differences), others=len(theirs), differences=sample.differences)
    few = min(len(differences), len(theirs) or len(differences))
    if not sample.run:
        return replace(part, outcome=UNTESTED, why="not run")
    if few < 2 or not all(map(math.isfinite, differences)):
        return replace(part, why={0: "no pair of seeds", 1: "one seed"}.get(few, "a score is not a number"))
    if claim.test == "most":
        return _most(claim, part, level)
    found = difference_of(differences, theirs, sample.error) if theirs else mean_of(differences, sample.error)
    low, high = found.printed or (math.nan, math.nan)
    signed = Mean(claim.sign * found.mean, found.error, found.df)
    rising, falling = _page(sample.ranks, claim.sign) if sample.ranks else (1.0, 1.0)
    least, most = claim.inside
    slack = (
        -math.log(rising) if sample.ranks else min(signed.mean - least, most - signed.mean) / max(found.error, 1e-300)
    )
    part = replace(
        part, effect=found.mean, low=low, high=high, slack=slack, shows=math.nan if sample.ranks else found.shows
    )
    if (few < FEWEST and not sample.ranks) or found.certain:
        return replace(part, why="the same difference with every seed" if found.certain else "two seeds decide nothing")
    if sample.ranks:
        return _judged(part, rising < 0.05, falling < level, False, unsure, unsure_opposite)
    opposite = any(_within(signed, bounds, level) for bounds in claim.outside)
    excluded = claim.test == "superiority" and _within(signed, (-math.inf, claim.smallest), level)
    return _judged(part, _within(signed, claim.inside, 0.05), opposite, excluded, unsure, unsure_opposite)


def _judged(part: Part, supports: bool, opposite: bool, excluded: bool, unsure: str, unsure_opposite: str) -> Part:
    if supports and excluded:
        return replace(part, why="better, but by less than the margin")
    outcome = SUPPORTED if supports else CONTRADICTED if opposite else EXCLUDED if excluded else OPEN
    doubt = "" if outcome == OPEN else unsure if outcome == SUPPORTED else unsure_opposite
    return replace(part, outcome=OPEN, why=doubt) if doubt else replace(part, outcome=outcome)


def _most(claim: Claim, part: Part, level: float) -> Part:
    """Whether the direction holds in more than half of the columns: a sign test, with the interval of Clopper & Pearson."""
    from scipy.stats import binomtest

    gaps = list(part.columns.values())
    holds = sum(claim.sign * gap > 0 for gap in gaps)
    above, below = (binomtest(holds, len(gaps), 0.5, way).pvalue for way in ("greater", "less"))
    low, high = binomtest(holds, len(gaps)).proportion_ci(0.95)
    effect, low, high = (100 * share for share in (holds / len(gaps), low, high))
    part = replace(part, effect=effect, low=low, high=high, n=len(gaps), others=0, slack=-math.log(above))
    return _judged(part, above < 0.05, below < level, False, "", "")


def _within(mean: Mean, bounds: tuple[float, float], level: float) -> bool:
    """Whether one-sided tests at `level` show that the mean is between the bounds."""
    low, high = mean.interval(1 - 2 * level)
    return bounds[0] < low and high < bounds[1]


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
