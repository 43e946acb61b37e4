"""The outcome of a claim, with the comparisons that gave it (`repro.claims.decide`), and its words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from repro.claims.claim import Claim
from repro.statistics import interval

SUPPORTED, CONTRADICTED, EXCLUDED = "supported", "contradicted", "gain excluded"
OPEN, UNTESTED, UNTESTABLE = "inconclusive", "not tested", "cannot be tested"
DECIDED = (SUPPORTED, CONTRADICTED, EXCLUDED)


@dataclass(frozen=True)
class Part:
    """One comparison; numbers are NaN where there is none.

    Attributes:
        column: the column, or "" for all of them.
        effect, low, high: mean difference and its 95 % interval, in the metric's unit; with fewer than `FEWEST` seeds,
            the interval covers the test examples alone. NaN if unknown. For the test `most`, per cent of columns.
        n, others: seeds of the row, and of `against` if they are not paired; of `most`, columns.
        shows: the smallest true difference from zero that these runs would show with a chance of 80 %.
        chance: the chance, 0 to 1, that they show the claim here if `Claim.truth` is the true difference.
        p: of the test that gives the outcome, for all comparisons of the claim; 1 if there is none.
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
    chance: float = math.nan
    differences: Mapping[int, float] = field(default_factory=dict)
    columns: Mapping[str, float] = field(default_factory=dict)
    slack: float = -math.inf
    p: float = 1.0

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
        needs: the runs a row that would show it with a chance of 80 % if `Claim.truth` is true and its
            comparisons are independent; 0: over 100 or unknown.
        seen: the outcome depends on a change made after its records were seen.
        confirmed: seeds that had not been seen then give the same outcome.
        forms: the outcome of each of the claim's `forms`.
    """

    claim: Claim
    outcome: str
    part: Part
    parts: tuple[Part, ...] = ()
    decimals: int = 2
    better: int = 0
    needs: int = 0
    seen: bool = False
    confirmed: bool = False
    forms: tuple["Outcome", ...] = ()

    @property
    def p(self) -> float:
        """The p-value of the outcome; 1 if there is none. All comparisons must support a claim, and one contradicts it."""
        every = [part.p for part in self.parts if part.outcome == self.outcome]
        return (max(every) if self.outcome == SUPPORTED else min(every)) if self.outcome in DECIDED and every else 1.0

    @property
    def chance(self) -> float:
        """The chance, 0 to 1, that all comparisons show the claim if `Claim.truth` is true and they are independent."""
        return math.prod(part.chance for part in self.parts)

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
        if self.outcome in DECIDED and not self.counts:
            word += ", but open, since its test was chosen after these runs had been seen"
        here = f"; here: {one.here}" * bool(one.here)
        asked = f"{one.place}{here}; {', '.join(one.metrics)}{one.compared(' against ')}, {one.asks}"
        return f"Claim {one.id} {word}: “{one.claim}” ({asked}). {each}."
