"""Estimate the cost of a plan before any data are read: the number of cells, how many are done, and the hours.

A cell counts as done if the store has a finished cell with the same configuration and recipe; the content of the data
is compared only when the cell runs. Hours come from finished cells of the store, or are assumed (the caller's
`Rates`, otherwise `ASSUMED_HOURS`); the text says which.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.identity import Cell, Results, asked_id, scoring
from repro.launch.display import clock
from repro.results import records
from repro.store import Entry, Store

NONE: Mapping[str, str] = {}
ASSUMED_HOURS = {"demo": 0.05, "cpu": 1.0, "paper": 24.0}  # hours per cell
# kind of cell (`_kind`) -> hours per epoch, and the number of finished cells
Paces = Mapping[tuple[str, ...], tuple[float, int]]


@dataclass(frozen=True)
class Rates:
    """Assumed time of an epoch. `slowness` is called only if it is needed."""

    paper: Mapping[str, float] = field(default_factory=dict)  # data set or task -> hours on one GPU
    others: Mapping[str, tuple[int, float]] = field(default_factory=dict)  # task_profile -> examples, seconds on a core
    slowness: Callable[[], float] = lambda: 1.0  # time on a core of this machine, as a multiple of the seconds above


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
    `sources` maps each source of hours to the number of cells that use it; `paces` are those of the finished cells.
    """

    shares: dict[str, Share] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    workers: int = 1
    paces: Paces = field(default_factory=dict)

    @property
    def total(self) -> Share:
        parts = self.shares.values()
        return Share(*(sum(getattr(s, name) for s in parts) for name in ("cells", "done", "hours", "gpu_hours")))

    def text(self, title: str, refused: Mapping[str, str] = NONE) -> str:
        """The estimate as text for a terminal; the last line is the total.

        Args:
            refused: configurations that cannot be run -> why.
        """
        width = max(4, *map(len, (*self.shares, *refused)))
        lines = [title, f"  {'what':{width}}  {'cells':>7}  {'done':>7}  {'to run':>7}  {'hours':>9}"]
        for label, s in self.shares.items():
            lines.append(f"  {label:{width}}  {s.cells:7d}  {s.done:7d}  {s.cells - s.done:7d}  {_rounded(s.hours):>9}")
        lines += [f"  {label:{width}}  cannot be run: {why}" for label, why in refused.items()]
        if any(not s.cells for s in self.shares.values()):
            lines.append("0 cells: what this needs is counted in a line above.")
        lines += [f"Hours of {count} cells: {source}." for source, count in self.sources.items()]
        lines.append("No data were read: the content of a cell's data is compared when it runs.")
        all_of = self.total
        left = all_of.cells - all_of.done
        workers = min(self.workers, left)
        gpu = f", {_rounded(all_of.gpu_hours)} GPU-hours" if all_of.gpu_hours else ""
        assumed = "assumed" if any(source.startswith("assumed") for source in self.sources) else "measured"
        wall = f"about {clock(3600 * all_of.hours)} of cells ({assumed}){gpu}"
        if workers > 1:
            wall += f"; {clock(3600 * all_of.hours / workers)} with {workers} workers"
        wall = f"; {wall}" * (left > 0) + f"; {len(refused)} cannot be run: nothing starts with these" * bool(refused)
        return "\n".join([*lines, f"{all_of.cells} cells: {all_of.done} done, {left} to run{wall}"])


def _rounded(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.1f}" if hours >= 1 or hours == 0 else f"{hours:.2g}"


def estimate(labelled: Iterable[tuple[str, Cell]], store: Store, rates: Rates = Rates()) -> Estimate:
    """Estimate the cost of cells; each comes with the label of the part that it belongs to."""
    slots = list(labelled)
    folders = {(slot.task, slot.mapping) for _, slot in slots}
    known = records.read(store, lambda *path: path[:2] in folders, check=False).records
    finished: dict[tuple[str, str], set[str]] = {}  # (`asked_id`, scoring) of a finished cell -> its test sets
    for r in known:
        if (r.tests or Entry(r.folder).state() == "done") and (asked := r.asked_id()):
            finished.setdefault((asked, _text(scoring(r.config, r.family))), set()).update(r.tests)
    made = Estimate(workers=slots[0][1].config["runtime"]["workers"], paces=_paces(known))
    cells: dict[tuple[str, str], tuple[str, Cell, set[str]]] = {}
    for label, slot in slots:
        made.shares.setdefault(label, Share())
        key = (asked_id(slot.config, slot.family), _text(slot.scoring))
        cells.setdefault(key, (label, slot, set()))[2].update(slot.further)
    for key, (label, cell, tests) in cells.items():
        share = made.shares[label]
        share.cells += 1
        if tests <= finished.get(key, set()) and key in finished:
            share.done += 1
            continue
        of_cell, source = hours(cell.config, rates, made.paces)
        made.sources[source] = made.sources.get(source, 0) + 1
        share.hours += of_cell
        if cell.config["runtime"]["device"] == "cuda" or cell.config["profile"]["name"] == "paper":  # for GPUs
            share.gpu_hours += of_cell * cell.config["train"].get("processes", 1)
    return made


def _kind(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Finished cells of the same kind say how long an epoch takes."""
    place = (config[node].get("name", "") for node in ("task", "profile"))
    return (*place, _text(config["data"]), (config.get("runtime") or {}).get("device", ""))


def _epochs(config: Mapping[str, Any]) -> int:
    return int((config.get("train") or {}).get("max_epochs") or 1)


def _paces(known: Iterable[Results]) -> dict[tuple[str, ...], tuple[float, int]]:
    """Kind of cell -> mean hours an epoch of the finished cells, and their number."""
    found: dict[tuple[str, ...], list[float]] = {}
    for r in known:
        found.setdefault(_kind(r.config), []).append(r.seconds / 3600 / _epochs(r.config))
    return {kind: (sum(values) / len(values), len(values)) for kind, values in found.items()}


def hours(config: Mapping[str, Any], rates: Rates = Rates(), paces: Paces | None = None) -> tuple[float, str]:
    """The hours of a cell, and the source of the number as text: measured in the store, or assumed."""
    profile, epochs, kind = config["profile"]["name"], _epochs(config), _kind(config)
    if paces and kind in paces:
        pace, count = paces[kind]
        return pace * epochs, f"measured, {clock(3600 * pace)} an epoch in {count} finished cell(s) of {kind[0]}"
    names = [n for n in (config["data"]["name"], config["task"]["name"]) if n in rates.paper]
    if profile == "paper" and names:
        rate = rates.paper[names[0]]
        return rate * epochs, f"assumed, {rate:.2g} hours an epoch of {names[0]} on one GPU"
    if (setting := f"{config['task']['name']}_{profile}") in rates.others:
        examples, seconds = rates.others[setting]
        limit = (config["data"].get("limits") or {}).get("train") or examples
        rate = min(1.0, limit / examples) * seconds / 3600 * rates.slowness()
        return rate * epochs, f"assumed, {clock(3600 * rate)} an epoch of {setting} on one core"
    assumed = ASSUMED_HOURS.get(profile, 1.0)
    return assumed, f"assumed, {assumed:g} hours each with the profile {profile}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
