"""The interface between the engine and the task families: each family is a module that provides what `Family` lists."""

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ROOT / "tasks" / "cells"  # one file per family
REGISTERED = "SPARSE_ATTENTION_FAMILIES"  # environment variable: the modules passed to `register`

# Unit -> the largest possible score; the least is 0. Scores in other units are unbounded.
MOST = dict.fromkeys(("share", "error rate (0-1)", "F1 (0-1)"), 1.0)
MOST |= dict.fromkeys(("%", "points", "BLEU points", "chrF points", "METEOR points", "ROUGE points"), 100.0)
MOST |= dict.fromkeys("words structures labels groups runs texts pairs iterations epochs s".split(), math.inf)


@dataclass(frozen=True)
class Metric:
    """A score, declared next to the code that computes it. The full name is `split/name`, e.g. `test/bleu`.

    Attributes:
        name: the name without the split.
        unit: the unit, e.g. "BLEU points", "%" or "share".
        better: 1 if higher is better, -1 if lower is better, 0 if neither.
        decimals: number of digits shown after the decimal point.
        tolerance: the largest difference from a printed number that counts as agreement, in the metric's unit; None
            means that no verdict is given.
        signature: how the score is computed.
        test: how the score follows from test examples, for its error over them: "mean" (of the per-example values stored
            under `name`), "bleu" or "f1" (of the per-example statistics stored under `<name>_statistics`,
            `repro.statistics.corpus_score`), or None.
    """

    name: str
    unit: str
    better: int
    decimals: int
    tolerance: float | None
    signature: str
    test: str | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest possible value of a score; a change in per cent has none."""
        most = MOST.get(self.unit, -1.0)
        return (-math.inf, math.inf) if most < 0 or (most == 100 and not self.better) else (0.0, most)


def metric_of(known: Mapping[str, Metric], full: str) -> Metric:
    """The metric of `split/name`. An undeclared metric gets no direction, tolerance or signature."""
    name = full.rpartition("/")[2]
    return known.get(name) or Metric(name, "", 0, 2, None, "")


# Computes a score from the arguments that the family passes to all scorers, or None if the test set has no such score.
Scorer = Callable[..., float | None]
# The scores of a family by name. A metric without a scorer is computed elsewhere, during training or testing.
Scores = dict[str, tuple[Metric, Scorer | None]]


def metrics_of(scores: Scores) -> dict[str, Metric]:
    """The metrics by name. Raises ValueError if an entry's name differs from the name of its metric."""
    if wrong := [f"{name!r} holds the metric {m.name!r}" for name, (m, _) in scores.items() if name != m.name]:
        raise ValueError(f"MEASURED: {'; '.join(wrong)}; use the metric's name")
    return {name: metric for name, (metric, _) in scores.items()}


def scored(scores: Scores, *given: Any) -> dict[str, float]:
    """The values of all metrics that have a scorer; each scorer is called with the arguments `given`."""
    found = {name: scorer(*given) for name, (_, scorer) in scores.items() if scorer is not None}
    return {name: float(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class TestSet:
    """A test set that has been acquired and encoded for the model. Instances can be pickled.

    Attributes:
        name: prefix of the set's metrics: "test" for the data set's own test set, otherwise the data set's name
            ("duc2004").
        sha256: hash of the content as the model sees it.
        folder: folder of the encoded set.
        facts: entries for the footers: name, provenance, sizes, demo, stands_for, notes, sha256.
        shortfalls: reasons why this is not the paper's full test set, one sentence each; empty if it is the full set.
        baselines: trivial systems, as name -> metric (`<name of the set>/<metric>`) -> value.
    """

    __test__ = False  # tells pytest that this is not a test class

    name: str
    sha256: str
    folder: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    shortfalls: tuple[str, ...] = ()
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """The acquired and encoded train and dev data, with the data set's own test set. Instances can be pickled.

    Attributes:
        sha256: hash of the train and dev data as the model sees them; part of the training's id.
        folder: folder of the encoded data.
        facts, shortfalls: as in `TestSet`.
        test: the data set's own test set, or None if it has none.
    """

    sha256: str
    folder: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    shortfalls: tuple[str, ...] = ()
    test: TestSet | None = None


@dataclass
class Training:
    """The results that a training returns in addition to the files in its folder.

    `metrics` has the `dev/...` and `train/...` scores, and `best_epoch`.
    """

    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)


@dataclass
class Evaluation:
    """The results of an evaluation on one test set.

    Attributes:
        metrics: `<name of the set>/<metric>` -> value.
        signatures: metric -> how it was computed, for metrics where this is known only now (such as sacreBLEU's
            signature).
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
        """Report the current stage: its name, the fraction of it that is done (0..1), and numbers to show."""

    def curve(self, rows: list[dict[str, float]]) -> None:
        """Report all rows of the learning curve so far, one per epoch."""

    def note(self, text: str) -> None:
        """Write a message to the log."""


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, or None if the configuration has no such key."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


ASIDE_KEYS = ("task.family", "task.deviations", "mapping.grid")  # keys that do not change the result


def flatten(node: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; lists are kept as values."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{at}{key}"
        if name in ASIDE_KEYS:
            continue
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def searched(config: Mapping[str, Any], family: Any) -> dict[str, str]:
    """The mapping's parameters that training chooses on dev: name -> the key that holds the values to try."""
    key = f"{getattr(family, 'SEARCH', '')}.{config['mapping']['name']}"
    return {name: f"{key}.{name}" for name in value_at(config, key) or ()}


def parameters(config: Mapping[str, Any], family: Any, cells: Iterable[Mapping[str, float]] = ()) -> dict[str, Any]:
    """The parameters of a cell's mapping: name -> value; for one that training chooses on dev, a text that says so.

    Args:
        family: the cell's `Family`. cells: the metrics of finished cells with this configuration.
    """
    chosen = {k: v for k, v in config["mapping"].items() if k not in ("name", "at", "grid")}
    for name in searched(config, family):
        values = sorted({metrics[key] for metrics in cells if (key := f"selected/{name}") in metrics})
        chosen[name] = " ".join([*(f"{value:g}" for value in values), "chosen on dev"])
    return chosen


class Family(Protocol):
    """The functions that run the cells of a family. `config` is a resolved, checked configuration in plain containers.

    RECIPE: (version of training, version of evaluation); a version is increased whenever the code's results change.
    RECIPES (optional): name of a model -> its versions, where they differ from RECIPE.
    METRICS: name -> Metric, for everything that `train` and `evaluate` measure.
    EVALUATION_KEYS: keys that an evaluation may set, as training does not depend on them.
    LATER_KEYS (optional): keys that were added after cells had ids; while unset, they are not part of an id.
    unread (optional): function of a config that returns further keys that make no difference to its cells.
    PRELOAD: modules that are imported once and shared by many cells.
    HUB, EXAMPLE: name of the task on the Hugging Face Hub, and a line of Python that uses a model, for its card.
    WAYS: the methods of `tasks.use.model.Loaded` that call `predict`; if there are none, USED_BY says what uses models.
    line (optional): takes a line of text, its number and the encoding; returns an input of `predict`. Default: the text.
    graph (optional): takes a loaded model; returns what `tasks.use.onnx` writes. Without it, NO_GRAPH says why.
    SEARCH (optional): key of a mapping -> parameter -> values that training tries in place of the mapping's own value. It
        keeps the best on dev, and reports the choice as the metric `selected/<parameter>`.
    pictures (optional, for families with images): takes a config and returns a function that maps the `image` of a test
        record to a PNG, or returns None if there are no images.
    """

    RECIPE: tuple[int, int]
    METRICS: Mapping[str, Metric]
    EVALUATION_KEYS: tuple[str, ...]
    PRELOAD: tuple[str, ...]
    HUB: str
    EXAMPLE: str
    WAYS: tuple[str, ...]
    encode: Any  # module with `encode`, `encode_test`, `open_encoded` and `keep_encoding`
    options: Any  # module with the classes Task, Encode and Decode, and the KIND of records

    def prepare(self, config: Mapping[str, Any], progress: Any) -> Prepared:
        """Acquire and encode the data that `config["data"]` selects."""

    def prepare_test(
        self, config: Mapping[str, Any], encoding: Path, progress: Any, name: str | None = None
    ) -> TestSet:
        """Acquire the test set that `config["data"]` selects, and encode it with the vocabularies in `encoding`.

        Its name is that of the data unless `name` is given.
        """

    def train(self, config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
        """Train or resume training in `folder`, and write there the weights and `encoding/`, which `evaluate` needs."""

    def evaluate(self, config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
        """Evaluate the model in `folder` on a test set.

        `config["decode"]` has the decoding options, and `config["task"]` selects the scores.
        """

    def load(self, config: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
        """The trained model in `folder`, with `named_parameters` as of a torch module, and its encoding."""

    def predict(self, used: Any, inputs: Any, *, nbest: int = 1) -> list[Any]:
        """A prediction (`tasks.data.records.Prediction`) for each input, by a `tasks.use.model.Loaded`."""


def register(module: str) -> None:
    """Allow an imported module as a family, in this process and in the processes it starts.

    A module that is merely named in a file is never allowed. Raises ValueError if the module is not imported.
    """
    if module not in sys.modules:
        raise ValueError(f"{module} is not imported; import it, then register it")
    os.environ[REGISTERED] = ",".join(dict.fromkeys([*_registered(), module]))


def _registered() -> list[str]:
    return [name for name in os.environ.get(REGISTERED, "").split(",") if name]


@cache
def families() -> tuple[str, ...]:
    """The modules of the families that ship with the project."""
    names = sorted(path.stem for path in FAMILIES.glob("[a-z]*.py"))
    return tuple(".".join((*FAMILIES.relative_to(ROOT).parts, name)) for name in names)


def check_family(module: Any) -> str:
    """Return `module` if it is one of the project's families or was registered; nothing is imported.

    Raises ValueError otherwise.
    """
    if isinstance(module, str) and module in (*families(), *_registered()):
        return module
    step = f"import and `register` it (repro.protocol), or use {', '.join(families())}"
    raise ValueError(f"module={str(module)[:80]!r} is unknown; {step}")


def family(module: str) -> Family:
    """Import the module of a family. Raises ValueError as in `check_family`, or if the module cannot be imported."""
    try:
        return cast(Family, importlib.import_module(check_family(module)))
    except ModuleNotFoundError as error:
        raise ValueError(f"{module} cannot be imported ({error}): run from the repository's root") from error
