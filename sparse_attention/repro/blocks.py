"""What a table is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparse_attention.repro.identity import Found
from sparse_attention.repro.published import Published
from sparse_attention.repro.stats import Summary
from sparse_attention.repro.verdict import Verdict

SIGNIFICANT = 0.05


@dataclass
class Value:
    """One place of the table: our number (None: failed or missing), how it is shown, and what it is held against."""

    metric: str
    summary: Summary | None
    decimals: int = 2
    p_value: float | None = None  # against the first row
    note: str = ""
    best: bool = False  # of its column, among rows at rest

    @property
    def significant(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANT

    def text(self) -> str:
        if self.summary is None:
            return self.note or "-"
        return self.summary.text(self.decimals) + ("*" if self.significant else "")


@dataclass
class Row:
    label: str
    detail: str  # the selected hyperparameters
    values: list[Value]
    theirs: list[Published | None]
    verdicts: list[Verdict | None]  # one for each of `theirs`
    found: list[Found] = field(default_factory=list)  # the selected cells, one per seed
    baseline: bool = False
    still: bool = False  # learning


@dataclass
class Block:
    """One column of the experiment with all its rows."""

    label: str
    headers: list[str] = field(default_factory=list)  # ours
    published: list[tuple[str, list[str]]] = field(default_factory=list)  # (group, headers)
    rows: list[Row] = field(default_factory=list)
    footers: list[str] = field(default_factory=list)
    unavailable: str = ""

    @property
    def comparable(self) -> bool:
        """Whether any of its numbers has a verdict."""
        return any(v is not None and not v.why for row in self.rows for v in row.verdicts)


@dataclass
class Table:
    name: str
    title: str
    subtitle: str
    blocks: list[Block]
    footers: list[str]
    deviations: list[str] = field(default_factory=list)


def best_of(values: Sequence[float | None], sign: int, decimals: int) -> set[int]:
    """Positions of the best values; ties as printed share the mark. Empty with fewer than two values or sign 0."""
    known = [sign * round(v, decimals) for v in values if v is not None and not math.isnan(v)]
    if sign == 0 or len(known) < 2:
        return set()
    return {i for i, v in enumerate(values) if v is not None and sign * round(v, decimals) == max(known)}
