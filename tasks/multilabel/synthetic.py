r"""Generated documents with several labels: scikit-learn's ``make_multilabel_classification`` with another law of N.

The process, per document: draw the number of labels N; draw N different classes, one after the other, with probabilities
``p_c``; draw the number of words from Poisson(length), not 0; draw every word from the mean of the word distributions of the
document's classes. Laha et al. 2018, section 5.1.1, replace the law of N:

=============  ========================================  ==================
setting        law of N                                  length
=============  ========================================  ==================
mean_labels    uniform on {value-1, value, value+1}      2000
label_range    uniform on {5-value, ..., 5+value}        2000
length         Poisson(5)                                value (200 .. 2000)
=============  ========================================  ==================

N = 0 and N > K are drawn again, as scikit-learn does. The class and word probabilities come from scikit-learn itself;
the documents are drawn here, all at once: words from a multinomial, classes as the first N arrivals of exponential races.
That is the same law, some hundred times faster than a loop over documents.
"""

from __future__ import annotations

import numpy as np

SETTINGS = ("mean_labels", "label_range", "length")


def label_counts(setting: str, value: int, n: int, classes: int, random: np.random.Generator) -> np.ndarray:
    """Numbers of labels of `n` documents, int64 `[n]`, each in 1..classes.

    Raises:
        ValueError: an unknown setting, or a law that gives no number within 1..classes.
    """
    if setting == "mean_labels":
        allowed = np.arange(value - 1, value + 2)
    elif setting == "label_range":
        allowed = np.arange(5 - value, 5 + value + 1)
    elif setting == "length":
        return _poisson(5.0, n, random, most=classes)
    else:
        raise ValueError(f"task.data.setting={setting!r} is unknown; allowed: {', '.join(SETTINGS)}")
    allowed = allowed[(allowed >= 1) & (allowed <= classes)]
    if not len(allowed):
        raise ValueError(
            f"task.data.value={value} with setting={setting} leaves no number of labels within 1..{classes}"
        )
    return random.choice(allowed, n)


def _poisson(mean: float, n: int, random: np.random.Generator, most: float = np.inf) -> np.ndarray:
    drawn = random.poisson(mean, n)
    while (bad := (drawn == 0) | (drawn > most)).any():
        drawn[bad] = random.poisson(mean, int(bad.sum()))
    return drawn


def distributions(classes: int, features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's class probabilities `[classes]` and word probabilities per class `[features, classes]` for a seed."""
    from sklearn.datasets import make_multilabel_classification

    *_, p_c, p_w_c = make_multilabel_classification(
        n_samples=1, n_features=features, n_classes=classes, n_labels=1, length=1, allow_unlabeled=False,
        return_distributions=True, random_state=seed,
    )  # fmt: skip
    return p_c, p_w_c


def documents(
    counts: np.ndarray, length: int, p_c: np.ndarray, p_w_c: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Word counts `[n, features]` (float64) and labels `[n, classes]` (bool) of documents with `counts` labels `[n]` each."""
    # Classes arrive at exponential times with rates p_c; the first N are N draws without replacement.
    arrival = random.exponential(size=(len(counts), len(p_c))) / p_c
    labels = arrival.argsort(1).argsort(1) < counts[:, None]
    words = labels @ p_w_c.T
    words /= words.sum(1, keepdims=True)
    return random.multinomial(_poisson(length, len(counts), random), words).astype(float), labels


def generate(
    setting: str, value: int, sizes: dict[str, int], classes: int, features: int, length: int, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Splits (word counts, labels) of one draw of the class and word probabilities; deterministic in `seed`.

    Args:
        value: the setting's own number, see the module.
        sizes: documents per split.
        length: mean number of words, unless the setting varies it.
    """
    p_c, p_w_c = distributions(classes, features, seed)
    random = np.random.default_rng([seed, SETTINGS.index(setting) if setting in SETTINGS else 0, value])
    made = {}
    for split, n in sizes.items():
        counts = label_counts(setting, value, n, classes, random)
        made[split] = documents(counts, value if setting == "length" else length, p_c, p_w_c, random)
    return made
