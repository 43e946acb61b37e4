"""The parts of a table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from repro.claims.outcome import Outcome
from repro.convergence import LEARNING, STUCK, UNKNOWN, Convergence
from repro.identity import Results
from repro.plan.published import Published
from repro.statistics import ANY, FEWEST, Mean, brackets, mean_of, over_examples
from repro.tables.verdict import Verdict

SIGNIFICANT = 0.05
CONVERGENCE = "convergence"  # name of a row's last value, which is text, for families with epochs
MARKS = {STUCK: "!", LEARNING: "~", UNKNOWN: "~"}  # of a row, by its convergence


@dataclass
class Value:
    """One number of the table: our runs (empty if they failed or are missing) and their format."""

    metric: str
    runs: Sequence[float]  # one per seed
    decimals: int = 2
    better: int = 0  # 1 if higher is better, -1 if lower is better, 0 if neither
    note: str = ""
    within: tuple[float, float] = ANY  # the possible values of the score
    error: float = 0.0  # standard error of the mean over test examples; 0 if unknown
    best: bool = False  # whether its row is shown to be the best (`findings`)

    @cached_property
    def summary(self) -> Mean | None:
        """Mean and spread, or None if there are no runs."""
        return mean_of(self.runs) if self.runs else None

    @property
    def mean(self) -> str:
        """The mean as text, or why there is none."""
        return f"{self.summary.mean:.{self.decimals}f}" if self.summary else self.note or "-"

    @property
    def sd(self) -> str:
        """The standard deviation over seeds as text, or an empty string."""
        return self.summary.text(self.decimals).partition(" ")[2] if self.summary else ""

    def text(self) -> str:
        return f"{self.mean} {self.sd}".rstrip()

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


@dataclass
class Row:
    label: str
    detail: str  # the selected hyperparameters as text
    values: list[Value] = field(default_factory=list)
    theirs: list[Published | None] = field(default_factory=list)
    verdicts: list[Verdict | None] = field(default_factory=list)  # one for each number in `theirs`
    results: Sequence[Results] = ()  # of the selected cells, one per seed
    baseline: bool = False
    convergence: Convergence = Convergence("")
    gain: Mean | None = None  # the block's main score minus that of the first row (`paired.difference`)
    decided: bool = False  # whether a test shows that `gain` is not zero
    style: int = 0  # its index in the block, for the look of its marks in drawings
    name: str = ""  # its label, with its details if another row of the block has the same label
    point: dict[str, Any] = field(default_factory=dict)  # of compared cells: what names it, as dotted key -> value

    @property
    def mark(self) -> str:
        """A sign if training failed to learn or may not have converged."""
        return MARKS.get(self.convergence.state, "") if self.results else ""

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
    alerts: list[str] = field(default_factory=list)  # on cells without a result
    footers: list[str] = field(default_factory=list)
    unavailable: str = ""
    against: list[str] = field(default_factory=list)  # our metric for each published column
    paired: bool = False  # whether runs with the same seed share data or time (`Experiment.paired`)
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
    alerts: list[str] = field(default_factory=list)  # what a reader of the whole table must know


def add_converged(rows: Sequence[Row], headers: list[str]) -> None:
    """Add a last column that shows whether training had converged, if the family has epochs."""
    if any(row.convergence.state and row.results for row in rows):
        headers.append("converged")
        for row in rows:
            row.values.append(Value(CONVERGENCE, (), note=row.convergence.text if row.results else ""))
