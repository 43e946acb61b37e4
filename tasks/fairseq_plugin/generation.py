"""Beam search with fairseq's SequenceGenerator, unknown words replaced by the source word attended to most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

UNKNOWN = "<unk>"


@dataclass
class Hypothesis:
    """The best output for one source.

    Attributes:
        index: row in the split.
        tokens: surface tokens without special symbols; unknown ones replaced when asked for.
        attention: [target steps with end-of-sentence, source tokens], float32 on the CPU.
        score: mean log-probability per token.
    """

    index: int
    tokens: list[str]
    attention: Tensor
    score: float


def decode(
    model: torch.nn.Module, task: Any, split: str, *, beam: int, max_len_a: float, max_len_b: int, len_penalty: float = 1.0,
    replace_unk: bool = True, batch_size: int = 32, limit: int | None = None, done: Callable[[int, int], None] = lambda i, n: None,
) -> Iterator[Hypothesis]:  # fmt: skip
    """Decode a split; yields one hypothesis per source, in batches of similar length (not in the split's order).

    The longest output has `max_len_a * s + max_len_b` tokens, s the longest source of its batch; batches are made from
    the sources sorted by length, so the outputs depend on `batch_size` a little and on nothing else. fairseq's "len_penalty" divides by length ** penalty.
    """
    task.load_dataset(split)
    dataset = task.dataset(split)
    part = task.encoded.splits["dev" if split == "valid" else split]
    symbols = task.target_dictionary
    generator = SequenceGenerator(
        [model], symbols, beam_size=beam, max_len_a=max_len_a, max_len_b=max_len_b, len_penalty=len_penalty
    )
    device = next(model.parameters()).device
    order = dataset.src_sizes.argsort(kind="stable")[::-1]
    if limit is not None:
        order = order[order < limit]
    for start in range(0, len(order), batch_size):
        sample = dataset.collater([dataset[int(i)] for i in order[start : start + batch_size]])
        if device.type == "cuda":
            sample = utils.move_to_cuda(sample, device=device)
        for index, nbest in zip(sample["id"].tolist(), generator.generate([model], sample)):
            best = nbest[0]
            source = part.source_tokens(index) or ["<unk>"]
            attention = best["attention"].float().cpu()[: len(source)].t().contiguous()
            text = symbols.string(best["tokens"].int().cpu(), unk_string=UNKNOWN)
            if replace_unk:
                text = utils.replace_unk(text, " ".join(source), attention.argmax(1), {}, UNKNOWN)
            yield Hypothesis(index, text.split(), attention, float(best["score"]))
        done(min(start + batch_size, len(order)), len(order))
