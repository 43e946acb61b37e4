"""Use a trained model on your own input: texts, questions about images, or feature vectors.

The input is treated like a test set: it is encoded like the training data (by the family's `encode_test`) and decoded
with the cell's options.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro.protocol import Family
from tasks.cells import _training
from tasks.config import compose
from tasks.data import DataSet, NullProgress, content_sha256
from tasks.data.records import Prediction as Prediction
from tasks.use.finding import find_cell, tell_other_code
from tasks.use.scoring import opened


def _way(name: str) -> Callable[..., list[Prediction]]:
    def method(self: "Loaded", inputs: Any, **options: Any) -> list[Prediction]:
        if name not in self.family.WAYS:
            raise ValueError(f"{self._used()}, not by {name}")
        return self.predict(inputs, **options)

    method.__name__ = name
    method.__doc__ = "As `predict`, of the model's family. Raises ValueError if the model is of another family."
    return method


@dataclass(frozen=True)
class Loaded:
    """A finished cell, loaded for use.

    Attributes:
        model: the model, in evaluation mode.
        config: the cell's configuration.
        encoding: the opened encoding of the training data.
        family: the module with the cells of the task's family.
        folder: the cell's folder.
    """

    model: Any
    config: Mapping[str, Any]
    encoding: Any
    family: Family
    folder: Path

    # the predictions of one kind of model: `predict` of tasks/seq2seq/predict.py, and of the other families
    translate = summarize = _way("translate")
    classify = _way("classify")
    answer = _way("answer")
    label = _way("label")

    def predict(self, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """The predictions for `inputs`, by the way that fits the model.

        Raises ValueError if nobody calls models of this family, or an input does not fit.
        """
        if not self.family.WAYS:
            raise ValueError(f"{self._used()}, not by predict")
        return self.family.predict(self, inputs, **options) if len(inputs) else []

    def _used(self) -> str:
        by = " or ".join(self.family.WAYS) or self.family.USED_BY
        return f"this is a model of {self.config['task']['name']}, which is used by {by}"

    @contextmanager
    def as_test_set(self, records: Sequence[Any], about: Mapping[str, Any]) -> Iterator[Any]:
        """Context manager: `records` encoded like a test set of the model; the encoded files are deleted at the end."""
        kind, print_of = self.family.options.KIND, {"test": content_sha256(records)}
        data = DataSet("input", kind, print_of, lambda progress: {"test": records}, "given", about=about)
        with tempfile.TemporaryDirectory() as work:
            encoding = self.folder / _training.ENCODING
            yield self.family.encode.encode_test(data, encoding, work, NullProgress())


def load_cell(
    what: str | Path, outputs: str | Path | None = None, overrides: Sequence[str] = (), *, plugins: Sequence[str] = ()
) -> Loaded:
    """Load the model of a finished cell or of an exported folder, on a GPU if there is one.

    Args:
        what: see `find_cell`.
        overrides: settings that do not affect training, such as `decode.beam=10`.
        plugins: the Python files that define the cell's mapping; they run only if they are unchanged since its training.

    Raises:
        ConfigError: no cell matches, or several do.
        ConfigError: the overrides are invalid.
        StoreError: the cell is unfinished, damaged or invalid, or needs plugins that are not named
            (`repro.StoreError`).
    """
    folder = find_cell(outputs, str(what))
    cell = cells.finished(folder)
    if data := [o for o in overrides if compose.names_data([o])]:
        raise compose.ConfigError(f"{data[0]!r} is not allowed here; scripts/evaluate.py takes a data set")
    cell = cells.admit(folder, cell, plugins)
    tell_other_code(folder, cell)
    config, model, encoding = opened(folder, cell, overrides)
    return Loaded(model, config, encoding, cell.family, folder)
