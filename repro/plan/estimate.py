"""What a plan will take, before any data are read: cells, those that are done, hours.

A cell counts as done when the store holds one of the same configuration and recipe; that its data have the same content is seen
only when it runs. Hours are those of earlier cells in the store: of the same task, profile, device, data, model, training and
mapping, else of any mapping, else of the same task, profile and device, by the epoch. Without any: those that were counted on the model,
where the caller counts, else `ASSUMED_HOURS`, and so it is said.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.identity import asked_id, digest, family, scoring
from repro.plan import Wanted
from repro.store import Entry, Store, records

ASSUMED_HOURS = {"demo": 0.05, "cpu": 1.0, "paper": 24.0}  # of a cell; nothing but the profile is known of it
ALIKE = ("data", "model", "train")
Counted = Callable[[Mapping[str, Any]], "tuple[float, str] | None"]  # hours of a configuration and where they come from


@dataclass
class Share:
    """A part of a plan: cells, how many are done, hours of the others, hours on GPUs."""

    cells: int = 0
    done: int = 0
    hours: float = 0.0
    gpu_hours: float = 0.0

    @property
    def left(self) -> int:
        return self.cells - self.done


@dataclass
class Estimate:
    """`shares`: label -> its part; a cell that several need counts in the first. `sources`: where hours come from -> cells. `cells`: each once."""

    shares: dict[str, Share] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    workers: int = 1
    cells: list[tuple[str, Wanted]] = field(default_factory=list)

    @property
    def total(self) -> Share:
        parts = self.shares.values()
        return Share(*(sum(getattr(s, name) for s in parts) for name in ("cells", "done", "hours", "gpu_hours")))

    def text(self, title: str) -> str:
        """For a terminal; the last line has it all."""
        width = max(4, *map(len, self.shares))
        lines = [title, f"  {'what':{width}}  {'cells':>7}  {'done':>7}  {'to run':>7}  {'hours':>9}"]
        lines += [
            f"  {k:{width}}  {s.cells:7d}  {s.done:7d}  {s.left:7d}  {_hours(s.hours):>9}"
            for k, s in self.shares.items()
        ]
        if any(not s.cells for s in self.shares.values()):
            lines.append("0 cells: what this needs is counted in a line above.")
        lines += [f"Hours of {count} cells: {source}." for source, count in self.sources.items()]
        lines.append(
            "No data were read: a cell is done by its configuration; the content of its data is compared when it runs."
        )
        all_of = self.total
        wall = f"about {_hours(all_of.hours)} hours of cells, {_hours(all_of.gpu_hours)} GPU-hours"
        if self.workers > 1:
            wall += f"; {_hours(all_of.hours / self.workers)} hours with {self.workers} workers"
        return "\n".join([*lines, f"{all_of.cells} cells: {all_of.done} done, {all_of.left} to run; {wall}"])


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 or value == 0 else f"{value:.2g}"


def estimate(
    wanted: Iterable[tuple[str, Wanted]], store: Store, counted: Counted | None = None
) -> Estimate:  # fmt: skip
    """Of slots, each with the label of the part that it belongs to."""
    slots = list(wanted)
    folders = {(w.config["task"]["name"], w.config["mapping"]["name"]) for _, w in slots}
    tasks = {task for task, _ in folders}
    known = records.read(store, lambda task, mapping, _: task in tasks, check=False).records
    speed, stored = Speed(known, counted), _Stored(known, folders)
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
        made.cells.append((label, w))
        if stored.done(key, tests):
            share.done += 1
            continue
        seconds, source = speed.of(w.config)
        made.sources[source] = made.sources.get(source, 0) + 1
        share.hours += seconds / 3600
        if w.config["runtime"]["device"] == "cuda" or w.config["profile"]["name"] == "paper":  # which is made for GPUs
            share.gpu_hours += seconds / 3600 * w.config["train"].get("processes", 1)
    return made


class _Stored:
    """Finished cells by what was asked."""

    def __init__(self, known: Iterable[records.Record], folders: Iterable[tuple[str, str]]) -> None:
        self.tests: dict[tuple[str, str], set[str]] = {}
        for r in known:
            meant = (r.config["task"]["name"], r.config["mapping"]["name"]) in folders
            if meant and (r.tests or Entry(r.folder).state() == "done") and (asked := r.asked_id()):
                self.tests.setdefault((asked, _text(scoring(r.config, r.family))), set()).update(r.tests)

    def done(self, key: tuple[str, str], tests: set[str]) -> bool:
        return key in self.tests and tests <= self.tests[key]


class Speed:
    """Seconds of a cell, by those of earlier ones."""

    def __init__(self, known: Iterable[records.Record], counted: Counted | None = None) -> None:
        self.counted = counted
        self.seconds: dict[tuple, list[float]] = {}
        self.known: dict[tuple, tuple[float, str]] = {}
        for r in known:
            if r.seconds > 0:
                for key in _tiers(r.config):
                    per = _epochs(r.config) if len(key) == 3 else 1
                    self.seconds.setdefault(key, []).append(r.seconds / per)

    def of(self, config: Mapping[str, Any]) -> tuple[float, str]:
        """(seconds, where they come from)."""
        tiers = _tiers(config)
        key = (*tiers[0], _epochs(config))
        if key not in self.known:
            self.known[key] = self._look_up(config, tiers)
        return self.known[key]

    def _look_up(self, config: Mapping[str, Any], tiers: list[tuple]) -> tuple[float, str]:
        task, profile, device = tiers[-1]
        how = (
            "the same but for mapping parameters and seed",
            "of the same setting with other mappings",
            "by the epoch",
        )
        for tier, said in zip(tiers, how):
            if seconds := self.seconds.get(tier):
                mean = statistics.fmean(seconds) * (_epochs(config) if len(tier) == 3 else 1)
                return (
                    mean,
                    f"{mean:,.1f} s each, mean of {len(seconds)} finished cells ({said}) of {task}, profile {profile}, on {device}",
                )
        if self.counted is not None and (found := self.counted(config)) is not None:
            return found[0] * 3600, found[1]
        hours = ASSUMED_HOURS.get(profile, 1.0)
        return (
            hours * 3600,
            f"assumed, {hours:g} hours each: the store has no finished cell of {task}, profile {profile}, on {device}",
        )


def _tiers(config: Mapping[str, Any]) -> list[tuple]:
    """Keys of cells that take alike, the closest first."""
    common = (config["task"]["name"], config["profile"]["name"], config["runtime"]["device"])
    alike = digest([config.get(k) for k in ALIKE])
    return [(*common, alike, config["mapping"]["name"]), (*common, alike), common]


def _epochs(config: Mapping[str, Any]) -> int:
    return int((config.get("train") or {}).get("max_epochs") or 1)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
