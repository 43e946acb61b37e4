"""The parts of a table."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from repro.convergence import Convergence
from repro.identity import Results
from repro.plan.published import Published
from repro.tables.decide import Outcome
from repro.tables.statistics import ANY, FEWEST, Mean, brackets, mean_of, over_examples
from repro.tables.verdict import Verdict

SIGNIFICANT = 0.05
CONVERGENCE = "convergence"  # name of a row's last value, which is text, for families with epochs
MARKS = {"examples": "*", "seeds": "†"}


@dataclass
class Value:
    """One number of the table: our runs (empty if they failed or are missing), their format and their significance."""

    metric: str
    runs: Sequence[float]  # one per seed
    decimals: int = 2
    better: int = 0  # 1 if higher is better, -1 if lower is better, 0 if neither
    # "examples" or "seeds" -> p-value of the difference from the first row, after Holm's correction over the rows
    p_values: dict[str, float] = field(default_factory=dict)
    note: str = ""
    within: tuple[float, float] = ANY  # the possible values of the score
    error: float = 0.0  # standard error of the mean over test examples; 0 if unknown
    best: bool = False  # whether its row is shown to be the best (`findings`)
    printed: str = ""  # the paper's number, on the page of all cells

    @cached_property
    def summary(self) -> Mean | None:
        """Mean and spread, or None if there are no runs."""
        return mean_of(self.runs) if self.runs else None

    @property
    def marks(self) -> str:
        """One sign for each test ("examples", "seeds") in which the difference from the first row is significant."""
        return "".join(mark for kind, mark in MARKS.items() if self.p_values.get(kind, 1.0) < SIGNIFICANT)

    def text(self) -> str:
        if self.summary is None:
            return self.note or "-"
        return self.summary.text(self.decimals) + self.marks

    def spread(self) -> str:
        """The 95 % interval over seeds; with too few seeds, the runs (if several) and the interval over test examples."""
        if self.summary is None:
            return ""
        if self.summary.n >= FEWEST:
            return brackets(self.summary.interval(within=self.within), self.decimals)
        runs = ", ".join(f"{run:.{self.decimals}f}" for run in self.runs) if len(self.runs) > 1 else ""
        over = over_examples(self.summary.mean, self.error, self.within)
        return " ".join(filter(None, (runs, brackets(over, self.decimals) if over else "")))

    def prediction(self) -> str:
        """The 95 % prediction interval for one run with a new seed; empty for fewer than `FEWEST` seeds."""
        if self.summary is None or self.summary.n < FEWEST:
            return ""
        return brackets(self.summary.interval(within=self.within, new=True), self.decimals)

    def cut(self, text: Callable[[Self], str]) -> bool:
        """Whether the printed interval, `Value.spread` or `Value.prediction`, is cut at a bound of the score."""
        return text(self) != text(replace(self, within=ANY))


@dataclass
class Row:
    label: str
    detail: str  # the selected hyperparameters as text
    values: list[Value]
    theirs: list[Published | None]
    verdicts: list[Verdict | None]  # one for each number in `theirs`
    results: Sequence[Results] = ()  # of the selected cells, one per seed
    baseline: bool = False
    convergence: Convergence = Convergence("")
    gain: Mean | None = None  # the block's main score minus that of the first row (`paired.difference`)
    decided: bool = False  # whether a test shows that `gain` is not zero
    style: int = 0  # its index in the block, for the look of its marks in drawings
    name: str = ""  # its label, with its details if another row of the block has the same label

    @property
    def said(self) -> dict[str, str]:
        """Its distinct verdicts: full text -> word."""
        return {verdict.text: verdict.word for verdict in self.verdicts if verdict}

    def value(self, metric: str) -> Value | None:
        return next((v for v in self.values if v.metric == metric), None)

    def difference(self, column: int, against: Sequence[str]) -> str:
        """Our number minus the published one, with the 95 % interval over seeds; empty if either number is missing."""
        theirs, ours = self.theirs[column], self.value(against[column])
        if theirs is None or ours is None or ours.summary is None:
            return ""
        gap, ends = ours.summary.mean - theirs.value, ours.summary.interval(within=ours.within)
        interval = f" {brackets(ends, ours.decimals, '+', theirs.value)}" if ours.summary.n >= FEWEST else ""
        return f"{gap:+.{ours.decimals}f}{interval}"


@dataclass
class Block:
    """One column of the experiment with all its rows."""

    label: str
    headers: list[str] = field(default_factory=list)  # headers of our numbers
    published: list[tuple[str, list[str]]] = field(default_factory=list)  # (group, headers)
    rows: list[Row] = field(default_factory=list)
    footers: list[str] = field(default_factory=list)
    unavailable: str = ""
    against: list[str] = field(default_factory=list)  # our metric for each published column
    finding: str = ""  # which row is the best in the main score, or why none is

    def __post_init__(self) -> None:
        count = Counter(row.label for row in self.rows)
        for i, row in enumerate(self.rows):
            row.style = i
            row.name = f"{row.label} ({row.detail})" if count[row.label] > 1 and row.detail else row.label

    @property
    def main(self) -> int | None:
        """The position of the main score: the first one with a direction, of a test set if possible."""
        values = self.rows[0].values if self.rows else []
        scores = [i for i, v in enumerate(values) if v.better]
        return next((i for i in scores if not values[i].metric.startswith("dev/")), next(iter(scores), None))

    @property
    def own(self) -> list[Row]:
        """The rows of our cells: all but the baselines."""
        return [row for row in self.rows if not row.baseline]

    @property
    def columns(self) -> list[str]:
        """The names of the published columns, each with the name of its group in front."""
        return [f"{name} {label}" for name, labels in self.published for label in labels]

    @property
    def comparable(self) -> bool:
        """Whether any number in the block can be compared with a published one."""
        return any(v is not None and v.comparable for row in self.rows for v in row.verdicts)


@dataclass
class Table:
    name: str
    title: str
    subtitle: str
    blocks: list[Block]
    footers: list[str]
    deviations: list[str] = field(default_factory=list)
    claims: list[Outcome] = field(default_factory=list)  # of the paper's claims about this table
    tested: list[str] = field(default_factory=list)  # the outcome of each claim, in a sentence


def rank_agreement(block: Block, column: int) -> tuple[float, int] | None:
    """Kendall's tau-b between our order of the rows and the published order, and the number of rows.

    Only rows that have converged and have at least `FEWEST` seeds count, because one run proves no ranking. Returns
    None if fewer than three rows count or tau is undefined.
    """
    rows = [row for row in block.rows if not row.baseline and row.convergence.converged]
    both = [(row.value(block.against[column]), row.theirs[column]) for row in rows]
    known = [(ours.summary, theirs) for ours, theirs in both if theirs and ours and ours.summary]
    pairs = [(ours.mean, theirs.value) for ours, theirs in known if ours.n >= FEWEST]
    if len(pairs) < 3 or any(math.isnan(ours) for ours, _ in pairs):
        return None
    from scipy.stats import kendalltau

    tau = float(kendalltau(*zip(*pairs)).statistic)
    return None if math.isnan(tau) else (tau, len(pairs))


def add_converged(rows: Sequence[Row], headers: list[str]) -> None:
    """Add a last column that shows whether training had converged, if the family has epochs."""
    if any(row.convergence.state and row.results for row in rows):
        headers.append("converged")
        for row in rows:
            row.values.append(Value(CONVERGENCE, (), note=row.convergence.text if row.results else ""))
