"""Label feature vectors: numbers, or INDEX:VALUE from 1 on; labels joined by "; ". Usage: python predict.py < input

In Python: `from predict import predict; predict(features)` gives pairs of the labels and their total probability."""

from collections.abc import Sequence

import numpy as np

from tasks.load.standalone.opening import FOLDER, answer, stored
from tasks.multilabel import selection
from tasks.multilabel.fitted import load

meta, choice = stored("meta.json"), load(FOLDER)


def predict(features: Sequence[np.ndarray]) -> list[tuple[str, float]]:
    """Labels of feature vectors, scaled like the training data, and their total probability."""
    if not len(features):
        return []
    scores, names = choice.model.scores(np.asarray(features, dtype=np.float64)), np.array(meta["labels"])
    labels, p = selection.predict(choice.output, scores, choice.threshold), choice.output.distribution(scores)
    return [("; ".join(names[on]), float(row[on].sum())) for on, row in zip(labels, p)]


if __name__ == "__main__":
    answer(predict, features=meta["features"])
