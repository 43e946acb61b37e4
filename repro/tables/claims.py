"""Claims of the papers, `configs/claims/<paper>.yaml`, tested on the rows of a table.

    claims:
      - claim: "the paper's sentence"
        place: section 4.2
        experiment: niculae2017_nmt     whose cells test it
        columns: [fren, "en*"]          of them, as patterns; all if absent. pooled: true means over the columns, seed by seed
        rows: [sparsemax]               each compared with `against`; of a trend, all of them in their order
        against: softmax
        metric: test/bleu
        test: equivalence               noninferiority, superiority, trend
        margin: 1.0                     in the metric's unit; committed before the runs
        direction: higher               or lower: which way the claim says; of noninferiority, which way is better

What is tested is the row minus `against`, paired over seeds: not against a printed number. Two one-sided t-tests at 5 %, that is,
where the 90 % interval of the mean difference lies. *Supported*: where the claim says. *Contradicted*: wholly on the other
side, never just a test that failed. *Inconclusive*: anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from repro.plan.experiment import ExperimentError, near
from repro.tables.statistics import summarize, t_quantile

SUPPORTED, CONTRADICTED, OPEN = "supported", "contradicted", "inconclusive"
TESTS = ("equivalence", "noninferiority", "superiority", "trend")
LEVEL = 0.90  # two one-sided tests at 5 % each
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]  # column -> row -> seed -> score


@dataclass(frozen=True)
class Claim:
    """See the module."""

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

    @property
    def sign(self) -> int:
        return 1 if self.direction == "higher" else -1

    @property
    def asks(self) -> str:
        """What is asked, in words."""
        far = f" by more than {self.margin:g}" if self.margin else ""
        return {
            "equivalence": f"within {self.margin:g}", "noninferiority": f"no worse by {self.margin:g}",
            "superiority": f"{self.direction}{far}", "trend": f"ever {self.direction} from row to row",
        }[self.test]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """`word`: one of three; `effect` and its 90 % interval in the metric's unit (of a trend: none), n seeds."""

    word: str
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    why: str = ""

    def text(self, decimals: int) -> str:
        if math.isnan(self.effect):
            return f"{self.word} ({self.why})"
        between = "" if math.isnan(self.low) else f" [{self.low:+.{decimals}f}, {self.high:+.{decimals}f}]"
        return f"{self.word} ({self.effect:+.{decimals}f}{between}, n = {self.n}{f'; {self.why}' if self.why else ''})"


def read(page: Mapping[str, Any], name: str) -> list[Claim]:
    """The claims of a page. Raises ExperimentError naming what is wrong."""
    found, known = [], Claim.__dataclass_fields__
    for i, one in enumerate(page["claims"], 1):
        where = f"configs/claims/{name}.yaml, claim {i}"
        if wrong := [k for k in one if k not in known]:
            raise ExperimentError(f"{where}: {wrong[0]} is unknown{near(wrong[0], known)}; allowed: {', '.join(known)}")
        if lost := [k for k in ("claim", "place", "experiment", "rows", "metric", "test") if not one.get(k)]:
            raise ExperimentError(f"{where}: {lost[0]} must be given")
        if one["test"] not in TESTS:
            raise ExperimentError(f"{where}: test={one['test']!r} is invalid; allowed: {', '.join(TESTS)}")
        if one.get("direction", "higher") not in ("higher", "lower"):
            raise ExperimentError(f"{where}: direction={one['direction']!r} is invalid; allowed: higher, lower")
        if one["test"] in ("equivalence", "noninferiority") and not one.get("margin", 0) > 0:
            raise ExperimentError(f"{where}: {one['test']} needs a margin above 0")
        if one["test"] != "trend" and not one.get("against"):
            raise ExperimentError(f"{where}: {one['test']} needs the row it is `against`")
        typed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}
        found.append(Claim(**typed))
    return found


def decide(differences: Sequence[float], claim: Claim) -> Outcome:
    """The outcome of a row minus the other, one difference a seed."""
    n = len(differences)
    if n < 2 or not all(map(math.isfinite, differences)):
        return Outcome(
            OPEN, why="one seed" if n == 1 else "no pair of seeds" if not n else "a score is not a number", n=n
        )
    found = summarize(differences)
    half = t_quantile(n - 1, LEVEL) * (found.std or 0.0) / math.sqrt(n)
    low, high = found.mean - half, found.mean + half
    if (found.std or 0.0) <= 1e-9 * max(map(abs, differences)):  # rounding is no spread
        return Outcome(OPEN, found.mean, low, high, n, "the same difference with every seed")
    ahead = (low, high) if claim.sign > 0 else (-high, -low)  # the way that the claim says
    margin = claim.margin
    if claim.test == "equivalence":
        inside, outside = -margin < low and high < margin, low > margin or high < -margin
    else:
        bound = -margin if claim.test == "noninferiority" else margin
        inside, outside = ahead[0] > bound, ahead[1] < bound
    return Outcome(SUPPORTED if inside else CONTRADICTED if outside else OPEN, found.mean, low, high, n)


def trend(rows: Sequence[Mapping[int, float]], claim: Claim) -> Outcome:
    """Page's test that scores rise (fall) from row to row, seeds as blocks. Source: Page 1963."""
    seeds = sorted(set.intersection(*(set(r) for r in rows))) if rows else []
    if len(rows) < 3 or len(seeds) < 2:
        return Outcome(OPEN, n=len(seeds), why="a trend needs three rows and two seeds")
    from scipy.stats import page_trend_test

    data = [[claim.sign * r[s] for r in rows] for s in seeds]
    if page_trend_test(data).pvalue < 0.05:
        return Outcome(SUPPORTED, n=len(seeds), why=f"Page's test over {len(seeds)} seeds")
    if page_trend_test([line[::-1] for line in data]).pvalue < 0.05:
        return Outcome(CONTRADICTED, n=len(seeds), why=f"Page's test over {len(seeds)} seeds")
    return Outcome(OPEN, n=len(seeds), why=f"Page's test over {len(seeds)} seeds")


def outcomes(claim: Claim, scores: Scores) -> dict[tuple[str, str], Outcome]:
    """(row, column; "" for all of them pooled) -> outcome, where the rows have scores. A trend has its rows joined by " < "."""
    columns = [c for c in scores if any(fnmatch(c, pattern) for pattern in claim.columns)]
    if claim.test == "trend":
        there = {c: [scores[c][r] for r in claim.rows if r in scores[c]] for c in columns}
        return {(" < ".join(claim.rows), c): trend(r, claim) for c, r in there.items() if len(r) == len(claim.rows)}
    found = {}
    for row in claim.rows:
        by_column = differences(claim, row, {c: scores[c] for c in columns})
        if claim.pooled and by_column:
            seeds = sorted(set.intersection(*(set(d) for d in by_column.values())))
            found[row, ""] = decide([summarize([d[s] for d in by_column.values()]).mean for s in seeds], claim)
        elif not claim.pooled:
            found |= {(row, c): decide(list(d.values()), claim) for c, d in by_column.items()}
    return found


def differences(claim: Claim, row: str, scores: Scores) -> dict[str, dict[int, float]]:
    """Column -> seed -> the row minus `claim.against`, where both have scores."""
    both = {c: (of[row], of[claim.against]) for c, of in scores.items() if row in of and claim.against in of}
    return {c: {s: a[s] - b[s] for s in sorted(a.keys() & b.keys())} for c, (a, b) in both.items()}


def lines(
    claims: Sequence[Claim], scores: Mapping[str, Scores], unsure: Mapping[str, Mapping[str, str]],
    labels: Mapping[str, str], decimals: Mapping[str, int],
) -> list[str]:  # fmt: skip
    """A line a claim that the rows can test.

    Args:
        scores: metric -> `Scores`. unsure: column -> row -> why its scores show nothing (it has not converged).
        labels: column -> its label. decimals: of a metric.
    """
    told = []
    for claim in claims:
        said: dict[str, list[str]] = {}
        for (row, column), outcome in outcomes(claim, scores.get(claim.metric, {})).items():
            of = claim.rows if claim.test == "trend" else (row, claim.against)
            at = [column] if column else [c for c in unsure if any(fnmatch(c, p) for p in claim.columns)]
            doubt = {unsure[c][r] for c in at for r in of if r in unsure.get(c, {})}
            text = f"{OPEN} ({' and '.join(sorted(doubt))})" if doubt else outcome.text(decimals[claim.metric])
            where = f" on {labels[column].partition(';')[0]}" if column and len(labels) > 1 else ""
            said.setdefault(text, []).append(f"{row}{where}")
        if said:
            against = f" against {claim.against}" if claim.against else ""
            whole = len(said) == 1 and len(claim.rows) > 1
            each = "; ".join(f"{'all rows' if whole else ', '.join(who)}: {text}" for text, who in said.items())
            asked = f"{claim.place}; {claim.metric}{against}, {claim.asks}"
            told.append(f"Claim: “{claim.claim}” ({asked}): {each}.")
    return told
