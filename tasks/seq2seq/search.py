"""Beam search in plain torch, using a model's `encode`, `start` and `step`.

A hypothesis y_1..y_T, where y_T is the end of sentence, has log-probability s = sum_t log p(y_t | y_<t, source). Each
step extends the `beam` best unfinished hypotheses by every word and ranks the extensions of a sentence by s. An
extension among the best `beam` that ends is a result. Toolkits differ in two points, which are options:

    length  average: the score of a result is s / T ** len_penalty (fairseq); none: it is s itself (OpenNMT 2017)
    stop    all: stop when `beam` hypotheses have ended; continue the best `beam` unfinished extensions (fairseq)
            best: stop when the best extension ends; continue the unfinished ones of the best `beam` (OpenNMT 2017,
            onmt/Beam.py)

An output has at least one word, as in fairseq, and at most max_len_a * S + max_len_b words. The limit is computed for
each sentence separately, so that outputs do not depend on the rest of the batch.

Each step ranks the extensions on the model's device. The 2 * beam best scores and words of each sentence are
transferred to the host, which chooses those to keep and transfers the choice back. The words and attention of an output
are collected at the end, by following the rows that led to it.

Finished outputs can be reranked by the score of GNMT (Wu et al. 2016), log p / lp + coverage_penalty * cp, with

    lp = ((5 + T) / 6) ** len_penalty             if decode.length=wu; T tokens, end of sentence included
    cp = sum_i log min(max(sum_t p_ti, .1), 1)    over source words; .1 as in the code of Malaviya et al. 2018

As in OpenNMT, the search itself uses log p. With decode.stop=all, more outputs end, so that reranking has more choices.

With a sparse output layer (`model.output`), an extension of probability 0 is never kept, so a sentence can have fewer
than `beam` results. If it has none and every extension that the options allow has probability 0, its best hypothesis
ends there; its score is that of its words. (Peters, Niculae & Martins 2019, "Sparse Sequence-to-Sequence Models".)

`decode` searches in batches of similar length, and replaces unknown words by the most attended source word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sparse_attention as sa
from tasks.data.examples import padded
from tasks.data.progress import Done, untold
from tasks.data.symbols import EOS, FIRST, PAD, SPECIAL, UNK
from tasks.seq2seq.encode import Encoded
from tasks.seq2seq.options import OUTPUTS, Decode

Tensors = dict[str, Tensor]
Ended = tuple[float, int, int]  # a hypothesis that ended: its score, the step, its row of that step
LEAST = 0.1  # lower bound of a source word's total attention


@dataclass(frozen=True)
class Hypothesis:
    """An output.

    Attributes:
        ids: ids of its T tokens, end of sentence included.
        attention: [T, S], float32 on the CPU, where S is the number of source words without padding.
        score: see `length` above.
        index, tokens: row of the source in the split, and surface tokens without special symbols; set by `decode`.
    """

    ids: list[int]
    attention: Tensor
    score: float
    index: int = 0
    tokens: list[str] = field(default_factory=list)


@torch.no_grad()
def beam_search(
    model: Any,
    src_tokens: Tensor,
    src_lengths: Tensor,
    options: Decode,
    most: int | None = None,
    **inputs: Tensor,
) -> list[list[Hypothesis]]:
    """The results of each source, best first.

    Args:
        model: with `encode`, `start` and `step` (`tasks.seq2seq.models`); tensors in memory and state are batch-first.
        src_tokens: [B, S] padded on the right. src_lengths: [B], best on the CPU.
        most: maximal number of results per source; None means all.
        inputs: further inputs of the model's `encode`, batch-first.

    Raises:
        ValueError: the model's probabilities contain NaN.
    """
    K, B, device = options.beam, len(src_tokens), src_tokens.device
    lengths = src_lengths.cpu()
    limits = ((lengths * options.max_len_a).long() + options.max_len_b).numpy()  # [B] words allowed before the end
    copies = torch.arange(B, device=device).repeat_interleave(K, output_size=B * K)
    memory = model.encode(src_tokens, src_lengths, **inputs)
    memory, state = _rows(memory, copies), _rows(model.start(memory), copies)  # [B * K, ...]
    # for the b unfinished sentences: their indices, and the scores and last words of their hypotheses
    alive = np.arange(B)
    scores = torch.full((B, K), -torch.inf, device=device)
    scores[:, 0] = 0  # one hypothesis, the empty one
    words = torch.full((B * K,), EOS, device=device)  # fairseq's first input
    # for each step, the attention of its rows; from the second on, the rows of the step before that led to them, with their words
    attention: list[Tensor] = []
    led: list[np.ndarray] = []
    said: list[np.ndarray] = []
    results: list[list[Ended]] = [[] for _ in range(B)]
    for t in range(int(limits.max()) + 1):
        logits, weights, state = model.step(words, memory, state)
        attention.append(weights.float())
        log_p = log_probabilities(model, logits).unflatten(0, (-1, K))  # [b, K, V]
        extended = _allowed(log_p, limits[alive], t).add_(scores.unsqueeze(2)).flatten(1)  # [b, K * V]
        best, picked = extended.topk(min(2 * K, extended.size(1)), 1)  # [b, 2 * K]
        found, places = np.split(torch.cat((best.double(), picked.double()), 1).cpu().numpy(), 2, axis=1)
        origin, word = np.divmod(places.astype(np.int64), log_p.size(2))
        possible = found > -np.inf
        ended, going = possible & (word == EOS), possible & (word != EOS)
        ended[:, K:] = False
        if options.stop == "best":
            going[:, K:] = False
        divisor = (t + 1) ** options.len_penalty if options.length == "average" else 1
        for row, rank in np.argwhere(ended).tolist():
            of = results[alive[row]]
            if len(of) < K or options.stop == "best":
                of.append((float(found[row, rank]) / divisor, t, row * K + int(origin[row, rank])))
        for row in np.flatnonzero(~possible.any(1) & ~np.isnan(found).any(1)):  # every allowed word has probability 0
            if not (of := results[alive[row]]):
                of.append((float(scores[row, 0]) / divisor, t, row * K))
        done = ended[:, 0] if options.stop == "best" else np.array([len(results[i]) >= K for i in alive])
        keep = np.flatnonzero(~done & going.any(1))
        if not len(keep):
            break
        # the best unfinished hypotheses, sorted by score; if there are fewer than K, the other rows get score -inf
        order = np.argsort(~going, axis=1, kind="stable")[keep, :K]
        kept = (np.where(going, found, -np.inf), origin, word)
        found, origin, word = (np.take_along_axis(x[keep], order, 1) for x in kept)
        led.append((keep[:, None] * K + origin).ravel())
        said.append(word.ravel())
        scores = torch.from_numpy(found).float().to(device, non_blocking=True)
        rows, words = torch.from_numpy(np.stack((led[-1], said[-1]))).to(device, non_blocking=True)
        state, alive = _rows(state, rows), alive[keep]
        if len(keep) < len(done):
            memory = _rows(memory, rows)  # the hypotheses of one sentence share it
    if not all(results):
        raise ValueError("a sentence has no output: the probabilities are NaN; train with a lower optim.lr")
    best_first = [sorted(of, key=lambda h: -h[0])[:most] for of in results]
    # trace the results back, from the last step to the first
    ended = [h for of in best_first for h in of]
    last, row = np.array([t for _, t, _ in ended]), np.array([row for *_, row in ended])
    first = np.cumsum([0, *map(len, attention)])  # index of each step's first row among all rows
    at, ids = np.zeros((2, len(ended), last.max() + 1), dtype=np.int64)
    ids[np.arange(len(ended)), last] = EOS
    for t in range(last.max(), -1, -1):
        on = np.flatnonzero(last >= t)
        at[on, t] = first[t] + row[on]
        if t:
            ids[on, t - 1] = said[t - 1][row[on]]
            row[on] = led[t - 1][row[on]]
    seen = torch.cat(attention)
    wanted = torch.from_numpy(np.concatenate([own[: t + 1] for own, t in zip(at, last)]))
    parts = iter(seen[wanted.to(seen.device)].cpu().split((last + 1).tolist()))
    outputs = iter(own[: t + 1].tolist() for own, t in zip(ids, last))
    return [
        [Hypothesis(next(outputs), next(parts)[:, :length].clone(), score) for score, *_ in of]
        for of, length in zip(best_first, lengths.tolist())
    ]


def output_alpha(model: Any) -> float:
    """Alpha of the entmax that is a model's output layer; 1, which is softmax, without `model.output`."""
    return OUTPUTS.get(getattr(getattr(model, "options", None), "output", None) or "", 1.0)


def log_probabilities(model: Any, logits: Tensor) -> Tensor:
    """Log-probabilities of the words in float32, from a model's logits [..., V]; -inf for probability 0."""
    alpha, logits = output_alpha(model), logits.float()
    return torch.log_softmax(logits, -1) if alpha == 1 else sa.entmax(logits, alpha=alpha).log()


def _allowed(log_p: Tensor, limits: np.ndarray, t: int) -> Tensor:
    """Mask log_p [b, K, V] in place: no padding, no end at the first step, only the end at a sentence's limit [b]."""
    log_p[..., PAD] = -torch.inf
    if (limits <= t).any():
        at = torch.from_numpy(np.flatnonzero(limits <= t)).to(log_p.device)
        end = log_p[at, :, EOS]
        log_p[at] = -torch.inf
        log_p[at, :, EOS] = end
    if t == 0:
        log_p[..., EOS] = -torch.inf
    return log_p


def _rows(tensors: Tensors, rows: Tensor) -> Tensors:
    """Select the given rows of every tensor."""
    return {name: tensor.index_select(0, rows) for name, tensor in tensors.items()}


def ranked(results: Sequence[Hypothesis], options: Decode) -> list[Hypothesis]:
    """The results of a search with the scores of GNMT, best first."""

    def score(h: Hypothesis) -> float:
        divisor = ((5 + len(h.ids)) / 6) ** options.len_penalty if options.length == "wu" else 1.0
        coverage = float(h.attention.sum(0).clamp(LEAST, 1.0).log().sum())
        return h.score / divisor + options.coverage_penalty * coverage

    return sorted((replace(h, score=score(h)) for h in results), key=lambda h: -h.score)


def decode(
    model: nn.Module,
    encoded: Encoded,
    options: Decode,
    done: Done = untold,
    inputs: Mapping[str, Sequence[np.ndarray]] | None = None,
    most: int = 1,
    split: str = "test",
    share: slice = slice(None),
) -> list[list[Hypothesis]]:
    """Up to `most` outputs for each source of a split, best first, in the order of the sources.

    Args:
        model: see `beam_search`; it is put into evaluation mode.
        encoded: an encoding with the split.
        done: called with the share of sentences decoded.
        inputs: further inputs of the model's `encode`: name -> one row of numbers per source.
        share: the sources to decode; by default all.
    """
    part, device = encoded.splits[split], next(model.parameters()).device
    rows, chosen = part.source, range(len(part.source))[share]
    model.eval()
    found: dict[int, list[Hypothesis]] = {}
    order = sorted(chosen, key=lambda i: -len(rows[i]))
    for start in range(0, len(order), options.batch_size):
        batch = order[start : start + options.batch_size]
        src_tokens, src_lengths = padded([rows[i] for i in batch])
        given = {name: padded([side[i] for i in batch])[0].to(device) for name, side in (inputs or {}).items()}
        again = options.length == "wu" or options.coverage_penalty != 0
        found_here = beam_search(model, src_tokens.to(device), src_lengths, options, None if again else most, **given)
        for i, results in zip(batch, found_here):
            copied = part.source_tokens[i] if options.replace_unk else None
            best = (ranked(results, options) if again else results)[:most]
            found[i] = [replace(h, index=i, tokens=surface(h, encoded.target_vocab, copied)) for h in best]
        done((start + len(batch)) / len(order))
    return [found[i] for i in chosen]


def surface(hypothesis: Hypothesis, vocabulary: Sequence[str], source: Sequence[str] | None) -> list[str]:
    """Tokens of an output, without the end of sentence.

    If `source` is given, an unknown word is replaced by the source token with the largest attention.
    """
    tokens = []
    for i, weights in zip(hypothesis.ids[:-1], hypothesis.attention):
        if i == UNK and source is not None:
            tokens.append(source[int(weights.argmax())])
        else:
            tokens.append(vocabulary[i - FIRST] if i >= FIRST else SPECIAL[i])
    return tokens
