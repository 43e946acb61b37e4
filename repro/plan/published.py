"""Printed numbers: `configs/published/<table>.yaml` holds one record each, and says what its labels stand for.

    rows: {fusedmax: {mapping: fusedmax, mapping.lam: 0.1}}     a label's mapping and the settings that the paper states for it;
                                                                `differs`: how ours is known to differ
    chosen: [model.l2]                                          keys that were chosen on dev
    datasets: {DUC2004: {data: duc2004, ROUGE-1: rouge1_r}}     the data set by our name, and its metrics by ours
    results: [{mapping: fusedmax, dataset: DUC2004, metric: ROUGE-1, value: 28.42, decimals: 2}]

A record has mapping (the row's label in the paper), dataset, metric, value, decimals, and `ambiguous` where the reading
is uncertain. What may be said of ours beside it is for `verdict` to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Published:
    """One printed number and where it stands.

    Attributes:
        mapping, settings: of ours, that make the row: name in the registry, dotted key -> value.
        chosen: keys that the paper chose on dev. differs: how our computation of this row is known to differ.
        data, ours: our names of the data set and of the metric.
    """

    value: float
    decimals: int
    metric: str
    dataset: str
    note: str = ""
    mapping: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    differs: str = ""
    data: str = ""
    ours: str = ""

    def text(self) -> str:
        return f"{self.value:.{self.decimals}f}" + ("?" if self.note else "")


def records(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a page, each with what the page says of its row and its data set."""
    rows, sets = page.get("rows") or {}, page.get("datasets") or {}
    return [
        {**r, "row": rows.get(r["mapping"]), "set": sets.get(r["dataset"]), "chosen": page.get("chosen") or ()}
        for r in page["results"]
    ]


def lookup(records: Iterable[Mapping[str, Any]], mapping: str, dataset: str, metric: str) -> Published | None:
    """The record of (mapping, dataset, metric), None when the paper has no such number."""
    for record in records:
        if (record["mapping"], record["dataset"], record["metric"]) == (mapping, dataset, metric):
            row, of = dict(record.get("row") or {}), dict(record.get("set") or {})
            name, differs = str(row.pop("mapping", "")), str(row.pop("differs", ""))
            chosen, ours = tuple(record.get("chosen") or ()), str(of.get(metric, ""))
            return Published(
                float(record["value"]), int(record.get("decimals", 2)), metric, dataset, record.get("ambiguous", ""),
                name, row, chosen, differs, str(of.get("data", "")), ours,
            )  # fmt: skip
    return None
