r"""ESIM (Chen et al. 2017) aligns two texts word by word; the alignment follows Peters et al. 2018.

    a_1..a_n, b_1..b_m = biLSTM(words)                          both texts, the same biLSTM
    e_ij = a_i' b_j                                             scores of pairs of words
    p = mapping(e) over j,  q = mapping(e') over i              over rows: each word by itself; sequences: whole texts
    p = q' = mapping(e)                                         matchings: one alignment for both directions
    x_i = relu(W [a_i; c_i; a_i - c_i; a_i * c_i] + b),  c_i = sum_j p_ij b_j;  y_j likewise
    v = [mean; max] of biLSTM'(x) and of biLSTM'(y)             the same biLSTM'
    label ~ softmax(V tanh(U v + d) + e)

A sequence mapping (sparsemap_sequence, softmax_sequence) goes through one text and selects a word of the other at each
step. The score of moving from word j to word k is learned for each distance k - j; distances beyond `bandwidth` use the
score at `bandwidth`. A word that a matching leaves unaligned has c = 0. Dropout is applied to the word vectors, x, y
and v. Sources: Chen et al. 2017, without trees; Niculae et al. 2018 for the two kinds of structures (their sequences
also score where they start and end).
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from repro.options import integer
from sparse_attention.structured.rows import Solution
from tasks.classification.models._words import PairOptions, WordModel
from tasks.config.files import defaults
from tasks.config.models import Place
from tasks.data.symbols import PAD
from tasks.layers.lstm import BiLstm

TEXTS = 2  # per example
STILL = 1e-3  # of a word: smaller moves of a mean place are none
PLACES = {"attention": Place(over=("row", "sequence", "matching"), provides=("transitions",))}


@defaults("model/esim")
class Options(PairOptions):
    """The sizes of Chen et al. 2017."""

    hidden_dim: int = integer(low=1, help="units of the LSTMs (per direction), projection and classifier")
    bandwidth: int = integer(low=0, help="for sequences: all longer distances share one score")


class Model(WordModel):
    """Built from `Options`, an encoding (see `WordModel`) and {"attention": mapping}."""

    def __init__(self, options: Options, encoded: Any, mappings: Mapping[str, nn.Module]) -> None:
        super().__init__(options, encoded)
        size = options.hidden_dim
        self.read = BiLstm(self.vectors.dim, size)
        self.mapping = mappings["attention"]
        self.over = self.mapping.spec.over
        function = self.mapping.spec.function
        self.lists = function is not None and "return_structures" in inspect.signature(function).parameters
        if self.over == "sequence":
            self.distances = nn.Parameter(torch.zeros(2 * options.bandwidth + 1))
        self.compare = nn.Linear(8 * size, size)
        self.compose = BiLstm(size, size)
        self.classifier = nn.Linear(8 * size, size)
        self.output = nn.Linear(size, len(encoded.classes))

    def forward(self, texts: list[Tensor], lengths: list[Tensor]) -> tuple[Tensor, dict[str, Any]]:
        """texts [[B, n], [B, m]] padded on the right, lengths [[B], [B]] -> logits [B, C] and a dictionary.

        The dictionary holds {"attention": {"premise": [B, n]}}, the attention to the first text, averaged over the
        words of the second; and, when not training, {"measures": {name: [B]}}, see `measures`.
        """
        (a, b), masks, (p, q), found = self.aligned(texts, lengths, structures=not self.training)
        v = [self._pooled(*of) for of in zip((a, b), (p @ b, q @ a), masks, lengths)]
        hidden = torch.tanh(self.classifier(self.dropout(torch.cat(v, -1))))
        extra: dict[str, Any] = {"attention": {"premise": q.sum(1) / masks[1].sum(1, keepdim=True)}}
        if not self.training:
            extra["measures"] = measures(p, q, masks[0].unsqueeze(2) & masks[1].unsqueeze(1), found)
        return self.output(self.dropout(hidden)), extra

    def aligned(self, texts: list[Tensor], lengths: list[Tensor], structures: bool) -> tuple[Any, ...]:
        """States [B, n, 2H] and [B, m, 2H], masks [B, n] and [B, m], and the result of `align` for the states."""
        masks = [text.ne(PAD) for text in texts]
        a, b = (self.read(self.words(text), length) for text, length in zip(texts, lengths))
        pairs = masks[0].unsqueeze(2) & masks[1].unsqueeze(1)
        return (a, b), masks, *self.align(a @ b.transpose(1, 2), pairs, structures)

    def align(self, scores: Tensor, pairs: Tensor, structures: bool) -> tuple[tuple[Tensor, Tensor], list[Solution]]:
        """scores, pairs [B, n, m] (True: neither is padding) -> (p [B, n, m], q [B, m, n]) and the structures used.
        Structures are listed only if they are requested and the mapping can list them: one `Solution` for a matching,
        two for sequences (one through each text).
        """
        asked = {"return_structures": True} if structures and self.lists else {}
        found = []
        for e, mask in ((scores, pairs), (scores.transpose(1, 2), pairs.transpose(1, 2))):
            inputs = {"transitions": self._transitions(e.size(-1))} if self.over == "sequence" else {}
            found.append(self.mapping(e, mask=mask, **inputs, **asked))
            if self.over == "matching":
                break
        marginals = [one.marginals for one in found] if asked else found
        p, q = marginals if len(marginals) == 2 else (marginals[0], marginals[0].transpose(1, 2))
        return (p, q), found if asked else []

    def _transitions(self, words: int) -> Tensor:
        """Transition scores [words, words]; rows are the words moved from, columns the words moved to."""
        at, most = torch.arange(words, device=self.distances.device), self.distances.numel() // 2
        return self.distances[(at - at.unsqueeze(1)).clamp(-most, most) + most]

    def _pooled(self, x: Tensor, context: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        """Words x and their aligned contexts, both [B, L, 2H], mask [B, L] -> [B, 4H]."""
        compared = torch.relu(self.compare(torch.cat((x, context, x - context, x * context), -1)))
        states = self.compose(self.dropout(compared), lengths)
        there = mask.unsqueeze(-1)
        mean = states.masked_fill(~there, 0.0).sum(1) / mask.sum(1, keepdim=True)
        return torch.cat((mean, states.masked_fill(~there, -torch.inf).amax(1)), -1)


@torch.no_grad()
def measures(p: Tensor, q: Tensor, pairs: Tensor, solutions: list[Solution]) -> dict[str, Tensor]:
    """Statistics {name: [B]} of the alignments in both directions, p [B, n, m] and q [B, m, n].

    aligned: mean number of words that a word is aligned with. alignment_zeros: share of word pairs with zero weight.
    monotony: share of neighbouring words for whom the mean place of what they are aligned with moves forward, 1/2 where
    it stays or where there are no neighbours; of both directions. symmetry: weight that the two directions have in
    common, if both are scaled to sum to 1. structures: number of structures with nonzero weight; for sequences, the
    mean of both directions.
    """
    used = (p.ne(0) & pairs).flatten(1).sum(1), (q.transpose(1, 2).ne(0) & pairs).flatten(1).sum(1)
    both = (used[0] + used[1]).double()
    words = pairs.any(2).sum(1) + pairs.any(1).sum(1)
    values = {"aligned": both / words, "alignment_zeros": 1 - both / (2 * pairs.flatten(1).sum(1))}
    forward, steps = (sum(of) for of in zip(_moves(p * pairs), _moves(q * pairs.transpose(1, 2))))
    values["monotony"] = torch.where(steps > 0, forward / steps.clamp(min=1), 0.5)
    shares = [one.flatten(1) / one.sum((1, 2)).unsqueeze(1) for one in (p * pairs, q.transpose(1, 2) * pairs)]
    values["symmetry"] = torch.minimum(*shares).sum(1)
    if solutions:
        values["structures"] = sum(one.weights.gt(0).sum(-1) for one in solutions) / len(solutions)
    return values


def _moves(p: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [B, n, m], 0 at padding -> how often the mean place moves forward between neighbours, and neighbours; [B]."""
    mass = p.sum(2)
    places = p @ torch.arange(p.size(2), dtype=p.dtype, device=p.device) / mass
    there = mass[:, 1:].gt(0) & mass[:, :-1].gt(0)  # a word that is not aligned has no place
    steps = places.diff(dim=1)
    forward = 0.5 + 0.5 * steps.sign() * steps.abs().gt(STILL)
    return torch.where(there, forward, 0.0).sum(1), there.sum(1)
