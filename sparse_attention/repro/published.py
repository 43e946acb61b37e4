"""Printed numbers: `configs/published/<table>.yaml` holds one record each.

A record has mapping (the row's label in the paper), dataset, metric, value, decimals, and `ambiguous` where the reading
is uncertain. What may be said of ours beside it is for `verdict` to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


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
