"""What an experiment asks of a family of tasks: a module with these functions and names, handed over, never imported by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Metric:
    """A score, declared where it is computed; `split/name` is its full name, e.g. `test/bleu`.

    Attributes:
        name: without the split.
        unit: what one unit is, e.g. "BLEU points", "%", "share".
        better: 1 higher, -1 lower, 0 neither.
        decimals: digits shown after the point.
        tolerance: difference from a printed number, in the metric's own unit, that one run may have and still agree;
            None: no verdict is given on it.
        signature: how it is computed.
        test: paired randomization over test examples: "mean" (of per-example values under `name`), "bleu" (of per-example
            statistics under `<name>_statistics`), or None.
    """

    name: str
    unit: str
    better: int
    decimals: int
    tolerance: float | None
    signature: str
    test: str | None


# Gives the value of a score from what its family hands to all scorers; None: this test set has no such value.
Scorer = Callable[..., float | None]
# What a family measures, by name. A metric without a scorer is measured together with others, in training or in testing.
Scores = dict[str, tuple[Metric, Scorer | None]]


def metrics_of(scores: Scores) -> dict[str, Metric]:
    """The metrics by name. Raises ValueError where an entry's name is not its metric's."""
    if wrong := [f"{name!r} holds the metric {m.name!r}" for name, (m, _) in scores.items() if name != m.name]:
        raise ValueError(f"MEASURED: {'; '.join(wrong)}; use the metric's name")
    return {name: metric for name, (metric, _) in scores.items()}


def scored(scores: Scores, *given: Any) -> dict[str, float]:
    """The values of all metrics that have a scorer; each is called with `given`."""
    found = {name: scorer(*given) for name, (_, scorer) in scores.items() if scorer is not None}
    return {name: float(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class TestSet:
    """A test set, acquired and encoded as its model reads it; must survive pickling.

    Attributes:
        name: prefix of its metrics: "test" for the data set's own, else the data set's name ("duc2004").
        sha256: hash of its content as the model sees it.
        folder: where the encoded set lies.
        facts: what a footer says of it: name, provenance, sizes, demo, stands_for, notes, sha256.
        shortfalls: why this is not the paper's test set in full, a sentence each; empty: it is.
        baselines: trivial systems: name -> metric (`<name of the set>/<metric>`) -> value.
    """

    __test__ = False  # not a test class of pytest

    name: str
    sha256: str
    folder: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    shortfalls: tuple[str, ...] = ()
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """Training and dev data, acquired and encoded, and the data set's own test set; must survive pickling.

    Attributes:
        sha256: hash of train and dev as the model sees them; part of the training's identity.
        folder: where the encoded data lie; opened by path.
        facts, shortfalls: as of `TestSet`.
        test: the data set's own test set, None when it has none.
    """

    sha256: str
    folder: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    shortfalls: tuple[str, ...] = ()
    test: TestSet | None = None


@dataclass
class Training:
    """What a training leaves besides the files in its folder: `dev/...`, `train/...` scores and `best_epoch`."""

    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)


@dataclass
class Evaluation:
    """What scoring one test set gives.

    Attributes:
        metrics: `<name of the set>/<metric>` -> value.
        signatures: metric -> details of how it was computed, where they are known only then (sacreBLEU's signature).
        predictions: one JSON-able record per test example.
        attention: arrays to store (safetensors), name -> tensor.
        files: further files to keep, name -> bytes.
    """

    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)
    predictions: Iterable[Mapping[str, Any]] = ()
    attention: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


class Monitor(Protocol):
    """How a running cell tells where it is."""

    def stage(self, name: str, fraction: float, **stats: float) -> None:
        """`name` of the stage, `fraction` of it done (0..1), stats worth showing."""

    def curve(self, rows: list[dict[str, float]]) -> None:
        """All rows of the learning curve so far (one per epoch)."""

    def note(self, text: str) -> None:
        """Something a reader of the log should know."""


class Family(Protocol):
    """Cells of one family. `config` is a resolved, checked configuration as plain containers.

    RECIPE: (version of training, version of evaluation); raised when the code changes what it computes.
    METRICS: name -> Metric of everything that `train` and `evaluate` measure.
    PRELOAD: modules worth importing once for many cells.
    pictures (of families whose examples are images): config -> (`image` of a test record -> PNG), or None without images.
    """

    RECIPE: tuple[int, int]
    METRICS: Mapping[str, Metric]
    PRELOAD: tuple[str, ...]

    def prepare(self, config: Mapping[str, Any], progress: Any) -> Prepared:
        """Acquire and encode the data of `config["data"]`."""

    def prepare_test(self, config: Mapping[str, Any], encoding: Path, progress: Any) -> TestSet:
        """Acquire the test set of `config["data"]` and encode it as `encoding` says (a prepared folder's or a cell's)."""

    def train(self, config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
        """Train or resume in `folder`; leaves `weights.safetensors` (or the like) and `encoding/` there: all `evaluate` needs."""

    def evaluate(self, config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
        """Score the trained model in `folder` on a test set; `config["decode"]` and the scores of `config["task"]` apply."""
