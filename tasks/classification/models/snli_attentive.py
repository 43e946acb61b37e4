"""Entailment model of Niculae & Blondel 2017: two GRUs, conditional encoding, additive attention over the premise.

    h_1..h_S = GRU_p(P x_1..x_S), learned h_0            premise
    y        = last state of GRU_h(P x_start, P x'_1..)  hypothesis, starting from the premise's last state
    p        = mapping(w' tanh(W_h h_s + W_y y + b)),    c = sum_s p_s h_s
    label    ~ softmax(V tanh(W [c; y] + b) + d)

A GRU step is  h~ = tanh(W x + U (r * h) + b),  h' = h + z * (h~ - h).

Source: the C++ code of Martins & Astudillo 2016, whose set-up the paper adopts (a smaller attentive variant of the
conditional encoding of Rocktaschel et al. 2016). That code applies dropout to the word vectors x before the projection
P, and to y, the output of its hypothesis selector, which both attention and classifier read; c has no dropout. (In the
C++ code the dropout on y has no effect, because it is called before the selector's forward pass; ours takes effect.)
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from repro.options import integer, number
from tasks.classification.models._words import PairOptions, WordModel
from tasks.config.files import defaults
from tasks.config.models import Place
from tasks.data.symbols import EOS, PAD
from tasks.layers.attention import AdditiveScores, Attention

TEXTS = 2  # per example
PLACES = {"attention": Place(over=("row",))}


@defaults("model/snli_attentive")
class Options(PairOptions):
    """The sizes of the C++ code."""

    hidden_dim: int = integer(low=1, help="units of the projection, GRUs, scores and classifier")
    l2: float = number(low=0, high=1000, help="(l2 / 2) |W|^2 in the loss; weights, not biases or word vectors")


class Gru(nn.Module):
    """x [B, L, D] padded on the right, mask [B, L], h_0 [B, H] -> states [B, L, H] and the last word's state [B, H]."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(dim, 2 * hidden)
        self.candidate = nn.Linear(dim, hidden)
        self.state_gates = nn.Linear(hidden, 2 * hidden, bias=False)
        self.state_candidate = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, mask: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        gates, candidates = self.gates(x).unbind(1), self.candidate(x).unbind(1)
        states = []
        for gate, candidate, keep in zip(gates, candidates, mask.unsqueeze(-1).unbind(1)):
            z, r = torch.sigmoid(gate + self.state_gates(h)).chunk(2, -1)
            proposed = torch.tanh(candidate + self.state_candidate(r * h))
            h = torch.where(keep, torch.lerp(h, proposed.to(h.dtype), z.to(h.dtype)), h)
            states.append(h)
        return torch.stack(states, 1), h


class OnnxGru(nn.Module):
    """`Gru` as ONNX's operator of that name; torch.onnx would write its loop for the words of the example only.

    ONNX has h' = (1 - z) h~ + z h, so its z is one minus ours: the weights of that gate change their sign.
    """

    def __init__(self, gru: Gru) -> None:
        super().__init__()

        def joined(gates: Tensor, candidate: Tensor) -> Tensor:
            update, reset = gates.chunk(2)
            return torch.cat((-update, reset, candidate))[None]

        bias = joined(gru.gates.bias, gru.candidate.bias)
        self.weights = nn.Parameter(joined(gru.gates.weight, gru.candidate.weight))
        self.state_weights = nn.Parameter(joined(gru.state_gates.weight, gru.state_candidate.weight))
        self.bias = nn.Parameter(torch.cat((bias, torch.zeros_like(bias)), 1))

    def forward(self, x: Tensor, mask: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        (rows, words), size = x.shape[:2], h.shape[1]
        inputs = (x.transpose(0, 1), self.weights, self.state_weights, self.bias, mask.sum(1).int(), h[None])
        given = {"dtypes": (x.dtype, x.dtype), "shapes": ((words, 1, rows, size), (1, rows, size))}
        states, last = torch.onnx.ops.symbolic_multi_out("GRU", inputs, {"hidden_size": size}, **given)
        return states.squeeze(1).transpose(0, 1), torch.where(mask.any(1, keepdim=True), last.squeeze(0), h)


class Model(WordModel):
    """Built from `Options`, an encoding (see `WordModel`) and {"attention": mapping}."""

    def __init__(self, options: Options, encoded: Any, mappings: Mapping[str, nn.Module]) -> None:
        super().__init__(options, encoded)
        size = options.hidden_dim
        self.l2 = options.l2
        self.project = nn.Linear(self.vectors.dim, size)
        self.premise, self.hypothesis = Gru(size, size), Gru(size, size)
        self.start = nn.Parameter(torch.zeros(size))
        self.attend = Attention(AdditiveScores(size, size, size), mappings["attention"])
        self.classifier = nn.Linear(2 * size, size)
        self.output = nn.Linear(size, len(encoded.classes))
        self._initialize()

    def _layers(self) -> dict[str, nn.Linear]:
        """All linear layers except those inside the mapping."""
        own = self.named_modules(memo=set(self.attend.mapping.modules()))
        return {name: layer for name, layer in own if isinstance(layer, nn.Linear)}

    def _initialize(self) -> None:
        """Draw weights from U(-b, b), b = c sqrt(6 / (n_in + n_out)), with c = 4 for gates and the output and 1
        otherwise; biases are zero.
        """
        for name, layer in self._layers().items():
            gates = name.endswith("gates")
            rows, columns = layer.weight.shape
            fan_out = rows // 2 if gates else rows  # the update and reset gates share one layer
            bound = (4.0 if gates or layer is self.output else 1.0) * math.sqrt(6.0 / (columns + fan_out))
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, texts: list[Tensor], lengths: list[Tensor]) -> tuple[Tensor, dict[str, Any]]:
        """texts [[B, S], [B, T]] padded on the right -> logits [B, C], {"attention": {"premise": [B, S]}}."""
        premise, hypothesis = texts
        mask = premise.ne(PAD)
        hypothesis = nn.functional.pad(hypothesis, (1, 0), value=EOS)
        states, last = self.premise(self.project(self.words(premise)), mask, self.start.expand(premise.shape[0], -1))
        _, y = self.hypothesis(self.project(self.words(hypothesis)), hypothesis.ne(PAD), last)
        y = self.dropout(y)
        context, p = self.attend(y, states, mask=mask)
        hidden = torch.tanh(self.classifier(torch.cat((context, y), -1)))
        return self.output(hidden), {"attention": {"premise": p}}

    def penalty(self) -> Tensor | float:
        """(l2 / 2) times the squared norm of all weight matrices except the word vectors."""
        if not self.l2:
            return 0.0
        return 0.5 * self.l2 * sum(layer.weight.square().sum() for layer in self._layers().values())
