"""Estimate the cost of a plan before any data are read: the number of cells, how many are done, and the hours.

A cell counts as done if the store has a finished cell with the same configuration and recipe; the content of the data
is compared only when the cell runs. Hours are assumed (the caller's hours per epoch, or else `ASSUMED_HOURS`), and the
text says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.identity import asked_id, family, scoring
from repro.plan import Wanted
from repro.store import Entry, Store, records

ASSUMED_HOURS = {"demo": 0.05, "cpu": 1.0, "paper": 24.0}  # hours per cell


@dataclass
class Share:
    """The estimate for a part of a plan: number of cells, how many are done, and hours and GPU-hours of the others."""

    cells: int = 0
    done: int = 0
    hours: float = 0.0
    gpu_hours: float = 0.0


@dataclass
class Estimate:
    """The estimate for a plan.

    `shares` maps the label of each part to its estimate; a cell that several parts need counts in the first one.
    `sources` maps each source of hours to the number of cells that use it.
    """

    shares: dict[str, Share] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    workers: int = 1

    @property
    def total(self) -> Share:
        parts = self.shares.values()
        return Share(*(sum(getattr(s, name) for s in parts) for name in ("cells", "done", "hours", "gpu_hours")))

    def text(self, title: str) -> str:
        """The estimate as text for a terminal; the last line is the total."""
        width = max(4, *map(len, self.shares))
        lines = [title, f"  {'what':{width}}  {'cells':>7}  {'done':>7}  {'to run':>7}  {'hours':>9}"]
        for label, s in self.shares.items():
            lines.append(f"  {label:{width}}  {s.cells:7d}  {s.done:7d}  {s.cells - s.done:7d}  {_rounded(s.hours):>9}")
        if any(not s.cells for s in self.shares.values()):
            lines.append("0 cells: what this needs is counted in a line above.")
        lines += [f"Hours of {count} cells: {source}." for source, count in self.sources.items()]
        lines.append("No data were read: the content of a cell's data is compared when it runs.")
        all_of = self.total
        left = all_of.cells - all_of.done
        workers = min(self.workers, left)
        gpu = f", {_rounded(all_of.gpu_hours)} GPU-hours" if all_of.gpu_hours else ""
        wall = f"about {_told(all_of.hours)} of cells (assumed){gpu}"
        if workers > 1:
            wall += f"; {_told(all_of.hours / workers)} with {workers} workers"
        return "\n".join([*lines, f"{all_of.cells} cells: {all_of.done} done, {left} to run{f'; {wall}' * (left > 0)}"])


def _told(hours: float) -> str:
    return f"{_rounded(hours)} hours" if hours >= 1 or hours == 0 else f"{max(1, round(60 * hours))} minutes"


def _rounded(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.1f}" if hours >= 1 or hours == 0 else f"{hours:.2g}"


def estimate(wanted: Iterable[tuple[str, Wanted]], store: Store, rates: Mapping[str, float] | None = None) -> Estimate:
    """Estimate the cost of slots; each slot comes with the label of the part that it belongs to.

    Args:
        rates: assumed hours per epoch on one GPU with the profile `paper`, by the name of the data set or task.
    """
    slots = list(wanted)
    folders = {(w.config["task"]["name"], w.config["mapping"]["name"]) for _, w in slots}
    finished = _finished(records.read(store, lambda *path: path[:2] in folders, check=False).records)
    made = Estimate(workers=slots[0][1].config["runtime"]["workers"])
    cells: dict[tuple[str, str], tuple[str, Wanted, set[str]]] = {}
    for label, w in slots:
        made.shares.setdefault(label, Share())
        of = family(w.module)
        key = (asked_id(w.config, of), _text(scoring(w.config, of)))
        cells.setdefault(key, (label, w, set()))[2].update(t["data"]["name"] for t in w.tests)
    for key, (label, w, tests) in cells.items():
        share = made.shares[label]
        share.cells += 1
        if tests <= finished.get(key, set()) and key in finished:
            share.done += 1
            continue
        hours, source = _hours(w.config, rates or {})
        made.sources[source] = made.sources.get(source, 0) + 1
        share.hours += hours
        if w.config["runtime"]["device"] == "cuda" or w.config["profile"]["name"] == "paper":  # `paper` is for GPUs
            share.gpu_hours += hours * w.config["train"].get("processes", 1)
    return made


def _finished(known: Iterable[records.Record]) -> dict[tuple[str, str], set[str]]:
    """Map (`asked_id`, scoring) of each finished cell to the names of the test sets on which it was evaluated."""
    found: dict[tuple[str, str], set[str]] = {}
    for r in known:
        if (r.tests or Entry(r.folder).state() == "done") and (asked := r.asked_id()):
            found.setdefault((asked, _text(scoring(r.config, r.family))), set()).update(r.tests)
    return found


def _hours(config: Mapping[str, Any], rates: Mapping[str, float]) -> tuple[float, str]:
    """The assumed hours of a cell, and the source of the number as text."""
    profile = config["profile"]["name"]
    if profile == "paper" and (
        name := next((n for n in (config["data"]["name"], config["task"]["name"]) if n in rates), "")
    ):
        epochs = int((config.get("train") or {}).get("max_epochs") or 1)
        return rates[name] * epochs, f"assumed, {rates[name]:.2g} hours an epoch of {name} on one GPU"
    hours = ASSUMED_HOURS.get(profile, 1.0)
    return hours, f"assumed, {hours:g} hours each with the profile {profile}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
