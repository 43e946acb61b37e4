"""What attention looks like over a whole test set, added up batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparse_attention.quality import attention_statistics, rationale_overlap

MEANS = ("support", "entropy", "max_weight", "segments", "contiguity")
OVERLAP = ("precision", "recall", "f1", "mass")


class AttentionTally:
    """Means of `attention_statistics`, and of `rationale_overlap` where words are marked, over batches of attention [B, L]."""

    def __init__(self) -> None:
        self.rows = self.kept = self.zeros = 0.0
        self.sums = dict.fromkeys(MEANS, 0.0)
        self.texts = 0.0
        self.overlap = dict.fromkeys(OVERLAP, 0.0)

    def add(self, p: Tensor, mask: Tensor, marked: Sequence[np.ndarray]) -> None:
        """p [B, L], mask [B, L] True = keep, marked: one array of flags per row, as long as its text."""
        found = attention_statistics(p, mask)
        rows, kept = found["rows"], float(mask.sum())
        if not rows:
            return
        self.rows += rows
        self.kept += kept
        self.zeros += found["zeros"] * kept
        for name in MEANS:
            self.sums[name] += found[name] * rows
        if any(flags.any() for flags in marked):
            flags = torch.zeros(p.shape, dtype=torch.bool)
            for row, own in enumerate(marked):
                flags[row, : len(own)] = torch.from_numpy(np.array(own, dtype=bool))
            overlap = rationale_overlap(p, flags, mask)
            self.texts += overlap["texts"]
            for name in OVERLAP:
                self.overlap[name] += overlap[name] * overlap["texts"]

    def means(self) -> dict[str, float]:
        """zeros (share of words without weight), the names of MEANS, and marked_* with the number of texts behind them."""
        if not self.rows:
            return {}
        values = {"zeros": self.zeros / self.kept} | {k: v / self.rows for k, v in self.sums.items()}
        if self.texts:
            values |= {f"marked_{k}": v / self.texts for k, v in self.overlap.items()} | {"marked_texts": self.texts}
        return values
