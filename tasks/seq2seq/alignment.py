"""Evaluates attention as a word aligner: forced decoding of the reference, links from attention, alignment error rate.

An encoder-decoder that is forced to output the reference gives an attention matrix over tokens, [T, S]. If words are
split into subwords, the weights on the subwords of a source word are summed, and the rows of the subwords of a target
word are averaged (Clark et al. 2019). Each target word is then linked to the source word with the largest weight. The
links are compared with human alignments (Och & Ney 2003); sure links must be found, possible links may be found.

The error says something about attention only if it is below that of the diagonal, which links words by their relative
position. It counts one source word per target word; the mass on linked words counts all words, whatever their weights.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sparse_attention.quality import alignment_error_rate, links
from tasks.data.examples import padded
from tasks.data.progress import Done, untold
from tasks.data.symbols import EOS
from tasks.seq2seq.encode import Encoded, Split
from tasks.seq2seq.tokenize import join_subwords

DASH = "@-@"  # the Moses token for a dash inside a word


@torch.no_grad()
def forced(model: nn.Module, split: Split, batch_size: int, done: Done = untold) -> list[Tensor]:
    """Attention [T, S] of each pair of a split, with the reference forced as output; T includes the end of sentence."""
    device = next(model.parameters()).device
    model.eval()
    found: list[Tensor] = [torch.empty(0)] * len(split)
    order = sorted(range(len(split)), key=lambda i: -len(split.source[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        source, lengths = padded([split.source[i] for i in batch])
        before, _ = padded([np.concatenate(([EOS], split.target[i])) for i in batch])
        _, weights = model(source.to(device), lengths.to(device), before.to(device))
        for row, i in enumerate(batch):
            found[i] = weights[row, : len(split.target[i]) + 1, : len(split.source[i])].float().cpu()
        done((start + len(batch)) / len(order))
    return found


def places(tokens: Sequence[str], words: Sequence[str], subword: str) -> list[int] | None:
    """For each token, the index of its word; None if the tokens do not spell the words (ignoring case)."""
    joined = join_subwords(list(tokens), subword)
    units = [len(join_subwords(list(tokens[: i + 1]), subword)) - 1 for i in range(len(tokens))]  # token -> joined
    spelled = [unit.replace(DASH, "-").lower() for unit in joined]
    owner = [n for n, word in enumerate(words) for _ in word.lower()]  # character -> word
    if "".join(spelled) != "".join(words).lower():
        return None
    begin = np.concatenate(([0], np.cumsum([len(unit) for unit in spelled])))
    return [owner[begin[max(unit, 0)]] for unit in units]


def merged(weights: Tensor, source: Sequence[int], target: Sequence[int], size: tuple[int, int]) -> Tensor:
    """Convert attention between tokens [T, S] into attention between words [target words, source words].

    Args:
        source, target: for each token, the index of its word. size: number of target words and of source words.
    """
    across = torch.zeros(weights.size(0), size[1]).index_add_(1, torch.tensor(source, dtype=torch.long), weights)
    rows = torch.tensor(target, dtype=torch.long)
    down = torch.zeros(size).index_add_(0, rows, across)
    return down / torch.bincount(rows, minlength=size[0]).clamp(min=1).unsqueeze(1)


def diagonal(targets: int, sources: int) -> set[tuple[int, int]]:
    """Links (source, target) of each target word to the source word at the same relative position."""
    return {(int((t + 0.5) * sources / targets), t) for t in range(targets)}


def alignment_metrics(model: nn.Module, test: Encoded, batch_size: int, done: Done = untold) -> dict[str, float]:
    """The metrics aer, diagonal_aer and alignment_* of a test set with gold alignments.

    A pair is left out if its tokens do not spell its words, which happens when a tokeniser changes characters.
    """
    split = test.splits["test"]
    found, plain, masses, sure, possible = [], [], [], [], []
    for i, weights in enumerate(forced(model, split, batch_size, done)):
        sides = (split.pairs[i].source.split(), split.pairs[i].references[0].split())
        source = places(split.source_tokens[i], sides[0], test.options.subword)
        target = places(split.target_tokens[i], sides[1], test.options.subword)
        if source is None or target is None:
            continue
        words = merged(weights[:-1], source, target, (len(sides[1]), len(sides[0])))
        found.append(links(words))
        plain.append(diagonal(*words.shape))
        for kept, gold in zip((sure, possible), split.gold[i]):
            kept.append(set(gold))
        linked = torch.zeros_like(words)
        for s, t in sure[-1] | possible[-1]:
            linked[t, s] = 1
        masses += (words * linked).sum(1)[linked.any(1)].tolist()
    score, of_diagonal = (alignment_error_rate(these, sure, possible) for these in (found, plain))
    shares = {f"alignment_{name}": score[name] for name in ("precision", "recall")}
    shares["alignment_mass"] = float(np.mean(masses)) if masses else float("nan")
    left_out = float(len(split) - len(found))
    return {"aer": score["aer"], "diagonal_aer": of_diagonal["aer"], **shares, "alignment_left_out": left_out}
