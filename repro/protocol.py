"""What the engine needs from a family of tasks: a module with the functions and names of `Family`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Metric:
    """A score, declared where it is computed. Its full name is `split/name`, e.g. `test/bleu`.

    Attributes:
        name: without the split.
        unit: what one unit is, e.g. "BLEU points", "%", "share".
        better: 1 higher, -1 lower, 0 neither.
        decimals: digits shown after the point.
        tolerance: the largest difference from a printed number that counts as agreement, in the metric's unit; None: no verdict.
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


def metric_of(known: Mapping[str, Metric], full: str) -> Metric:
    """The metric of `split/name`; one that the family does not declare has no direction, tolerance or signature."""
    name = full.rpartition("/")[2]
    return known.get(name) or Metric(name, "", 0, 2, None, "", None)


# Computes a score from the arguments that its family passes to all scorers; None: this test set has no such score.
Scorer = Callable[..., float | None]
# The scores of a family by name. A metric without a scorer is computed elsewhere, in training or in testing.
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
    """A test set, acquired and encoded as its model reads it. It can be pickled.

    Attributes:
        name: prefix of its metrics: "test" for the data set's own test set, else the data set's name ("duc2004").
        sha256: hash of its content as the model sees it.
        folder: of the encoded set.
        facts: for the footers: name, provenance, sizes, demo, stands_for, notes, sha256.
        shortfalls: why this is not the paper's full test set, one sentence each; empty: it is.
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
    """Training and dev data, acquired and encoded, and the data set's own test set. It can be pickled.

    Attributes:
        sha256: hash of train and dev as the model sees them; part of the training's identity.
        folder: of the encoded data.
        facts, shortfalls: as in `TestSet`.
        test: None when the data set has no test set of its own.
    """

    sha256: str
    folder: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    shortfalls: tuple[str, ...] = ()
    test: TestSet | None = None


@dataclass
class Training:
    """What a training returns besides the files in its folder: `dev/...` and `train/...` scores, and `best_epoch`."""

    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)


@dataclass
class Evaluation:
    """What the evaluation on one test set returns.

    Attributes:
        metrics: `<name of the set>/<metric>` -> value.
        signatures: metric -> how it was computed, where that is known only now (sacreBLEU's signature).
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
    """Receives the progress of a running cell."""

    def stage(self, name: str, fraction: float, **stats: float) -> None:
        """Name of the stage, fraction of it that is done (0..1), numbers to show."""

    def curve(self, rows: list[dict[str, float]]) -> None:
        """All rows of the learning curve so far, one per epoch."""

    def note(self, text: str) -> None:
        """A message for the log."""


class Family(Protocol):
    """The functions that run the cells of one family. `config` is a resolved, checked configuration in plain containers.

    RECIPE: (version of training, version of evaluation); raised when the code computes something else.
    METRICS: name -> Metric of everything that `train` and `evaluate` measure.
    PRELOAD: modules that are imported once for many cells.
    pictures (optional, for families with images): config -> (`image` of a test record -> PNG), or None without images.
    """

    RECIPE: tuple[int, int]
    METRICS: Mapping[str, Metric]
    PRELOAD: tuple[str, ...]

    def prepare(self, config: Mapping[str, Any], progress: Any) -> Prepared:
        """Acquire and encode the data of `config["data"]`."""

    def prepare_test(self, config: Mapping[str, Any], encoding: Path, progress: Any) -> TestSet:
        """Acquire the test set of `config["data"]` and encode it with the vocabularies in `encoding`."""

    def train(self, config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
        """Train or resume in `folder`, and write there what `evaluate` needs: the weights and `encoding/`."""

    def evaluate(self, config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
        """Evaluate the trained model in `folder` on a test set, with `config["decode"]` and the scores of `config["task"]`."""
