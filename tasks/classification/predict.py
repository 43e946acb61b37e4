"""Predictions and attention for a split or for raw texts, in plain torch with batches of texts of similar length."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.classification.encode import EMPTY, EncodedSplit
from tasks.classification.models.snli_attentive import Gru, OnnxGru
from tasks.data import examples
from tasks.data.cache import read_meta
from tasks.data.progress import Done, untold
from tasks.data.records import Example, Prediction, ranked
from tasks.data.symbols import FIRST, PAD, UNK


@dataclass
class Batch:
    """Predictions for some examples: index [B], log_probs [B, C], attention {name: [B, L]}, first text's mask [B, L].
    measures: statistics that the model itself computes for each example, {name: [B]}.
    """

    index: Tensor
    log_probs: Tensor
    attention: dict[str, Tensor]
    mask: Tensor
    measures: dict[str, Tensor] = field(default_factory=dict)


def collate(split: EncodedSplit, rows: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Texts [fields][B, L], padded on the right, and their lengths [fields][B], for the examples `rows`."""
    return padded([[part[int(i)] for i in rows] for part in split.fields])


class Texts(examples.Examples):
    """The texts and labels of a split."""

    def measured(self) -> tuple[np.ndarray]:
        return (self.split.fields[0].lengths,)

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """net_input: texts [fields][B, L], padded on the right, and lengths [fields][B]; target: [B]."""
        texts, lengths = collate(self.split, samples)
        target = torch.from_numpy(self.split.labels[samples])
        return {"net_input": {"texts": texts, "lengths": lengths}, "target": target, "ntokens": int(lengths[0].sum())}


def padded(fields: Sequence[Sequence[np.ndarray]]) -> tuple[list[Tensor], list[Tensor]]:
    """Rows of ids [fields][B][length] as texts [fields][B, L], padded on the right, and their lengths [fields][B]."""
    texts, lengths = zip(*map(examples.padded, fields))
    return list(texts), list(lengths)


@torch.no_grad()
def predict(model: torch.nn.Module, split: EncodedSplit, batch_size: int = 128, done: Done = untold) -> Iterator[Batch]:
    """Log-probabilities and attention of every example, computed on the model's device and returned on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(split.fields[0].lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        texts, lengths = collate(split, rows)
        logits, extra = model([text.to(device) for text in texts], lengths)
        attention = {name: p.float().cpu() for name, p in extra["attention"].items()}
        measures = {name: value.cpu() for name, value in extra.get("measures", {}).items()}
        log_probs = logits.float().log_softmax(-1).cpu()
        yield Batch(torch.from_numpy(rows), log_probs, attention, texts[0].ne(PAD), measures)
        done(min(1.0, (start + batch_size) / len(order)))


def classified(used: Any, texts: Sequence[str | Sequence[str]], *, nbest: int = 1) -> list[Prediction]:
    """Classes that a classifier (a `tasks.use.model.Loaded`) gives to raw texts, or to pairs of texts if it reads two.

    Raises ValueError if an input has the wrong number of texts.
    """
    meta = read_meta(used.encoding.folder)
    examples = [Example((given,) if isinstance(given, str) else tuple(given), 0) for given in texts]
    for number, example in enumerate(examples, 1):
        if len(example.texts) != len(meta["fields"]):
            reads = f"{len(meta['fields'])}: {', '.join(meta['fields'])}"
            raise ValueError(f"input {number} has {len(example.texts)} text(s); this model reads {reads}")
    found: dict[int, Prediction] = {}
    with used.as_test_set(examples, {"classes": meta["classes"], "fields": meta["fields"]}) as test:
        split = test.splits["test"]
        for batch in predict(used.model, split, used.config["train"]["batch_size_valid"]):
            for row, i in enumerate(batch.index.tolist()):
                tokens = split.tokens[0][i]
                weights = torch.stack([p[row, : len(tokens)] for p in batch.attention.values()])
                read = (zip(lines[i], ids[i]) for lines, ids in zip(split.tokens, split.fields))
                unknown = [t for pairs in read for t, n in pairs if n == UNK and t != EMPTY]
                best = ranked(batch.log_probs[row].exp(), test.classes, nbest)
                found[i] = Prediction(*best[0], best, weights, tokens, list(batch.attention), unknown)
    return [found[i] for i in range(len(examples))]


def graph(used: Any) -> tuple[nn.Module, Any, dict[str, Tensor], list[str]]:
    """The network, the function to write as ONNX, an example of each input by its name, and the names of the outputs."""
    network = copy.deepcopy(used.model).cpu().eval()
    for name, part in list(network.named_children()):
        if isinstance(part, Gru):
            setattr(network, name, OnnxGru(part))
    given = {name: torch.full((2, 5 + i), FIRST) for i, name in enumerate(read_meta(used.encoding.folder)["fields"])}
    for text in given.values():
        text[1, -1] = PAD

    def log_probs(*ids: Tensor) -> Tensor:
        return network(list(ids), [text.ne(PAD).sum(1) for text in ids])[0].float().log_softmax(-1)

    return network, log_probs, given, ["log_probs"]
