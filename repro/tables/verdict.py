"""Decide whether one of our numbers can be compared with a published one, and give the verdict.

No other module decides this. A number is *not comparable* if its profile, data, mapping, setting or metric differs from
the paper's (`barriers`). Otherwise the verdict comes from an equivalence test over seeds (two one-sided t-tests at 5 %
each), which locates the 90 % interval of our mean. The number is *reproduced* if the interval is within the tolerance
of the published number, and *not reproduced* if it is outside. It is *inconclusive* if the interval crosses the edge of
the tolerance, if there is only one seed, or if the run is in doubt (`doubts`). The published number is treated as
exact, because no paper prints its spread.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.convergence import Convergence
from repro.identity import Cell, Results, pair, value_at
from repro.plan.experiment import Column, Experiment, Row
from repro.plan.published import Published
from repro.protocol import MOST, Metric
from repro.statistics import EQUIVALENCE, Mean, t_quantile

REPRODUCED, MISSED, OPEN, APART = "reproduced", "not reproduced", "inconclusive", "not comparable"
MOST_SEEDS = 100
# Overrides that do not change what a cell computes.
FREE = ("runtime", "paths", "seed", "seeds", "logger", "launcher")
# Keys that rows and columns may set in addition to those that the published yaml states for the row.
STATED = ("task", "data", "data.source_lang", "data.target_lang", "mapping")
STANDS_FOR = " stands for "  # in the messages of loaders and the labels of columns


@dataclass(frozen=True)
class Verdict:
    """`word` is REPRODUCED, MISSED, OPEN or APART; `why` has at least one reason."""

    word: str
    why: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        return self.word != APART

    @property
    def text(self) -> str:
        return f"{self.word}: {'; '.join(self.why)}" if self.why else self.word


def judge(
    ours: Mean | None, printed: Published, metric: Metric, why: Sequence[str] = (), doubt: Sequence[str] = ()
) -> Verdict:
    """The verdict on the number `ours`; `why` comes from `barriers`, and `doubt` comes from `doubts`."""
    reasons = list(why)
    if printed.note:
        reasons.append("the reading of the printed number is ambiguous")
    if metric.tolerance is None:
        reasons.append(f"no tolerance is stated for {metric.name}")
    else:  # one number is a share (0 to 1), and the other is in per cent or points (0 to 100)
        most = MOST.get(metric.unit, math.inf)
        odd = [v for v in (printed.value, ours.mean if ours else 0.0) if abs(v) > most]
        odd += [printed.value] if most == 100 and 0 < abs(printed.value) < 1 else []
        reasons += [f"{v:g} is not in the unit of {metric.name} ({metric.unit})" for v in odd[:1]]
    if reasons:
        return Verdict(APART, tuple(dict.fromkeys(reasons)))
    open_ = list(doubt)
    if ours is None:
        open_.append("no finished cell has this score")
    elif not math.isfinite(ours.mean):
        open_.append("the score is not a number")
    elif ours.std is None:
        open_.append("one seed has no spread; two or more are needed")
    elif ours.std <= 1e-9 * abs(ours.mean):  # rounding errors are not a spread
        open_.append(f"all {ours.n} seeds have the same score, as if they were one run")
    if open_ or ours is None or ours.std is None:
        return Verdict(OPEN, tuple(dict.fromkeys(open_)))
    return _equivalence(ours, ours.std, printed.value, metric)


def _equivalence(ours: Mean, std: float, printed: float, metric: Metric) -> Verdict:
    tolerance = metric.tolerance or 0.0
    low, high = ours.interval(EQUIVALENCE, metric.bounds)
    d = metric.decimals
    told = f"{100 * EQUIVALENCE:.0f} % interval [{low:.{d}f}, {high:.{d}f}]"
    band = f"{printed:.{d}f} ± {tolerance:g}"
    if printed - tolerance < low and high < printed + tolerance:
        return Verdict(REPRODUCED, (f"{told} within {band}",))
    if high < printed - tolerance or low > printed + tolerance:
        return Verdict(MISSED, (f"{told} outside {band}",))
    # the fewest seeds for which half the width of the interval is below the margin, if the spread stays
    margin, seeds = abs(tolerance - abs(ours.mean - printed)), range(2, MOST_SEEDS + 1)
    needed = next((n for n in seeds if t_quantile(n - 1, EQUIVALENCE) * std / math.sqrt(n) < margin), None)
    more = f"about {needed} seeds of this spread would decide" if needed else f"over {MOST_SEEDS} seeds would be needed"
    return Verdict(OPEN, (f"{told} crosses the edge of {band}; {more}",))


def rule(metrics: Sequence[Metric]) -> str:
    """The footer on how `judge` decides."""
    bands = {m.name: f"{m.tolerance:g} {m.unit}".strip() for m in metrics if m.tolerance is not None}
    told = "; ".join(f"{name}: {band}" for name, band in bands.items())
    within = f"; tolerance: {told}" if told else ""
    return f"Verdict: two one-sided t-tests over runs (docs/reference/report.md){within}."


# ---- obstacles to a comparison


def barriers(
    experiment: Experiment,
    column: Column,
    row: Row,
    printed: Published,
    against: str,
    slots: Sequence[Cell],
    results: Mapping[str, Results],
    overrides: Sequence[str],
    declared: Sequence[str],
) -> list[str]:
    """The reasons why a row's score on the metric `against` cannot be compared with `printed`; empty if it can.

    The value of the score does not matter here.

    Args:
        slots: all slots of the row in this column.
        results: cell id -> what is stored.
        overrides: the user's overrides.
        declared: the deviations from the paper that are declared for these slots (`footers.declared`).
    """
    reasons = []
    gpu = experiment.profile == "gpu"  # the paper's model and training; only the data differ
    reasons += [text for text in declared if gpu and text.startswith("data: ")]
    if experiment.profile not in ("gpu", "paper"):
        reasons.append(f"profile {experiment.profile}")
    if experiment.not_comparable:
        reasons.append(experiment.not_comparable)
    elif not experiment.comparable and not (gpu and (reasons or column.not_comparable)):
        reasons.append("the experiment does not claim to be comparable")
    if column.not_comparable and not (gpu and reasons):
        reasons.append(column.not_comparable)
    reasons += [f"override {o}" for o in overrides if _key(o).split(".")[0] not in FREE]
    loaded = {Path(p).name for s in slots for p in s.config.get("plugins") or []}
    reasons += [f"plugin {name}" for name in sorted(loaded)]
    split = against.partition("/")[0]
    if split in ("dev", "train"):
        reasons.append(f"a {split} score against a test number")
    elif any(all(t.name != split for t in s.tests) for s in slots):
        reasons.append(f"the cells have no test set {split!r}")
    _, said, whose = column.label.rpartition(f";{STANDS_FOR}")
    for slot in slots:
        stored = results.get(slot.cell_id)
        told = stored.shortfalls if stored else {"train": slot.data.shortfalls}
        for why in (*told.get("train", ()), *told.get(split, ())):
            name, stands, _ = why.partition(STANDS_FOR)  # one data set may replace those of several papers
            reasons.append(f"{name}{STANDS_FOR}{whose}" if stands and said else why)
    if experiment.profile == "paper":
        reasons += _departures(column, row, printed, against, slots)
        reasons += [f"deviation: {text}" for text in declared]
    return list(dict.fromkeys(reasons))


def _departures(column: Column, row: Row, printed: Published, against: str, slots: Sequence[Cell]) -> list[str]:
    """The differences between an experiment's row and column and what the published yaml states for this number."""
    if not printed.mapping or not printed.data:
        return [f"the published yaml does not define {row.published!r} on {printed.dataset!r}"]
    reasons = []
    allowed = {*STATED, *printed.settings, *printed.chosen}
    tuned = {key for s in slots for key, _ in s.point}
    set_here = {*(_key(o) for o in (*column.overrides, *row.overrides)), *tuned}
    reasons += [f"the experiment sets {key}" for key in sorted(set_here - allowed)]
    if column.select and column.select.metric.partition("/")[0] != "dev":
        reasons.append(f"the grid point is chosen by {column.select.metric}, not on dev")
    split, _, name = against.partition("/")
    for config in (s.config for s in slots):
        used, data = config["mapping"]["name"], config["data"]["name"] if split == "test" else split
        if used != printed.mapping:
            reasons.append(f"mapping {used} where the paper has {printed.mapping}")
        elif config["mapping"].get("mode", "paper") != "paper":  # other modes use a formula that is known to differ
            mode = config["mapping"]["mode"]
            told = "the printed numbers are of mode=paper (docs/reference/errata)"
            reasons.append(f"{used} is computed with mode={mode}; {told}")
        if printed.differs:
            reasons.append(printed.differs)
        for key, value in printed.settings.items():
            if (ours := value_at(config, key)) != value:
                reasons.append(f"{key}={ours} where the paper has {value}")
        if data != printed.data:
            reasons.append(f"data set {data} where the paper has {printed.data}")
    if printed.ours and name != printed.ours:
        reasons.append(f"our {name} against the paper's {printed.metric}, which is {printed.ours}")
    return reasons


def doubts(
    slots: Sequence[Cell], results: Mapping[str, Results], shown: Sequence[Results], against: str, trained: Convergence
) -> list[str]:
    """The reasons why a comparable row is inconclusive, e.g. missing cells, no convergence, unknown code version.

    Args:
        slots: all slots of the row; results: cell id -> what is stored.
        shown: the results that the table shows.
        trained: whether their trainings had converged.
    """
    reasons = []
    if lost := sum(s.cell_id not in results for s in slots):
        reasons.append(f"{lost} of {len(slots)} cells are missing")
    if shown and not trained.converged:
        reasons.append(trained.text)
    seeds = [one.seed for one in shown]
    if len(set(seeds)) < len(seeds):
        reasons.append("a seed occurs twice")
    split = against.partition("/")[0]
    for one in shown:
        if against not in one.metrics:
            reasons.append("a cell lacks this score")
        levels = [(one.levels[0], one.recipe)]
        levels += [(e, one.scored[name].recipe) for name, e in one.evaluations.items() if name == split]
        for (level, made), what, recipe in zip(levels, ("training", "evaluation"), one.recipes):
            code = level.provenance().get("code") or {}
            if not code.get("commit"):
                reasons.append("the code's version is not recorded")
            elif code.get("dirty"):
                reasons.append("the code had uncommitted changes")
            if made is not None and made != recipe:
                reasons.append(f"{what} of recipe {made}, today's is {recipe}")
    return list(dict.fromkeys(reasons))


def _key(override: str) -> str:
    return pair(override)[0].partition("@")[0].replace("/", ".")
