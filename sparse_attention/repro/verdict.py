"""Whether a number of ours may be held against a printed one, and what comes of it. Nothing else decides this.

A verdict needs the paper's setting (profile `paper`, an experiment and a column that claim it), the experiment's own
data in full (loaders report shortfalls), every cell of the row, and no override but of where and how it runs. The band
is the metric's tolerance, in the metric's own unit, plus two standard errors over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparse_attention.repro.experiment import Column, Experiment
from sparse_attention.repro.identity import Found
from sparse_attention.repro.plan import Slot
from sparse_attention.repro.protocol import Metric
from sparse_attention.repro.published import Published
from sparse_attention.repro.stats import Summary

# Overrides that say where, how and how often, not what.
FREE = ("runtime", "paths", "seed", "seeds", "logger", "launcher")
STANDS_FOR = " stands for "  # between a data set and the one it is used in place of: of loaders and labels of columns


@dataclass(frozen=True)
class Verdict:
    """`word`: agrees, above, below; "not comparable" when `why` gives reasons."""

    word: str
    why: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.word}: {'; '.join(self.why)}" if self.why else self.word


def judge(ours: Summary | None, printed: Published, metric: Metric | None, why: Sequence[str] = ()) -> Verdict:
    """The verdict on `ours`; `why`: the reasons of `obstacles`, to which those of the numbers themselves are added."""
    reasons = list(why)
    if printed.note:
        reasons.append("the reading of the printed number is ambiguous")
    if metric is None or metric.tolerance is None:
        reasons.append(f"no tolerance is stated for {metric.name if metric else 'this metric'}")
    if ours is None:
        reasons.append("no finished cell has this score")
    elif not math.isfinite(ours.mean):
        reasons.append("the score is not a number")
    if reasons or ours is None or metric is None or metric.tolerance is None:
        return Verdict("not comparable", tuple(dict.fromkeys(reasons)))
    band = metric.tolerance + (0.0 if ours.std is None else 2 * ours.std / ours.n**0.5)
    difference = ours.mean - printed.value
    return Verdict("agrees" if abs(difference) <= band else "above" if difference > 0 else "below")


def rule(metrics: Sequence[Metric | None]) -> str:
    """How `judge` decides, in words."""
    bands = {m.name: f"{m.tolerance:g} {m.unit}".strip() for m in metrics if m is not None and m.tolerance is not None}
    told = "; ".join(f"{name}: {band}" for name, band in bands.items())
    return (
        "Verdict: `agrees` where ours differs from the published number by no more than a tolerance"
        f"{f' ({told})' if told else ''} plus two standard errors over seeds, else `above` or `below`; "
        "`not comparable` where the setting, data or cells are not the paper's."
    )


def obstacles(
    experiment: Experiment, column: Column, against: str, slots: Sequence[Slot], found: Mapping[str, Found],
    overrides: Sequence[str],
) -> list[str]:  # fmt: skip
    """Why a row's score `against` cannot be compared, whatever its value; empty: it can.

    Args:
        slots: all of the row in this column. found: cell id -> what is stored; a cell that is missing here is lost.
        overrides: what a person set by hand.
    """
    reasons = []
    if experiment.profile != "paper":
        reasons.append(f"profile {experiment.profile}")
    if experiment.not_comparable:
        reasons.append(experiment.not_comparable)
    elif not experiment.comparable:
        reasons.append("the experiment claims no comparison")
    if column.not_comparable:
        reasons.append(column.not_comparable)
    reasons += [f"override {o}" for o in overrides if _head(o) not in FREE]
    loaded = {Path(p).name for s in slots for p in s.cell.config.get("plugins") or []}
    reasons += [f"plugin {name}" for name in sorted(loaded)]
    split = against.partition("/")[0]
    if split not in ("dev", "train") and any(all(t.name != split for t in s.cell.tests) for s in slots):
        reasons.append(f"there is no test set {split!r}")
    for slot in slots:
        stored = found.get(slot.cell.cell_id)
        told = stored.shortfalls if stored else {"train": slot.cell.prepared.shortfalls}
        reasons += [_standing(why, column.label) for why in (*told.get("train", ()), *told.get(split, ()))]
    lost = sum(s.cell.cell_id not in found for s in slots)
    if lost:
        reasons.append(f"{lost} of {len(slots)} cells are not there")
    return list(dict.fromkeys(reasons))


def _standing(why: str, label: str) -> str:
    """A data set stands in for several papers' data: where a column's label says for which, that is said."""
    name, stands, _ = why.partition(STANDS_FOR)
    _, said, whose = label.rpartition(f";{STANDS_FOR}")
    return f"{name}{STANDS_FOR}{whose}" if stands and said else why


def _head(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].split(".")[0].split("/")[0].split("@")[0]
