"""Labels that a fitted model gives to feature vectors."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sparse_attention as sa
from tasks.data.read.formats import STANDARD_INPUT, STEP, damaged
from tasks.data.read.labelled import feature
from tasks.data.records import Prediction, ranked
from tasks.multilabel import fitted
from tasks.multilabel.encode import Encoded


def predict(used: Any, features: Any, *, nbest: int = 1) -> list[Prediction]:
    """Labels of feature vectors [n, features], which must be scaled like the training data.

    `nbest` is the number of single labels to rank. Raises ValueError if the features have the wrong shape or are not
    finite.
    """
    x, choice, names = np.asarray(features, dtype=np.float64), used.model, np.array(used.encoding.labels)
    if x.ndim != 2 or x.shape[1] != used.encoding.features or not np.isfinite(x).all():
        wanted = f"finite numbers [n, {used.encoding.features}]"
        raise ValueError(f"features of shape {x.shape} do not fit; this model reads {wanted}")
    scores = choice.model.scores(x)
    found = []
    for on, p in zip(fitted.predict(choice.output, scores, choice.threshold), choice.output.distribution(scores)):
        best = ranked(torch.from_numpy(np.array(p)), used.encoding.labels, nbest)
        found.append(Prediction("; ".join(names[on]), float(p[on].sum()), best))
    return found


def line(text: str, number: int, encoding: Encoded) -> np.ndarray:
    """The feature vector in a line of numbers, separated by white space or commas. Raises DataError, naming the line."""
    words: Sequence[str] = [word for word in re.split(r"[\s,]+", text) if word]
    if len(words) != (size := encoding.features):
        said = f"{len(words)} numbers", f"{size} numbers"
        raise damaged(STANDARD_INPUT, *said, line=number, step=STEP)
    return np.array([feature(word, STANDARD_INPUT, number, step=STEP) for word in words])


def graph(used: Any) -> tuple[nn.Module, Any, dict[str, Tensor], list[str]]:
    """The mapping, the function to write as ONNX, an example of each input by its name, and the names of the outputs."""
    choice, weights = used.model, torch.from_numpy(used.model.model.weights.copy())
    output, threshold = choice.output, choice.threshold if choice.output.dense else 0.0
    mapping = sa.make(output.mapping, **output.params)

    def labels(features: Tensor) -> tuple[Tensor, Tensor]:  # as `fitted.predict`
        p = mapping(weights[0] + features @ weights[1:])
        return p, p > threshold

    example = torch.ones(2, used.encoding.features, dtype=torch.float64)
    return mapping, labels, {"features": example}, ["probabilities", "labels"]
