"""Classification metrics, and attention statistics over a whole test set, accumulated batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.protocol import Evaluation, Metric, Scores, scored
from sparse_attention.quality import attention_statistics, rationale_overlap
from tasks.classification.encode import Encoded, EncodedSplit
from tasks.classification.predict import Batch

MEANS = ("support", "entropy", "max_weight", "segments", "contiguity")
OVERLAP = ("precision", "recall", "f1", "mass")

_ATTENTION = {
    "zeros": ("share", 3, "words without attention, of all words"),
    "support": ("words", 1, "words with attention, mean over texts"),
    "entropy": ("nats", 2, "entropy of the attention, mean over texts"),
    "max_weight": ("share", 3, "largest weight, mean over texts"),
    "segments": ("runs", 2, "runs of neighbouring words with attention, mean over texts"),
    "contiguity": ("share", 3, "1 - (runs - 1) / (words with attention - 1), mean over texts"),
    "marked_precision": ("share", 3, "words with attention that people marked, mean over texts with marked words"),
    "marked_recall": ("share", 3, "marked words with attention, mean over texts with marked words"),
    "marked_f1": ("share", 3, "F1 of the two, mean over texts with marked words"),
    "marked_mass": ("share", 3, "attention on marked words, mean over texts with marked words"),
    "marked_texts": ("texts", 0, "texts with marked words"),
}
# Metrics of models that align two texts; each is a mean over examples.
_ALIGNMENT = {
    "structures": (
        "structures",
        1,
        "structures with weight, mean over pairs of texts; of sequences also over both directions",
    ),
    "aligned": ("words", 1, "words that a word is aligned with, of both directions, mean over pairs of texts"),
    "alignment_zeros": (
        "share",
        3,
        "pairs of words without weight, of all pairs and both directions, mean over pairs of texts",
    ),
}


def _metrics() -> Iterable[Metric]:
    yield Metric(
        "accuracy",
        "%",
        1,
        1,
        1.0,
        "accuracy: share of examples with the right class; model of the best epoch on dev",
        "mean",
    )
    yield Metric("loss", "nats", -1, 3, None, "cross-entropy, mean over examples", None)
    for prefix in ("attention", "density"):  # "density": the second attention of a combined model
        for name, (unit, decimals, signature) in _ATTENTION.items():
            yield Metric(f"{prefix}_{name}", unit, 0, decimals, None, signature, None)
    for name, (unit, decimals, signature) in _ALIGNMENT.items():
        yield Metric(name, unit, 0, decimals, None, signature, None)


def _accuracy(records: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([record["sentence"]["accuracy"] for record in records]))


# Scorers take the records of a test set, as made by `_record`.
MEASURED: Scores = {metric.name: (metric, None) for metric in _metrics()}
MEASURED["accuracy"] = (MEASURED["accuracy"][0], _accuracy)


class AttentionTally:
    """Accumulates `attention_statistics` over batches, and `rationale_overlap` for texts with marked words."""

    def __init__(self) -> None:
        self.rows = self.kept = self.zeros = 0.0
        self.sums = dict.fromkeys(MEANS, 0.0)
        self.texts = 0.0
        self.overlap = dict.fromkeys(OVERLAP, 0.0)

    def add(self, p: Tensor, mask: Tensor, marked: Sequence[np.ndarray]) -> None:
        """Add a batch: attention p [B, L], mask [B, L] (True = keep), and flags of each text's marked words."""
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
        """Means by name: zeros (share of words with zero weight), the names of MEANS, and marked_* with marked_texts,
        the number of texts that have marked words.
        """
        if not self.rows:
            return {}
        values = {"zeros": self.zeros / self.kept} | {k: v / self.rows for k, v in self.sums.items()}
        if self.texts:
            values |= {f"marked_{k}": v / self.texts for k, v in self.overlap.items()} | {"marked_texts": self.texts}
        return values


def score(test: Encoded, batches: Iterable[Batch], name: str = "test", keep_attention: int = 0) -> Evaluation:
    """Metrics, a record of each example, and the attention of the first `keep_attention` examples.

    Args:
        test: an encoding with the split "test" (see `encode_test`).
        batches: the predictions for that split.
        name: name of the test set, used as the prefix of the metrics.
    """
    split = test.splits["test"]
    found = Evaluation({})
    tallies: dict[str, AttentionTally] = {}
    records: dict[int, dict[str, Any]] = {}
    attention: dict[str, Tensor] = {}
    measured: dict[str, float] = {}
    loss = 0.0
    for batch in batches:
        guesses = batch.log_probs.argmax(-1).tolist()
        for place, p in batch.attention.items():
            tallies.setdefault(place, AttentionTally()).add(p, batch.mask, [split.marked[int(i)] for i in batch.index])
        for key, value in batch.measures.items():
            measured[key] = measured.get(key, 0.0) + float(value.sum())
        for row, (i, guess) in enumerate(zip(batch.index.tolist(), guesses)):
            loss -= float(batch.log_probs[row, split.labels[i]])
            records[i] = _record(test.classes, split, name, i, guess, float(batch.log_probs[row, guess]))
            if i < keep_attention:
                tokens = split.tokens[0][i]
                records[i] |= {
                    "source": " ".join(tokens),
                    "source_tokens": tokens,
                    "output_tokens": list(batch.attention),
                }
                records[i]["texts"] = [" ".join(lines[i]) for lines in split.tokens]
                attention[f"{name}/{i}"] = torch.stack([p[row, : len(tokens)] for p in batch.attention.values()])
    found.predictions = [records[i] for i in sorted(records)]
    found.attention = attention
    found.metrics = {f"{name}/{key}": value for key, value in scored(MEASURED, found.predictions).items()}
    found.metrics[f"{name}/loss"] = loss / len(split)
    found.metrics |= {f"{name}/{key}": value / len(split) for key, value in measured.items()}
    for place, tally in tallies.items():  # tables show the first one, so it has the plain name
        prefix = "attention" if place == next(iter(tallies)) else place
        found.metrics |= {f"{name}/{prefix}_{k}": v for k, v in tally.means().items()}
    found.signatures[f"{name}/accuracy"] = f"{MEASURED['accuracy'][0].signature}|n:{len(split)}"
    return found


def _record(
    classes: Sequence[str], split: EncodedSplit, name: str, i: int, guess: int, log_prob: float
) -> dict[str, Any]:
    label = classes[int(split.labels[i])]
    return {
        "set": name, "index": i, "label": label, "output": classes[guess], "references": [label],
        "score": round(log_prob, 4), "sentence": {"accuracy": 100.0 * (classes[guess] == label)},
    }  # fmt: skip


def baselines(encoding: Encoded, test: Encoded, name: str = "test") -> dict[str, dict[str, Any]]:
    """Score of always predicting the most frequent class of the training examples."""
    majority = int(np.argmax(encoding.report["labels"]))
    share = 100 * float((test.splits["test"].labels == majority).mean())
    return {"majority": {f"{name}/accuracy": share, f"{name}/text": f"always {encoding.classes[majority]}"}}
