"""Permutation tests by scipy and corpus BLEU by sacrebleu."""

import numpy as np
from sacrebleu.metrics import BLEU
from scipy import stats


def permuted(a, b) -> float:
    """The exact p-value of a difference of means over pairs."""
    sides = np.asarray(a), np.asarray(b)
    mean = {"permutation_type": "samples", "vectorized": True, "n_resamples": np.inf}
    return stats.permutation_test(sides, lambda x, y, axis: np.mean(x - y, axis=axis), **mean).pvalue


def bleu(sums) -> np.ndarray:
    """With sacrebleu's default smoothing, for each row of `sums`: [rows, 10]."""
    counts = [[*map(int, s)] for s in sums]
    return np.array([BLEU.compute_bleu(c[:4], c[4:8], c[8], c[9], smooth_method="exp").score for c in counts])
