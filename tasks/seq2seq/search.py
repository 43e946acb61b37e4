"""Beam search in plain torch over a model's `encode`, `start` and `step`.

A hypothesis y_1..y_T, y_T = end of sentence, has log-probability s = sum_t log p(y_t | y_<t, source). Each step extends
the `beam` best unfinished hypotheses by every word and ranks the extensions of a sentence by s; one that ends among the
best `beam` is a result. What differs between toolkits is an option:

    length  average: the score of a result is s / T ** len_penalty (fairseq); none: s itself (OpenNMT 2017)
    stop    all: when `beam` hypotheses have ended; the best `beam` extensions that have not ended go on (fairseq)
            best: when the best extension ends; of the best `beam`, those that have not ended go on (OpenNMT 2017,
            onmt/Beam.py)

An output has one word at least, as in fairseq, and ends after max_len_a * S + max_len_b words at the latest. The limit
is each sentence's own, so that outputs do not depend on what else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from tasks.data.symbols import EOS, PAD, UNK
from tasks.seq2seq.options import Decode

Tensors = dict[str, Tensor]


class Searchable(Protocol):
    """What a model offers; tensors in memory and state are batch-first."""

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> Tensors: ...

    def start(self, memory: Tensors) -> Tensors: ...

    def step(self, tokens: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor, Tensors]: ...


@dataclass(frozen=True)
class Hypothesis:
    """An output.

    Attributes:
        ids: of its T tokens, end of sentence included.
        attention: [T, S], float32 on the CPU; S words of the source without padding.
        score: see `length` above.
        index, tokens: row of its source in the split and surface tokens without special symbols, known after `decode`.
    """

    ids: list[int]
    attention: Tensor
    score: float
    index: int = 0
    tokens: list[str] = field(default_factory=list)

    @property
    def unknown(self) -> bool:
        """Whether the model said the unknown word, replaced or not."""
        return UNK in self.ids


@torch.no_grad()
def beam_search(model: Searchable, src_tokens: Tensor, src_lengths: Tensor, options: Decode) -> list[list[Hypothesis]]:
    """The results of each source, best first.

    Args:
        src_tokens: [B, S] padded on the right. src_lengths: [B].

    Raises:
        ValueError: the model's probabilities are not numbers.
    """
    K, (B, S), device = options.beam, src_tokens.shape, src_tokens.device
    limits = (src_lengths * options.max_len_a).long() + options.max_len_b  # [B] words before the end
    copies = torch.arange(B, device=device).repeat_interleave(K)
    memory = model.encode(src_tokens, src_lengths)
    memory, state = _rows(memory, copies), _rows(model.start(memory), copies)  # [B * K, ...]
    # of the b sentences that are not done: which they are, and the scores, words and attention of their hypotheses
    alive = torch.arange(B, device=device)
    scores = torch.full((B, K), -torch.inf, device=device)
    scores[:, 0] = 0  # one hypothesis, the empty one
    words = torch.empty(B, K, 0, dtype=torch.long, device=device)
    seen = torch.empty(B, K, 0, S, device=device)
    results: list[list[Hypothesis]] = [[] for _ in range(B)]
    for t in range(int(limits.max()) + 1):
        previous = words[:, :, -1].flatten() if t else torch.full((B * K,), EOS, device=device)  # fairseq's first input
        logits, weights, state = model.step(previous, memory, state)
        seen = torch.cat((seen, weights.float().unflatten(0, (-1, K)).unsqueeze(2)), 2)  # [b, K, t + 1, S]
        log_p = torch.log_softmax(logits.float(), -1).unflatten(0, (-1, K))  # [b, K, V]
        extended = (scores.unsqueeze(2) + _allowed(log_p, limits[alive], t)).flatten(1)  # [b, K * V]
        scores, picked = extended.topk(min(2 * K, extended.size(1)), 1)  # [b, 2 * K]
        origin, word = picked // log_p.size(2), picked % log_p.size(2)
        possible = scores > -torch.inf
        ended, going = possible & word.eq(EOS), possible & word.ne(EOS)
        ended[:, K:] = False
        if options.stop == "best":
            going[:, K:] = False
        for row, rank in ended.nonzero().tolist():
            found = results[sentence := int(alive[row])]
            if len(found) < K or options.stop == "best":
                k, divisor = (
                    int(origin[row, rank]),
                    (t + 1) ** options.len_penalty if options.length == "average" else 1,
                )
                attention = seen[row, k, :, : int(src_lengths[sentence])].cpu().clone()
                found.append(Hypothesis([*words[row, k].tolist(), EOS], attention, float(scores[row, rank]) / divisor))
        full = torch.tensor([len(results[i]) >= K for i in alive.tolist()], device=device)
        done = ended[:, 0] if options.stop == "best" else full
        keep = (~done & going.any(1)).nonzero().squeeze(1)
        if not len(keep):
            break
        # the best unfinished ones, in order of their scores; fewer than K leave rows of score -inf behind them
        order = going.logical_not().long().argsort(dim=1, stable=True)[keep, :K]
        scores, origin, word = (x[keep].gather(1, order) for x in (scores.where(going, -torch.inf), origin, word))
        rows = (keep.unsqueeze(1) * K + origin).flatten()
        words, seen = (x.flatten(0, 1)[rows].unflatten(0, (-1, K)) for x in (words, seen))
        words = torch.cat((words, word.unsqueeze(2)), 2)
        state, alive = _rows(state, rows), alive[keep]
        if len(keep) < len(done):
            memory = _rows(memory, rows)  # the hypotheses of one sentence share it
    if not all(results):
        raise ValueError("a sentence has no output: the model's probabilities are not numbers; it diverged in training")
    return [sorted(beam, key=lambda h: -h.score) for beam in results]


def _allowed(log_p: Tensor, limits: Tensor, t: int) -> Tensor:
    """log_p [b, K, V], changed: no padding, no end at the first step, nothing but the end at a sentence's limit [b]."""
    end = log_p[..., EOS].clone()
    if t == 0:
        end[limits > 0] = -torch.inf
    log_p[limits <= t] = -torch.inf
    log_p[..., PAD], log_p[..., EOS] = -torch.inf, end
    return log_p


def _rows(tensors: Tensors, rows: Tensor) -> Tensors:
    """The given rows of every tensor."""
    return {name: tensor.index_select(0, rows) for name, tensor in tensors.items()}
