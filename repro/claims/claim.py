"""Claims of the papers, `configs/claims/<paper>.yaml`; `repro.claims.decide` tests them on the rows of a table.

    paper: niculae2017                  the name of the file
    title: Niculae & Blondel 2017       its name on docs/claims.md
    order: 1                            its place there; papers without one come last
    counted: true                       if false, its claims are listed there, but not counted with those of the others
    claims:
      - id: 7                           its permanent number on docs/claims.md, which no other claim has
        claim: "the paper's sentence"   as printed; our own words stand in `here`
        place: section 4.2
        here: "no worse by 1 BLEU"      what is tested
        question: ""                    the claim as a question, if docs/claims.md opens with it
        point: ""                       and what would be observed, in a few words
        says: "+.25 BLEU"               the paper's number, in words
        printed: 0.25                   the effect that the paper prints, in the metric's unit: row minus `against`
        experiment: niculae2017_nmt     the experiment whose cells test the claim
        profile: cpu                    its profile
        columns: [fren, "en*"]          columns of the experiment, as patterns; the default is all columns
        pooled: false                   if true, the mean over the columns is tested, for each seed
        than: ["mean[89]"]              the effect in `columns` minus that in these columns is tested
        rows: [sparsemax]               each row is compared with each of `against`
        grid: lam                       for a trend: over the values of this key in the grid of the only row; the seeds of
                                        each column are the blocks of the test
        against: [softmax]
        metrics: [test/bleu]            each is tested
        ratio: false                    if true, 100 times the logarithms are compared, so differences are about percentages
        test: equivalence               or noninferiority, superiority, trend, or most: better in most columns
        margin: 1.0                     in the metric's unit: the largest difference that still counts as equal; for
                                        superiority, the smallest gain that counts
        unit: BLEU                      of the effect
        direction: higher               or lower: the direction of the claim; for noninferiority, the better direction
        worth: 3.0                      the claim is supported only where `against` is this much better than UNIFORM
        worth_metric: test/bleu         in this score; the default is the tested metric
        convergence: true               if false, rows that have not converged count too: for cost and sparsity
        untestable: ""                  why no run of ours can test the claim; the keys about its test are then left out
        untested: ""                    or why none has
        counterexample: ""              or what disproves it: a computation under docs/reference/errata
        forms:                          the test again on other rows, for models that differ from the printed ones; decides nothing
          - {form: "in the form of the authors' code", rows: [sparsemax, as in their code], against: []}
                                        without `against`, that of the claim
        note: ""                        what a reader should know, such as when the margin was set
        history:                        the earlier versions of the claim's test, oldest first; `outcome: not asked` for a
                                        claim that was added after the runs of these seeds had been seen
          - {outcome: supported, measured: "+0.4 [+0.1, +0.7], n = 3", why: "what was changed then, and why", seeds: [1, 2, 3]}
                                        `why: rules` if only the general rules changed (`RULES`)

Margins are committed before the runs, unless the note or the history says otherwise. Published numbers enter only as
`printed`. A test that was changed after its records were seen is marked: the outcome counts only if it is the same as
before the change, or if the seeds that are not in `seeds` give it again.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

from repro import options
from repro.errors import ConfigError, near
from repro.options import choice

TESTS = ("equivalence", "noninferiority", "superiority", "trend", "most")
RULES = "rules"  # why a test changed: the general rules of 29 November 2026 (pairing, noise, convergence, margins)
UNIFORM = "uniform attention"  # label of the row that gives every position the same weight


@dataclass(frozen=True)
class Change:
    """An earlier version of a claim's test: its outcome, what was changed, and the seeds that had been seen then."""

    outcome: str
    why: str
    measured: str = ""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Form:
    """Other rows on which a claim is tested too; `form` says what they are."""

    form: str
    rows: tuple[str, ...]
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of a paper; the module's docstring explains the attributes."""

    claim: str
    place: str
    experiment: str = ""
    rows: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    test: str = choice(*TESTS, default="superiority")
    against: tuple[str, ...] = ()
    margin: float = 0.0
    direction: str = choice("higher", "lower", default="higher")
    columns: tuple[str, ...] = ("*",)
    than: tuple[str, ...] = ()
    pooled: bool = False
    grid: str = ""
    profile: str = "cpu"
    worth: float = 0.0
    worth_metric: str = ""
    convergence: bool = True
    ratio: bool = False
    printed: float | None = None
    id: int = 0
    here: str = ""
    question: str = ""
    point: str = ""
    says: str = ""
    unit: str = ""
    untestable: str = ""
    untested: str = ""
    counterexample: str = ""
    note: str = ""
    forms: tuple[Form, ...] = ()
    history: tuple[Change, ...] = ()
    paper: str = ""

    def problems(self) -> list[str]:
        """Errors in the values of the self."""
        problems = [f"{key} must be given" for key in ("claim", "place") if not getattr(self, key)]
        if self.id < 1:
            problems.append(f"id={self.id} must be a whole number above 0 that no other claim has")
        if self.paper:
            problems.append(f"paper={self.paper!r} stands at the top of the file, for all claims")
        if self.told:
            return problems
        problems += [f"{key} must be given" for key in ("experiment", "rows", "metrics") if not getattr(self, key)]
        if not self.margin > 0 and self.test not in ("trend", "most"):
            problems.append(f"margin={self.margin:g} must be above 0")
        if self.test != "trend" and not self.against:
            problems.append(f"test={self.test} needs the rows that it is `against`")
        if bool(self.grid) != (self.test == "trend") or (self.grid and len(self.rows) != 1):
            told = f"grid={self.grid!r} and test={self.test}"
            problems.append(f"{told}: a trend, and no other test, needs a grid and one row")
        return problems

    @property
    def told(self) -> str:
        """The text for a claim without a test."""
        return self.untestable or self.untested or self.counterexample

    @property
    def sign(self) -> int:
        return 1 if self.direction == "higher" else -1

    @property
    def smallest(self) -> float:
        """The smallest gain that counts: half the effect that the paper prints, between half the margin and all of it."""
        gain = self.sign * (self.printed or 0.0)
        return min(self.margin, max(gain, self.margin) / 2) if self.test == "superiority" and gain > 0 else self.margin

    @property
    def truth(self) -> float:
        """The difference, in the direction of the claim, for which a power is given: for superiority, the paper's or the margin."""
        return max(abs(self.printed or self.margin), self.smallest) if self.test == "superiority" else 0.0

    def compared(self, word: str) -> str:
        """What the rows are compared with, after `word`; empty for a trend."""
        return f"{word}{' and '.join(self.against)}" if self.against else ""

    @property
    def asks(self) -> str:
        """The tested question as text."""
        bound = {"equivalence": "within", "noninferiority": "no worse by"}.get(self.test)
        other = {"trend": f"ever {self.direction} over the grid", "most": f"{self.direction} in most settings"}
        return f"{bound} {self.margin:g}" if bound else other.get(self.test, self.direction)

    @property
    def inside(self) -> tuple[float, float]:
        """The bounds between which a difference in the direction of the claim supports it."""
        low = -self.margin if self.test in ("equivalence", "noninferiority") else 0.0
        return low, self.margin if self.test == "equivalence" else math.inf

    @property
    def outside(self) -> list[tuple[float, float]]:
        """The bounds between which a difference in the direction of the claim contradicts it; the paper's own is never inside."""
        printed = self.sign * (self.printed or 0.0)
        loss = max(self.margin, -printed) if self.test in ("equivalence", "noninferiority") else 0.0
        gain = [(max(self.margin, printed), math.inf)] if self.test == "equivalence" else []
        return [(-math.inf, -loss), *gain]


@dataclass(frozen=True)
class Paper:
    """A paper with its claims; the module's docstring explains the attributes."""

    paper: str
    title: str
    order: int | None = None
    counted: bool = True
    claims: tuple[Claim, ...] = ()

    def problems(self) -> list[str]:
        """Errors in the values of the paper, and in claims that do not fit it."""
        asked = [one.id for one in self.claims if one.question and not self.counted]
        problems = [f"claims.{id}.question is only for papers that are counted" for id in asked]
        return [*problems, *["title must be the paper's name"] * (not self.title)]

    @property
    def place(self) -> tuple[bool, float, str]:
        """The key by which papers are sorted."""
        return not self.counted, math.inf if self.order is None else self.order, self.paper


def read(page: Mapping[str, Any], name: str) -> Paper:
    """Read `configs/claims/<name>.yaml`. Raises ConfigError with a list of all errors."""
    try:
        paper = options.read(Paper, page)
        if paper.paper != name:
            raise ConfigError(f"paper={paper.paper!r} must be the name of the file")
    except ConfigError as error:
        raise ConfigError(f"configs/claims/{name}.yaml: {error}") from None
    return replace(paper, claims=tuple(replace(claim, paper=name) for claim in paper.claims))


def clashes(papers: Iterable[Paper]) -> list[str]:
    """Errors for claims of any papers that have the same id."""
    every = [claim for paper in papers for claim in paper.claims]
    free = max((one.id for one in every), default=0) + 1
    return [
        f"id {a.id} is that of two claims, {a.claim!r} of {a.paper} "
        f"and {b.claim!r} of {b.paper}; the next free id is {free}"
        for a, b in itertools.combinations(every, 2)
        if a.id == b.id
    ]


def unknown(claim: Claim, experiment: Mapping[str, Any]) -> list[str]:
    """Names in a claim that are not in the file of its experiment: rows, columns and the profile."""
    rows = [row["label"] for row in experiment["rows"]]
    columns, profiles = list(experiment["columns"]), list(experiment["profiles"])
    asked = [(key, row, rows) for key in ("rows", "against") for row in getattr(claim, key)]
    asked += [
        (f"forms.{key}", row, rows) for f in claim.forms for key in ("rows", "against") for row in getattr(f, key)
    ]
    asked += [("profile", claim.profile, profiles)]
    for key in ("columns", "than"):
        named = getattr(claim, key)
        asked += [(key, one, columns) for one in named if not any(fnmatch(column, one) for column in columns)]
    return [
        f"{key}: {claim.experiment} has no {one!r}{near(one, known)}; it has: {', '.join(map(repr, known))}"
        for key, one, known in asked
        if one not in known
    ]
