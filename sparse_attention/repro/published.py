"""Printed numbers, and the verdict on ours.

`configs/published/<table>.yaml` holds one record per printed number: mapping (the row's label in the paper), dataset,
metric, value, decimals, and a note where the reading is uncertain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparse_attention.repro.stats import Summary

# Without seeds in the paper a difference of a single run below this many points is within what reruns give.
TOLERANCE = {"BLEU": 1.0, "ROUGE": 0.7, "accuracy": 1.0, "F1": 1.0}


@dataclass(frozen=True)
class Published:
    """One printed number and where it stands."""

    value: float
    decimals: int
    metric: str
    dataset: str
    note: str = ""

    def text(self) -> str:
        return f"{self.value:.{self.decimals}f}" + ("?" if self.note else "")


def lookup(records: Iterable[Mapping[str, Any]], mapping: str, dataset: str, metric: str) -> Published | None:
    """The record of (mapping, dataset, metric), None when the paper has no such number."""
    for record in records:
        if (record["mapping"], record["dataset"], record["metric"]) == (mapping, dataset, metric):
            return Published(
                float(record["value"]), int(record.get("decimals", 2)), metric, dataset, record.get("ambiguous", "")
            )
    return None


def verdict(ours: Summary, theirs: Published, comparable: bool) -> str:
    """`not comparable`, `agrees`, `above` or `below`; the band is the tolerance of the metric plus two standard errors."""
    if not comparable:
        return "not comparable"
    family = next((name for name in TOLERANCE if theirs.metric.lower().startswith(name.lower())), None)
    band = TOLERANCE.get(family or "", 1.0)
    if ours.std is not None:
        band += 2 * ours.std / ours.n**0.5
    difference = ours.mean - theirs.value
    if abs(difference) <= band:
        return "agrees"
    return "above" if difference > 0 else "below"
