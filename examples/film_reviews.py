"""A small BERT of transformers on film reviews, from random weights: softmax beside sparsemax, and where its zeros are.

    python examples/film_reviews.py                      # Rotten Tomatoes snippets; two CPU minutes
    python examples/film_reviews.py --data toy_reviews --epochs 1 --train 200      # generated, seconds

Needs the extras `transformers` (the model) and `repro` (the data). One seed, one model: an illustration, not a result.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
try:
    import torchaudio  # noqa: F401  transformers loads it with every model; one of another CUDA than torch would stop that
except (ImportError, OSError, RuntimeError):
    sys.modules["torchaudio"] = None  # type: ignore[assignment]

from transformers import BertConfig, BertForSequenceClassification

import sparse_attention as sa
from tasks.data import NullProgress, open_data

PAD, UNKNOWN, START, WORDS = 0, 1, 2, 48


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def encoded(examples, vocabulary: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Word numbers ``[N, WORDS]``, the start symbol first, and classes ``[N]``."""
    rows = [[START, *(vocabulary.get(w, UNKNOWN) for w in words(e.texts[0]))][:WORDS] for e in examples]
    return torch.tensor([row + [PAD] * (WORDS - len(row)) for row in rows]), torch.tensor([e.label for e in examples])


def batches(ids: Tensor, labels: Tensor, order: Tensor):
    for chosen in order.split(64):
        x = ids[chosen]
        x = x[:, : int((x != PAD).sum(1).max())]
        yield {"input_ids": x, "attention_mask": (x != PAD).long(), "labels": labels[chosen]}


def train(
    mapping: str, data: dict[str, tuple[Tensor, Tensor]], size: int, epochs: int
) -> BertForSequenceClassification:
    torch.manual_seed(1)
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
    config = BertConfig(vocab_size=size, hidden_size=96, max_position_embeddings=WORDS, **layers)
    model = sa.integrations.transformers.use(BertForSequenceClassification(config), mapping)
    optimiser = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=0.01)
    for _ in range(epochs):
        model.train()
        for batch in batches(*data["train"], torch.randperm(len(data["train"][0]))):
            optimiser.zero_grad()
            model(**batch).loss.backward()
            optimiser.step()
        print(f"  {mapping}: dev accuracy {accuracy(model, data['dev']):.1f}", flush=True)
    return model


@torch.no_grad()
def accuracy(model, split: tuple[Tensor, Tensor]) -> float:
    model.eval()
    hits = [model(**b).logits.argmax(-1) == b["labels"] for b in batches(*split, torch.arange(len(split[0])))]
    return 100 * float(torch.cat(hits).float().mean())


@torch.no_grad()
def zeros(model, split: tuple[Tensor, Tensor]) -> list[float]:
    """By layer, the share of weights between words (padding left out) that are exactly 0, in per cent."""
    model.eval()
    none, count = [0.0, 0.0], 0.0
    for batch in batches(*split, torch.arange(len(split[0]))):
        real = batch["attention_mask"].bool()
        pairs = (real[:, None, :, None] & real[:, None, None]).expand(-1, 4, -1, -1)
        count += float(pairs.sum())
        for layer, p in enumerate(model(**batch, output_attentions=True).attentions):
            none[layer] += float(((p == 0) & pairs).sum())
    return [100 * n / count for n in none]


@torch.no_grad()
def looked_at(model, ids: Tensor, vocabulary: dict[str, int]) -> str:
    """The words to which some head of the last layer gives weight from the start symbol, with the largest of the heads."""
    x = ids[None, : int((ids != PAD).sum())]
    p = model(x, output_attentions=True).attentions[-1][0, :, 0].amax(0)
    names = {number: word for word, number in vocabulary.items()}
    shown = [f"{names.get(int(i), '?')}:{w:.2f}" for i, w in zip(x[0, 1:], p[1:]) if w > 0]
    return f"{len(shown)} of {x.shape[1] - 1} words: {' '.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", default="rotten_tomatoes", help="a data set of texts: rotten_tomatoes, imdb, toy_reviews"
    )
    parser.add_argument("--cache", default="data/cache", help="folder of downloads")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--train", type=int, default=None, help="training examples; all by default")
    asked = parser.parse_args()
    read = open_data({"name": asked.data}, asked.cache).read(NullProgress())
    read = {**read, "train": list(read["train"])[: asked.train]}
    counts = Counter(w for e in read["train"] for w in words(e.texts[0]))
    vocabulary = {w: i + 3 for i, w in enumerate(sorted(w for w, n in counts.items() if n > 1))}
    data = {split: encoded(read[split], vocabulary) for split in ("train", "dev", "test")}
    print(f"{asked.data}: {', '.join(f'{len(y)} {s}' for s, (_, y) in data.items())}; {len(vocabulary)} words")
    for mapping in ("softmax", "sparsemax"):
        start = time.perf_counter()
        model = train(mapping, data, len(vocabulary) + 3, asked.epochs)
        took = time.perf_counter() - start
        shares = ", ".join(f"{share:.0f} %" for share in zeros(model, data["test"]))
        print(f"{mapping}: test accuracy {accuracy(model, data['test']):.1f}, {took:.0f} s, zeros by layer {shares}")
        print(f"  {looked_at(model, data['test'][0][0], vocabulary)}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
