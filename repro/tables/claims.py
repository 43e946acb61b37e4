"""Test claims of the papers, `configs/claims/<paper>.yaml`, on the rows of a table.

    claims:
      - claim: "the paper's sentence"
        place: section 4.2
        experiment: niculae2017_nmt     the experiment whose cells test the claim
        columns: [fren, "en*"]          columns of the experiment, as patterns; the default is all columns
        pooled: false                   if true, the mean over the columns is tested, for each seed
        rows: [sparsemax]               each row is compared with `against`; a trend takes all rows in order
        against: softmax
        metric: test/bleu
        test: equivalence               or noninferiority, superiority, trend
        margin: 1.0                     in the metric's unit; committed before the runs
        direction: higher               or lower: the direction of the claim; for noninferiority, the better direction

The tested quantity is the difference of a row minus `against`, paired over seeds; published numbers are not used. Two
one-sided t-tests at 5 % each locate the 90 % interval of the mean difference. The claim is *supported* if the interval
lies where the claim says, and *contradicted* if it lies entirely on the other side. Otherwise the outcome is
*inconclusive*: a test that merely fails does not contradict a claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from repro.plan.experiment import ExperimentError, typed
from repro.tables.statistics import EQUIVALENCE, summarize

SUPPORTED, CONTRADICTED, OPEN = "supported", "contradicted", "inconclusive"
TESTS = ("equivalence", "noninferiority", "superiority", "trend")
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]  # column -> row -> seed -> score


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

    @property
    def sign(self) -> int:
        return 1 if self.direction == "higher" else -1

    @property
    def asks(self) -> str:
        """The tested question as text."""
        far = f" by more than {self.margin:g}" if self.margin else ""
        return {
            "equivalence": f"within {self.margin:g}", "noninferiority": f"no worse by {self.margin:g}",
            "superiority": f"{self.direction}{far}", "trend": f"ever {self.direction} from row to row",
        }[self.test]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test.

    `word` is SUPPORTED, CONTRADICTED or OPEN. `effect` is the mean difference over `n` seeds, with its 90 % interval
    from `low` to `high`, all in the metric's unit; a trend has none of these three. `why` is the reason or the name of
    the test.
    """

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
    """Read the claims in `configs/claims/<name>.yaml`. Raises ExperimentError with a list of all errors."""
    problems: list[str] = []
    found = []
    for i, one in enumerate(page["claims"], 1):
        where = f"configs/claims/{name}.yaml, claim {i}"
        if (claim := typed(Claim, one, where, problems)) is not None:
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
    if claim.test in ("equivalence", "noninferiority") and not claim.margin > 0:
        found.append(f"{claim.test} needs a margin above 0")
    if claim.test != "trend" and not claim.against:
        found.append(f"{claim.test} needs the row it is `against`")
    return found


def decide(differences: Sequence[float], claim: Claim) -> Outcome:
    """The outcome for the differences between two rows, one per seed."""
    n = len(differences)
    if n < 2 or not all(map(math.isfinite, differences)):
        why = "one seed" if n == 1 else "a score is not a number" if n else "no pair of seeds"
        return Outcome(OPEN, why=why, n=n)
    found = summarize(differences)
    low, high = found.bounds(EQUIVALENCE)
    if (found.std or 0.0) <= 1e-9 * max(map(abs, differences)):  # rounding errors are not a spread
        return Outcome(OPEN, found.mean, low, high, n, "the same difference with every seed")
    ahead = (low, high) if claim.sign > 0 else (-high, -low)  # the interval in the direction of the claim
    margin = claim.margin
    if claim.test == "equivalence":
        inside, outside = -margin < low and high < margin, low > margin or high < -margin
    else:
        bound = -margin if claim.test == "noninferiority" else margin
        inside, outside = ahead[0] > bound, ahead[1] < bound
    return Outcome(SUPPORTED if inside else CONTRADICTED if outside else OPEN, found.mean, low, high, n)


def trend(rows: Sequence[Mapping[int, float]], claim: Claim) -> Outcome:
    """Page's test that scores rise (or fall) from row to row, with the seeds as blocks. Source: Page 1963."""
    seeds = sorted(set.intersection(*(set(r) for r in rows))) if rows else []
    if len(rows) < 3 or len(seeds) < 2:
        return Outcome(OPEN, n=len(seeds), why="a trend needs three rows and two seeds")
    from scipy.stats import page_trend_test

    data = [[claim.sign * r[s] for r in rows] for s in seeds]
    rising = page_trend_test(data).pvalue < 0.05
    falling = page_trend_test([line[::-1] for line in data]).pvalue < 0.05
    word = SUPPORTED if rising else CONTRADICTED if falling else OPEN
    return Outcome(word, n=len(seeds), why=f"Page's test over {len(seeds)} seeds")


def outcomes(claim: Claim, scores: Scores) -> dict[tuple[str, str], Outcome]:
    """(row, column) -> outcome, for rows with scores.

    The column is "" for a pooled claim. For a trend, the row is the names of all rows joined by " < ".
    """
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
    """Column -> seed -> score of the row minus score of `claim.against`, where both have scores."""
    both = {c: (of[row], of[claim.against]) for c, of in scores.items() if row in of and claim.against in of}
    return {c: {s: a[s] - b[s] for s in sorted(a.keys() & b.keys())} for c, (a, b) in both.items()}


def lines(
    claims: Sequence[Claim], scores: Mapping[str, Scores], unsure: Mapping[str, Mapping[str, str]],
    labels: Mapping[str, str], decimals: Mapping[str, int],
) -> list[str]:  # fmt: skip
    """One line for each claim that the rows can test.

    Args:
        scores: metric -> `Scores`.
        unsure: column -> row -> why the row's scores prove nothing, such as training that has not converged.
        labels: column -> label of the column.
        decimals: metric -> number of decimals.
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
