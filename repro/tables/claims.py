"""Test claims of the papers, `configs/claims/<paper>.yaml`, on the rows of a table.

    claims:
      - claim: "the paper's sentence"
        place: section 4.2
        experiment: niculae2017_nmt     the experiment whose cells test the claim
        profile: cpu                    its profile
        columns: [fren, "en*"]          columns of the experiment, as patterns; the default is all columns
        pooled: false                   if true, the mean over the columns is tested, for each seed
        rows: [sparsemax]               each row is compared with `against`; a trend takes all rows in order
        against: softmax                or, for a number instead of a row, `value: 25`
        metric: test/bleu
        ratio: false                    if true, 100 times the logarithms are compared, so differences are about percentages
        test: equivalence               or noninferiority, superiority, trend
        margin: 1.0                     in the metric's unit: the largest difference that still counts as equal;
                                        superiority: the smallest that counts as better;
                                        trend: used only to compute the power
        note: ""                        what a reader should know, such as when the margin was set
        direction: higher               or lower: the direction of the claim; for noninferiority, the better direction
        worth: 3.0                      the claim is tested only where `against` is this much better than UNIFORM
        worth_metric: test/bleu         in this score; the default is `metric`
        convergence: true               if false, rows that have not converged count too: for cost and sparsity
        pilot: {seeds: .5, examples: .4}   standard deviation of a difference over seeds and its standard error over
                                        test examples, from earlier runs: for the power

Margins are committed before the runs, unless the note says otherwise. The tested quantity is the difference of a row
minus `against`, paired over seeds and over test examples; published numbers are not used. Its variance is that over
seeds, divided by their number, plus that of the mean over seeds when the test examples are drawn again; t has
Satterthwaite's degrees of freedom. Two seeds decide nothing: their spread is too uncertain for these.

A claim about several rows and columns holds if it holds for each of them: it is *supported* if every one-sided test at
5 % says so; for superiority, that the row is better at all. It is *contradicted* if the opposite is shown for one of
them: a difference above the margin (equivalence), a row worse by more than the margin (noninferiority) or not better by
the margin (superiority), at 5 % divided by the number of comparisons. Otherwise it is *inconclusive*: a test that
merely fails does not contradict a claim, and a row that is better, but by less than the margin, does neither. Claims
are not corrected for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

import numpy as np

from repro.plan.experiment import ExperimentError, typed
from repro.tables.statistics import FEWEST, Mean, interval, mean_of, power

SUPPORTED, CONTRADICTED, OPEN = "supported", "contradicted", "inconclusive"
TESTS = ("equivalence", "noninferiority", "superiority", "trend")
UNIFORM = "uniform attention"  # label of the row that gives every position the same weight
ENOUGH = 0.8  # power of a test that is large enough
MOST_SEEDS = 100
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]  # column -> row -> seed -> score
Doubts = Mapping[str, Mapping[str, str]]  # column -> row -> why its scores prove nothing
Errors = Callable[[str, str, str, str], float]  # (column, metric, row, against) -> standard error over test examples


@dataclass(frozen=True)
class Pilot:
    """The spread of a difference in earlier runs: its standard deviation over seeds, its standard error over examples."""

    seeds: float = 0.0
    examples: float = 0.0


@dataclass(frozen=True)
class Claim:
    """A claim of a paper; the module's docstring explains the attributes."""

    claim: str
    place: str
    experiment: str
    rows: tuple[str, ...]
    metric: str
    test: str
    against: str = ""
    margin: float = 0.0
    direction: str = "higher"
    columns: tuple[str, ...] = ("*",)
    pooled: bool = False
    profile: str = "cpu"
    worth: float = 0.0
    worth_metric: str = ""
    convergence: bool = True
    ratio: bool = False
    value: float | None = None
    pilot: Pilot = Pilot()
    note: str = ""
    paper: str = ""

    @property
    def sign(self) -> int:
        return 1 if self.direction == "higher" else -1

    def compared(self, word: str) -> str:
        """What the rows are compared with, after `word`; empty for a trend."""
        other = self.against if self.value is None else f"{self.value:g}"
        return f"{word}{other}" if other else ""

    @property
    def asks(self) -> str:
        """The tested question as text."""
        bound = {"equivalence": "within", "noninferiority": "no worse by"}.get(self.test)
        rises = f"ever {self.direction} from row to row" if self.test == "trend" else self.direction
        return f"{bound} {self.margin:g}" if bound else rises

    @property
    def inside(self) -> tuple[float, float]:
        """The bounds between which a difference in the direction of the claim supports it."""
        low = -self.margin if self.test in ("equivalence", "noninferiority") else 0.0
        return low, self.margin if self.test == "equivalence" else math.inf

    @property
    def outside(self) -> list[tuple[float, float]]:
        """The bounds between which a difference in the direction of the claim contradicts it."""
        low = -self.margin if self.test in ("equivalence", "noninferiority") else self.margin
        return [(-math.inf, low), *[(self.margin, math.inf)] * (self.test == "equivalence")]

    @property
    def equal(self) -> tuple[float, float] | None:
        """The bounds between which a difference in the direction of the claim counts as none; None for a trend."""
        bounds = {"equivalence": (-self.margin, self.margin), "noninferiority": (-self.margin, 0.0)}
        return None if self.test == "trend" else bounds.get(self.test, (0.0, self.margin))

    @property
    def assumed(self) -> float:
        """The true difference, in the direction of the claim, for which powers are computed."""
        return self.margin if self.test in ("superiority", "trend") else 0.0

    def power(self, n: int, pilot: Pilot) -> float:
        """The chance that `n` seeds support the claim for one row if the true difference is `assumed`."""
        return power(n, pilot.seeds, pilot.examples, self.assumed, *self.inside)


@dataclass(frozen=True)
class Part:
    """The comparison of one row, in one column or over all of them; numbers are NaN where there is no comparison.

    Attributes:
        effect, low, high: mean difference and its 95 % interval, in the metric's unit; with fewer than `FEWEST` seeds,
            the interval covers the test examples alone. NaN where it is not known.
        differences: seed -> difference.
        columns: column -> mean difference, for a pooled claim.
    """

    row: str
    column: str
    outcome: str = OPEN
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    why: str = ""
    differences: Mapping[int, float] = field(default_factory=dict)
    columns: Mapping[str, float] = field(default_factory=dict)
    slack: float = -math.inf  # standard errors between the effect and the nearest bound of `Claim.inside`

    def numbers(self, decimals: int) -> str:
        """The effect with its interval, and why it decides nothing."""
        if math.isnan(self.effect):
            return self.why
        why = f"; {self.why}" if self.why else ""
        return f"{self.effect:+.{decimals}f}{self.interval(decimals)}, n = {self.n}{why}"

    @property
    def known(self) -> tuple[float, float] | None:
        """The interval, or None if it is not known."""
        return (self.low, self.high) if math.isfinite(self.low) else None

    def interval(self, decimals: int) -> str:
        """` [low, high]`, or an empty string if it is not known."""
        return interval(self.known, self.n, decimals)

    def text(self, decimals: int) -> str:
        return f"{self.outcome} ({self.numbers(decimals)})"


@dataclass(frozen=True)
class Outcome:
    """A claim with its outcome. `part` is the comparison that decides, the one with the least evidence for the claim.

    `power` is that of the part's number of seeds at the pilot's spread, and `needed` the number of seeds for a power of
    `ENOUGH`; None without a pilot, or if more than `MOST_SEEDS` were needed.
    """

    claim: Claim
    outcome: str
    part: Part
    parts: tuple[Part, ...] = ()
    decimals: int = 2
    power: float | None = None
    needed: int | None = None
    unit: str = ""  # of the metric
    better: int = 0  # 1 if a higher score is better, -1 if a lower one is, 0 if neither is known to be

    def values(self) -> dict[str, Any]:
        """The outcome for a JSON file; numbers that are not known are None."""
        claim = {
            k: getattr(self.claim, k) for k in ("claim", "paper", "place", "metric", "test", "margin", "direction")
        }
        effect, low, high = (v if math.isfinite(v) else None for v in (self.part.effect, self.part.low, self.part.high))
        decides = {"effect": effect, "interval": [low, high], "n": self.part.n, "why": self.part.why}
        parts = [{k: v for k, v in asdict(p).items() if k != "slack" and v == v} for p in self.parts]
        outcome = {"outcome": self.outcome, "power": self.power, "needed": self.needed, "parts": parts}
        return claim | decides | outcome

    def line(self, labels: Mapping[str, str]) -> str:
        """The outcome in one sentence; labels: column -> label."""
        said: dict[str, list[str]] = {}
        for part in self.parts:
            where = f" on {labels[part.column].partition(';')[0]}" if part.column and len(labels) > 1 else ""
            text = part.numbers if part.outcome == self.outcome else part.text
            said.setdefault(text(self.decimals), []).append(f"{part.row}{where}")
        each = "; ".join(f"{', '.join(who)}: {text}" for text, who in said.items())
        word = "not decided" if self.outcome == OPEN else self.outcome
        asked = f"{self.claim.place}; {self.claim.metric}{self.claim.compared(' against ')}, {self.claim.asks}"
        return f"Claim {word}: “{self.claim.claim}” ({asked}). {each}."


def read(page: Mapping[str, Any], name: str) -> list[Claim]:
    """Read the claims in `configs/claims/<name>.yaml`. Raises ExperimentError with a list of all errors."""
    problems: list[str] = []
    found = []
    for i, one in enumerate(page["claims"], 1):
        where = f"configs/claims/{name}.yaml, claim {i}"
        if (claim := typed(Claim, {**one, "paper": name}, where, problems)) is not None:
            found.append(claim)
            problems += [f"{where}: {problem}" for problem in _wrong(claim)]
    if problems:
        raise ExperimentError("; ".join(problems))
    return found


def _wrong(claim: Claim) -> list[str]:
    """Errors in the values of a claim."""
    empty = [k for k in ("claim", "place", "experiment", "rows", "metric") if not getattr(claim, k)]
    found = [f"{key} must be given" for key in empty]
    for key, allowed in (("test", TESTS), ("direction", ("higher", "lower"))):
        if (value := getattr(claim, key)) not in allowed:
            found.append(f"{key}={value!r} is invalid; allowed: {', '.join(allowed)}")
    if not claim.margin > 0:
        found.append(f"margin={claim.margin:g} must be above 0")
    if claim.test != "trend" and bool(claim.against) == (claim.value is not None):
        found.append(f"{claim.test} needs either the row it is `against` or a `value`")
    return found


def outcome_of(
    claim: Claim, scores: Scores, errors: Errors, doubts: Doubts, decimals: int, worth: Scores | None = None
) -> Outcome:
    """The outcome of a claim.

    Args:
        scores: the scores of `claim.metric`; a row that the claim names and that has none leaves the claim open.
        errors: the standard error of a mean difference over test examples.
        doubts: column -> row -> why the row's scores prove nothing, such as training that has not converged.
        decimals: of the printed numbers.
        worth: the scores of `claim.worth_metric`; the default is `scores`.
    """
    named = [c for c in claim.columns if not set(c) & set("*?[")]
    columns = list(dict.fromkeys([c for c in scores if any(fnmatch(c, pattern) for pattern in claim.columns)] + named))
    if not any(c in scores for c in columns):
        return Outcome(claim, OPEN, Part("", "", why="no finished cells"), decimals=decimals)
    scores = {c: {r: _compared(claim, of) for r, of in scores.get(c, {}).items()} for c in columns}
    samples = _samples(claim, scores, errors)
    level = 0.05 / len(samples)
    made = []
    for (row, column), sample in samples.items():
        at = [column] if column else columns
        of = (row, claim.against, *(claim.rows if claim.test == "trend" else ()))
        unsure = [doubts[c][r] for c in at for r in of if claim.convergence and r in doubts.get(c, {})]
        unsure += [why for c in at if claim.worth and (why := _worthless(claim, (worth or scores).get(c, {})))]
        made.append(_decided(claim, row, column, sample, level, " and ".join(sorted(set(unsure)))))
    outcome, decides = _together(made)
    known = claim.pilot != Pilot() and decides.n > 1
    of_n = round(claim.power(decides.n, claim.pilot), 2) if known else None
    return Outcome(claim, outcome, decides, tuple(made), decimals, of_n, needed(claim))


def needed(claim: Claim) -> int | None:
    """The number of seeds for a power of `ENOUGH`; None without a pilot, or if more than `MOST_SEEDS` were needed."""
    if claim.pilot == Pilot():
        return None
    return next((n for n in range(FEWEST, MOST_SEEDS + 1) if claim.power(n, claim.pilot) >= ENOUGH), None)


@dataclass(frozen=True)
class _Sample:
    """The differences of one comparison: over seeds, the standard error over examples, the means of pooled columns."""

    differences: dict[int, float]
    error: float
    columns: dict[str, float]
    ranks: Sequence[Mapping[int, float]] = ()  # for a trend: row -> seed -> score


def _compared(claim: Claim, by_seed: Mapping[int, float]) -> Mapping[int, float]:
    return {s: 100 * math.log(v) if v > 0 else math.nan for s, v in by_seed.items()} if claim.ratio else by_seed


def _difference(claim: Claim, by_row: Mapping[str, Mapping[int, float]], row: str, against: str) -> dict[int, float]:
    """Seed -> score of `row` minus that of `against` (or the claim's value); empty if either has no scores."""
    mine = by_row.get(row, {})
    theirs = by_row.get(against, {}) if claim.value is None else _compared(claim, dict.fromkeys(mine, claim.value))
    return {s: mine[s] - theirs[s] for s in sorted(mine.keys() & theirs.keys())}


def _samples(claim: Claim, scores: Scores, errors: Errors) -> dict[tuple[str, str], _Sample]:
    """(row, column) -> sample, also where scores are missing; the column is "" for a pooled claim."""
    found: dict[tuple[str, str], _Sample] = {}
    pairs = [(row, claim.against) for row in claim.rows]
    if claim.test == "trend":
        pairs = [(claim.rows[-1], claim.rows[0])]
    for row, against in pairs:
        by_column = {}
        for c, of in scores.items():
            paired = not claim.ratio and row in of and against in of
            by_column[c] = (
                _difference(claim, of, row, against),
                errors(c, claim.metric, row, against) if paired else 0.0,
            )
        if claim.pooled:
            seeds = sorted(set.intersection(*(set(d) for d, _ in by_column.values())))
            mean = {s: float(np.mean([d[s] for d, _ in by_column.values()])) for s in seeds}
            error = math.sqrt(sum(e * e for _, e in by_column.values())) / len(by_column)
            columns = {c: float(np.mean([d[s] for s in seeds])) for c, (d, _) in by_column.items() if seeds}
            found[row, ""] = _Sample(mean, error, columns)
        else:
            for c, (d, e) in by_column.items():
                ranks = [scores[c].get(r, {}) for r in claim.rows] if claim.test == "trend" else ()
                found[row if not ranks else " < ".join(claim.rows), c] = _Sample(d, e, {}, ranks)
    return found


def _worthless(claim: Claim, by_row: Mapping[str, Mapping[int, float]]) -> str:
    """Why a column cannot test attention, or an empty string: uniform attention is almost as good, or was not run."""
    first, uniform = (by_row.get(row, {}) for row in (claim.against or claim.rows[0], UNIFORM))
    if not first:
        return ""  # the comparison itself says so
    if not uniform:
        return f"no row of {UNIFORM}, so the worth of attention is not known"
    sign = 1 if claim.worth_metric else claim.sign
    both = first.keys() & uniform.keys()
    worth = sign * float(np.mean([first[s] for s in both or first]) - np.mean([uniform[s] for s in both or uniform]))
    return "" if worth >= claim.worth else f"attention is worth {worth:.1f} here, less than {claim.worth:g}"


def _decided(claim: Claim, row: str, column: str, sample: _Sample, level: float, doubt: str) -> Part:
    """The outcome of one comparison; `level` is the level of the tests of the opposite."""
    differences = list(sample.differences.values())
    part = Part(row, column, n=len(differences), differences=sample.differences, columns=sample.columns)
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        why = "one seed" if len(differences) == 1 else "a score is not a number" if differences else "no pair of seeds"
        return replace(part, why=doubt or why)
    doubt = doubt or ("two seeds decide nothing" if len(differences) < FEWEST else "")
    found = mean_of(differences, sample.error)
    low, high = found.printed or (math.nan, math.nan)
    signed = Mean(claim.sign * found.mean, found.error, found.df)
    rising, falling = _page(sample.ranks, claim.sign) if sample.ranks else (1.0, 1.0)
    least, most = claim.inside
    slack = (
        -math.log(rising) if sample.ranks else min(signed.mean - least, most - signed.mean) / max(found.error, 1e-300)
    )
    part = replace(part, effect=found.mean, low=low, high=high, slack=slack)
    if doubt or found.certain:
        return replace(part, why=doubt or "the same difference with every seed")
    if sample.ranks:
        supports, contradicts = rising < 0.05, falling < level
    else:
        supports = _within(signed, claim.inside, 0.05)
        contradicts = any(_within(signed, bounds, level) for bounds in claim.outside)
    if supports and contradicts:
        return replace(part, why="better by less than the margin")
    return replace(part, outcome=SUPPORTED if supports else CONTRADICTED if contradicts else OPEN)


def _within(mean: Mean, bounds: tuple[float, float], level: float) -> bool:
    """Whether one-sided tests at `level` show that the mean is between the bounds."""
    low, high = mean.interval(1 - 2 * level)
    return bounds[0] < low and high < bounds[1]


def _page(rows: Sequence[Mapping[int, float]], sign: int) -> tuple[float, float]:
    """p-values of Page's tests that scores rise, and fall, from row to row, with the seeds as blocks. Source: Page 1963."""
    seeds = sorted(set.intersection(*(set(r) for r in rows)))
    if len(rows) < 3 or len(seeds) < 2:
        return 1.0, 1.0
    from scipy.stats import page_trend_test

    data = [[sign * r[s] for r in rows] for s in seeds]
    return page_trend_test(data).pvalue, page_trend_test([line[::-1] for line in data]).pvalue


def _together(parts: Sequence[Part]) -> tuple[str, Part]:
    """The outcome of a claim about all `parts`, and the part that decides it."""
    least = sorted(parts, key=lambda p: p.slack)
    for word in (CONTRADICTED, OPEN, SUPPORTED):
        if mine := [p for p in least if p.outcome == word]:
            return word, mine[0]
    raise AssertionError("a claim without parts")
