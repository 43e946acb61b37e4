"""Classification metrics, and attention statistics over a whole test set, accumulated batch by batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from repro.protocol import Evaluation, Metric, Scores, scored
from sparse_attention.quality import attention_statistics, rationale_overlap
from tasks.classification.encode import Encoded, EncodedSplit
from tasks.classification.predict import Batch, predict
from tasks.data.files import remembered

REGRESSION = 1  # increased when the same texts give another score of the regression
_MARKED = "mean over texts with marked words"
# Statistics of the attention to the first text: unit, decimals, weight of the batch means (see `_shape`), signature.
_ATTENTION = {
    "zeros": ("share", 3, "kept", "words without attention, of all words"),
    "support": ("words", 1, "rows", "words with attention, mean over texts"),
    "entropy": ("nats", 2, "rows", "entropy of the attention, mean over texts"),
    "max_weight": ("share", 3, "rows", "largest weight, mean over texts"),
    "segments": ("runs", 2, "rows", "runs of neighbouring words with attention, mean over texts"),
    "contiguity": ("share", 3, "rows", "1 - (runs - 1) / (words with attention - 1), mean over texts"),
    "marked_precision": ("share", 3, "marked_texts", f"words with attention that people marked, {_MARKED}"),
    "marked_recall": ("share", 3, "marked_texts", f"marked words with attention, {_MARKED}"),
    "marked_f1": ("share", 3, "marked_texts", f"F1 of the two, {_MARKED}"),
    "marked_mass": ("share", 3, "marked_texts", f"attention on marked words, {_MARKED}"),
    # only of the first attention, if `task.scores` has "attention"
    "groups": ("groups", 2, "rows", "runs of equal weight among neighbouring words, mean over texts"),
    "clusters": ("share", 3, "rows", "distinct weights, of the words with attention, mean over texts"),
}


def _metrics() -> Iterable[Metric]:
    examples = "accuracy: share of examples with the right class; model of the best epoch on dev"
    yield Metric("accuracy", "%", 1, 1, 1.0, examples, "mean")
    yield Metric("macro_f1", "%", 1, 1, None, "F1 of each class, mean over the classes")
    yield Metric("loss", "nats", -1, 3, None, "cross-entropy, mean over examples")
    for prefix in ("attention", "density"):  # "density": the second attention of a combined model
        for name, (unit, decimals, _, signature) in _ATTENTION.items():
            yield Metric(f"{prefix}_{name}", unit, 0, decimals, None, signature)
        yield Metric(f"{prefix}_marked_texts", "texts", 0, 0, None, "texts with marked words")
    # of models that align two texts
    pairs = "mean over pairs of texts"
    structures = f"structures with weight, {pairs}; of sequences also over both directions"
    yield Metric("structures", "structures", 0, 1, None, structures)
    aligned = f"words that a word is aligned with, of both directions, {pairs}"
    yield Metric("aligned", "words", 0, 1, None, aligned)
    zeros = f"pairs of words without weight, of all pairs and both directions, {pairs}"
    yield Metric("alignment_zeros", "share", 0, 3, None, zeros)
    forward = (
        f"neighbouring words aligned with ever later words (1/2 where the mean place stays), both directions, {pairs}"
    )
    yield Metric("monotony", "share", 0, 3, None, forward)
    yield Metric("symmetry", "share", 0, 3, None, f"weight that both directions have in common, {pairs}")
    # of `tasks.classification.faithfulness`
    erased = "class probability of the text minus that {} the attended words, mean over 1 to 50 % of the words and over texts"
    yield Metric("comprehensiveness", "probability", 0, 3, None, erased.format("without"))
    yield Metric("sufficiency", "probability", 0, 3, None, erased.format("of"))


# Scorers take the records of a test set, as `score` makes them: `label`, `output`, `score` (log p of the output), `sentence` (its metrics), ....
MEASURED: Scores = {metric.name: (metric, None) for metric in _metrics()}


def _pooled(batches: Sequence[Mapping[str, float]], name: str, weight: str) -> float | None:
    """Mean of a statistic over batches, each weighted by its number of `weight`; None if that is zero in all batches."""
    total = sum(one[weight] for one in batches)
    return sum(one[name] * one[weight] for one in batches if one[weight]) / total if total else None


def _shape(p: Tensor, mask: Tensor, marked: Sequence[np.ndarray]) -> dict[str, float]:
    """Statistics of a batch: attention p [B, L], mask [B, L] (True = keep), and flags of each text's marked words.

    `attention_statistics`; marked_*: `rationale_overlap` with the marked words; kept: number of words.
    """
    flags = pad_sequence([torch.from_numpy(np.array(own, dtype=bool)) for own in marked], batch_first=True)
    overlap = {f"marked_{k}": v for k, v in rationale_overlap(p, flags, mask).items()}
    return {**attention_statistics(p, mask), **overlap, "kept": float(mask.sum())}


def score(
    test: Encoded, batches: Iterable[Batch], name: str = "test", keep_attention: int = 0, scores: Sequence[str] = ()
) -> Evaluation:
    """Metrics, a record of each example, and the attention of the first `keep_attention` examples.

    Args:
        test: an encoding with the split "test" (see `encode_test`).
        batches: the predictions for that split.
        name: name of the test set, used as the prefix of the metrics.
        scores: the extra metrics in `task.scores`; "faithfulness" is computed elsewhere.
    """
    split = test.splits["test"]
    shapes: dict[str, list[dict[str, float]]] = {}
    records: dict[int, dict[str, Any]] = {}
    attention: dict[str, Tensor] = {}
    sums = {"loss": 0.0}
    for batch in batches:
        guesses = batch.log_probs.argmax(-1).tolist()
        for place, p in batch.attention.items():
            shapes.setdefault(place, []).append(_shape(p, batch.mask, [split.marked[int(i)] for i in batch.index]))
        for key, value in batch.measures.items():
            sums[key] = sums.get(key, 0.0) + float(value.sum())
        for row, (i, guess) in enumerate(zip(batch.index.tolist(), guesses)):
            sums["loss"] -= float(batch.log_probs[row, split.labels[i]])
            label, output = test.classes[int(split.labels[i])], test.classes[guess]
            records[i] = {"set": name, "index": i, "label": label, "output": output, "references": [label]}
            records[i]["score"] = round(float(batch.log_probs[row, guess]), 4)
            records[i]["sentence"] = {"accuracy": 100.0 * (output == label)}
            if i < keep_attention:
                tokens = split.tokens[0][i]
                records[i] |= {"source": " ".join(tokens), "source_tokens": tokens}
                records[i] |= {"output_tokens": list(batch.attention), "texts": [" ".join(x[i]) for x in split.tokens]}
                attention[f"{name}/{i}"] = torch.stack([p[row, : len(tokens)] for p in batch.attention.values()])
    predictions = [records[i] for i in sorted(records)]
    values = scored(MEASURED, predictions) | {key: value / len(split) for key, value in sums.items()}
    values["accuracy"] = float(np.mean([record["sentence"]["accuracy"] for record in predictions]))
    for place, told in shapes.items():  # tables show the first one, so it has the plain name
        prefix = "attention" if place == next(iter(shapes)) else place
        found = {key: _pooled(told, key, weight) for key, (_, _, weight, _) in _ATTENTION.items()}
        if prefix != "attention" or "attention" not in scores:
            del found["groups"], found["clusters"]
        found["marked_texts"] = sum(one["marked_texts"] for one in told) or None
        values |= {f"{prefix}_{key}": value for key, value in found.items() if value is not None}
    signature = f"{MEASURED['accuracy'][0].signature}|n:{len(split)}"
    if "macro_f1" in scores:
        values["macro_f1"] = macro_f1(predictions)
    metrics = {f"{name}/{key}": value for key, value in values.items()}
    return Evaluation(metrics, {f"{name}/accuracy": signature}, predictions, attention)


def dev_scores(net: nn.Module, data: Encoded, metric: str, *_: int) -> dict[str, float]:
    """Macro-F1 on dev, if `train.best_metric` names it; {} otherwise."""
    if metric != "macro_f1":
        return {}
    split, training, records = data.splits["dev"], net.training, []
    for batch in predict(net, split):
        for i, output in zip(batch.index.tolist(), batch.log_probs.argmax(-1).tolist()):
            records.append({"label": int(split.labels[i]), "output": output})
    net.train(training)
    return {"dev/macro_f1": round(macro_f1(records), 4)}


def macro_f1(records: Sequence[Mapping[str, Any]]) -> float:
    """Mean over the classes of their F1, in per cent, from the records of `score`."""
    from sklearn.metrics import f1_score

    labels, outputs = ([record[key] for record in records] for key in ("label", "output"))
    return 100 * float(f1_score(labels, outputs, average="macro", zero_division=0))


def baselines(encoding: Encoded, test: Encoded, name: str = "test") -> dict[str, dict[str, Any]]:
    """Scores of always predicting the most frequent training class, and of a logistic regression without attention.

    The regression sees which words a text has (tf-idf), not their order; in a pair of texts, it sees only the second (for
    entailment: the hypothesis). It is trained on all training examples, so it is missing if there are no training
    examples (only a finished model) or only one class. Its score is stored next to the test set.
    """
    majority, split = int(np.argmax(encoding.report["labels"])), test.splits["test"]
    share = 100 * float((split.labels == majority).mean())
    found = {"majority": {f"{name}/accuracy": share, f"{name}/text": f"always {encoding.classes[majority]}"}}
    train = encoding.splits.get("train")
    if train is not None and len(np.unique(train.labels)) > 1:
        which = "bag of words" + ", second text alone" * (len(train.fields) > 1)
        key = f"{REGRESSION} {encoding.sha256} {test.sha256}"
        cache = test.folder.parent / f"{test.folder.name}.baselines.json"
        accuracy = remembered(cache, key, lambda: _regression(train, split, encoding.size))
        found[which] = {f"{name}/accuracy": accuracy}
    return found


def _regression(train: EncodedSplit, test: EncodedSplit, words: int) -> float:
    """Accuracy in per cent of a logistic regression on the words of the last text of each example."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    def counts(split: EncodedSplit) -> csr_matrix:
        flat, offsets = np.asarray(split.fields[-1].flat), np.asarray(split.fields[-1].offsets)
        return csr_matrix((np.ones(len(flat)), flat, offsets), (len(split), words))

    model = make_pipeline(TfidfTransformer(), LogisticRegression(max_iter=1000))
    return 100 * float(model.fit(counts(train), train.labels).score(counts(test), test.labels))
