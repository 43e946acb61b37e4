"""Entailment model of Niculae & Blondel 2017: two GRUs, conditional encoding, additive attention over the premise.

    h_1..h_S = GRU_p(P x_1..x_S), learned h_0            premise
    y        = last state of GRU_h(P x_start, P x'_1..)  hypothesis, from the premise's last state
    p        = mapping(w' tanh(W_h h_s + W_y y + b)),    c = sum_s p_s h_s
    label    ~ softmax(V tanh(W [c; y] + b) + d)

A GRU step is  h~ = tanh(W x + U (r * h) + b),  h' = h + z * (h~ - h).  Source: the C++ code of Martins & Astudillo 2016, whose
set-up the paper takes over (a smaller attentive variant of the conditional encoding of Rocktaschel et al. 2016).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

import sparse_attention as sa
from tasks.classification.encode import PAD, SEPARATOR, UNK, WORDS
from tasks.fairseq_plugin.classifier_layers import AdditiveScores, WordVectors


@dataclass
class SnliConfig(FairseqDataclass):
    mapping: str = field(default="softmax", metadata={"help": "registered attention mapping"})
    mapping_params: str = field(default="{}", metadata={"help": "its parameters as JSON"})
    embed_dim: int = field(default=300, metadata={"help": "word vector size; pretrained vectors decide it"})
    embed_range: float = field(default=0.05, metadata={"help": "random word vectors ~ U(-r, r)"})
    fixed_vectors: bool = field(default=True, metadata={"help": "pretrained vectors are not trained"})
    hidden_dim: int = field(default=100, metadata={"help": "projection, GRUs, scores, classifier"})
    dropout: float = field(default=0.1, metadata={"help": "on the projected words and on the classifier's input"})
    word_dropout: float = field(
        default=0.0, metadata={"help": "share of words read as unknown in training (not in the paper)"}
    )
    l2: float = field(
        default=1e-4, metadata={"help": "(l2 / 2) |W|^2 in the loss; weights, not biases or word vectors"}
    )


class Gru(nn.Module):
    """x [B, L, D] padded on the right, mask [B, L], h_0 [B, H] -> states [B, L, H], last [B, H] (of each text's last word)."""

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
            h = torch.where(keep, torch.lerp(h, proposed, z), h)
            states.append(h)
        return torch.stack(states, 1), h


@register_model("sa_snli", dataclass=SnliConfig)
class SnliModel(BaseFairseqModel):
    def __init__(self, cfg: SnliConfig, encoded: Any) -> None:
        super().__init__()
        size = cfg.hidden_dim
        self.l2, self.word_dropout = cfg.l2, cfg.word_dropout
        self.vectors = WordVectors(encoded, cfg.embed_dim, cfg.embed_range, cfg.fixed_vectors)
        self.project = nn.Linear(self.vectors.dim, size)
        self.dropout = nn.Dropout(cfg.dropout)
        self.premise, self.hypothesis = Gru(size, size), Gru(size, size)
        self.start = nn.Parameter(torch.zeros(size))
        self.scores = AdditiveScores(size, size, size)
        self.mapping = sa.make(cfg.mapping, **json.loads(cfg.mapping_params))
        self.classifier = nn.Linear(2 * size, size)
        self.output = nn.Linear(size, len(encoded.classes))
        self._initialize()

    @classmethod
    def build_model(cls, cfg: SnliConfig, task) -> SnliModel:
        return cls(cfg, task.encoded)

    def _initialize(self) -> None:
        """U(-b, b), b = c sqrt(6 / (n_in + n_out)); c = 4 before a logistic function and for the output, else 1; zero biases."""
        for name, layer in self.named_modules():
            if not isinstance(layer, nn.Linear):
                continue
            gates = name.endswith("gates")
            rows, columns = layer.weight.shape
            fan_out = rows // 2 if gates else rows  # update and reset gate are two layers in one
            bound = (4.0 if gates or layer is self.output else 1.0) * math.sqrt(6.0 / (columns + fan_out))
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, texts: list[Tensor], lengths: list[Tensor], **_) -> tuple[Tensor, dict[str, Any]]:
        """texts [premise [B, S], hypothesis [B, T]] padded on the right -> logits [B, C], {"attention": {"premise": [B, S]}}."""
        premise, hypothesis = texts
        mask = premise.ne(PAD)
        hypothesis = nn.functional.pad(hypothesis, (1, 0), value=SEPARATOR)
        states, last = self.premise(self._words(premise), mask, self.start.expand(len(premise), -1))
        _, y = self.hypothesis(self._words(hypothesis), hypothesis.ne(PAD), last)
        p = self.mapping(self.scores(states, y), mask=mask)
        context = (p.unsqueeze(1) @ states).squeeze(1)
        hidden = torch.tanh(self.classifier(self.dropout(torch.cat((context, y), -1))))
        return self.output(hidden), {"attention": {"premise": p}}

    def _words(self, ids: Tensor) -> Tensor:
        if self.training and self.word_dropout:
            dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(dropped & (ids >= WORDS), UNK)
        return self.dropout(self.project(self.vectors(ids)))

    def penalty(self) -> Tensor | float:
        """(l2 / 2) times the squared norm of all weight matrices except the word vectors."""
        if not self.l2:
            return 0.0
        weights = (layer.weight for layer in self.modules() if isinstance(layer, nn.Linear))
        return 0.5 * self.l2 * sum(weight.square().sum() for weight in weights)
