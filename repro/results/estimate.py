"""Estimate the cost of a plan before any data are read: the number of cells, how many are done, and the hours.

A cell counts as done if the store has a finished cell with the same configuration and recipe; the content of the data
is compared only when the cell runs. Hours come from finished cells of the store, or are assumed (the caller's
`Rates`, otherwise `ASSUMED_HOURS`); the text says which.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.identity import Cell, Results, asked_id, digest, scoring
from repro.launch.display import clock, cut, fitted, width
from repro.results import records
from repro.store import Entry, Store

NONE: Mapping[str, str] = {}
ASSUMED_HOURS = {"demo": 0.05, "cpu": 1.0, "gpu": 1.0, "paper": 24.0}  # hours per cell
# kind of cell (`_kind`) -> hours per epoch, and the number of finished cells
Paces = Mapping[tuple[str, ...], tuple[float, int]]


@dataclass(frozen=True)
class Rates:
    """Assumed times (configs/rates.yaml). `slowness` is called only if it is needed."""

    measured: Mapping[str, float] = field(default_factory=dict)  # task -> seconds of an update on a GPU
    counted: Mapping[str, float] = field(default_factory=dict)  # the same, by the number of operations
    examples: Mapping[str, int] = field(default_factory=dict)  # data set -> training examples
    start: float = 0.0  # seconds of a cell on a GPU besides its updates
    slowed: float = 1.0  # share by which each further cell on a GPU slows the others down
    together: int = 1  # the most cells on a GPU for which this was measured
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
    GPU-minutes are those of `together` cells at a time on a GPU, each of which slows the others by the share `slowed`.
    """

    shares: dict[str, Share] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    workers: int = 1
    paces: Paces = field(default_factory=dict)
    together: int = 1
    slowed: float = 1.0

    def gpu_minutes(self, share: Share) -> float:
        """Minutes of one GPU for a part of the plan."""
        at_once = max(1, min(self.together, self.total.cells - self.total.done))
        return 60 * share.gpu_hours * (1 + (at_once - 1) * self.slowed) / at_once

    @property
    def total(self) -> Share:
        parts = self.shares.values()
        return Share(*(sum(getattr(s, name) for s in parts) for name in ("cells", "done", "hours", "gpu_hours")))

    def text(self, title: str, refused: Mapping[str, str] = NONE) -> str:
        """The estimate as text for a terminal; the last line is the total.

        Args:
            refused: configurations that cannot be run -> why.
        """
        all_of = self.total
        most = min(max(4, *map(len, (*self.shares, *refused))), width() - 42 - 13 * bool(all_of.gpu_hours))
        head = f"  {'what':{most}}  {'cells':>7}  {'done':>7}  {'to run':>7}  {'hours':>9}"
        lines = [fitted(title), head + "  GPU-minutes" * bool(all_of.gpu_hours)]
        for label, s in self.shares.items():
            counts = f"{s.cells:7d}  {s.done:7d}  {s.cells - s.done:7d}  {_rounded(s.hours):>9}"
            lines.append(f"  {cut(label, most):{most}}  {counts}")
            lines[-1] += f"  {_rounded(self.gpu_minutes(s)):>11}" if all_of.gpu_hours else ""
        lines += [f"  {label:{most}}  cannot be run: {why}" for label, why in refused.items()]
        if any(not s.cells for s in self.shares.values()):
            lines.append("0 cells: what this needs is counted in a line above.")
        lines += [fitted(f"Hours of {count} cells: {source}.") for source, count in self.sources.items()]
        lines.append("No data were read: the content of a cell's data is compared when it runs.")
        left = all_of.cells - all_of.done
        workers = min(self.workers, left)
        at_once = f" with {min(self.together, left)} cells at a time on a GPU" if min(self.together, left) > 1 else ""
        gpu = f", {_rounded(self.gpu_minutes(all_of))} GPU-minutes{at_once}" if all_of.gpu_hours else ""
        assumed = "assumed" if any(source.startswith("assumed") for source in self.sources) else "measured"
        wall = f"about {clock(3600 * all_of.hours)} of cells ({assumed}){gpu}"
        if workers > 1 and not at_once:
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
            finished.setdefault((asked, digest(scoring(r.config, r.family))), set()).update(r.tests)
    runtime = slots[0][1].config["runtime"]
    together = {"auto": rates.together}.get(share := runtime.get("workers_per_device", 1), share)
    made = Estimate(workers=runtime["workers"], paces=_paces(known), together=together, slowed=rates.slowed)
    cells: dict[tuple[str, str], tuple[str, Cell, set[str]]] = {}
    for label, slot in slots:
        made.shares.setdefault(label, Share())
        key = (asked_id(slot.config, slot.family), digest(slot.scoring))
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
        if _on_gpu(cell.config):
            share.gpu_hours += of_cell * cell.config["train"].get("processes", 1)
    return made


def _kind(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Finished cells of the same kind say how long an epoch takes."""
    place = (config[node].get("name", "") for node in ("task", "profile"))
    return (*place, digest(config["data"]), (config.get("runtime") or {}).get("device", ""))


def _on_gpu(config: Mapping[str, Any]) -> bool:
    """Whether a cell is for a GPU: by its device, or its profile."""
    profile, device = config["profile"]["name"], (config.get("runtime") or {}).get("device")
    return device == "cuda" or profile == "paper" or (profile == "gpu" and device != "cpu")


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
    limit, task = (config["data"].get("limits") or {}).get("train"), config["task"]["name"]
    every, rate = rates.examples.get(config["data"]["name"]), rates.measured.get(task) or rates.counted.get(task)
    if _on_gpu(config) and profile in ("gpu", "paper") and rate and every:
        size = (config.get("train") or {}).get("batch_size") or 64
        seconds = rates.start + epochs * rate * math.ceil(min(limit or every, every) / size)
        how = "measured on" if task in rates.measured else "by the operations it starts, not timed on"
        return seconds / 3600, f"assumed, {1000 * rate:.0f} ms an update of {task}, {how} an H200"
    if (setting := f"{config['task']['name']}_{profile}") in rates.others:
        examples, seconds = rates.others[setting]
        rate = min(1.0, (limit or examples) / examples) * seconds / 3600 * rates.slowness()
        return rate * epochs, f"assumed, {clock(3600 * rate)} an epoch of {setting} on one core"
    assumed = ASSUMED_HOURS.get(profile, 1.0)
    return assumed, f"assumed, {assumed:g} hours each with the profile {profile}"
