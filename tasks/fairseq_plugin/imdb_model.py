"""Document classifier of Martins et al. 2020: biLSTM, then discrete, continuous or combined attention, then two classes.

    h_1..h_L = biLSTM(words)
    discrete     p = mapping(w' tanh(W h_l + b)),  c = sum_l p_l h_l
    continuous   v = max_l relu(conv(h)),  mu = sigmoid(w_1' v),  sigma^2 = softplus(w_2' v),  c = B E_density[psi]
    combined     p as discrete; (mu, sigma^2) are its moments; both contexts summed
    y ~ softmax(U c + d)

The kind follows from the names: `mapping` of the registry's kind "continuous" is a density; with it, `discrete` names the
discrete mapping to combine it with. Source: Martins et al. 2020, section 4; sizes from the authors' code.
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
from sparse_attention.mappings.continuous import (
    BetaGaussian,
    ContinuousAttention1d,
    ContinuousInfo,
    DiscreteContinuousAttention1d,
    GaussianBasis1d,
    document_positions,
    matched_sigma_sq,
)
from tasks.classification.encode import PAD
from tasks.fairseq_plugin.classifier_layers import AdditiveScores, BiLstm, WordVectors

ALPHAS = {
    "continuous_softmax": 1.0,
    "continuous_triweight": 4 / 3,
    "continuous_biweight": 3 / 2,
    "continuous_sparsemax": 2.0,
}


@dataclass
class ImdbConfig(FairseqDataclass):
    mapping: str = field(default="softmax", metadata={"help": "discrete mapping, or density (continuous_softmax, ...)"})
    mapping_params: str = field(default="{}", metadata={"help": "its parameters as JSON"})
    discrete: str = field(
        default="none", metadata={"help": "with a density: discrete mapping to combine it with, or none"}
    )
    rbf: int = field(default=64, metadata={"help": "N, Gaussian basis functions of the value regression"})
    widths: str = field(default="0.1,0.5", metadata={"help": "their widths; N is shared equally"})
    start_variance: float = field(
        default=0.0,
        metadata={
            "help": "continuous: variance of the density before training; 0: sigma^2 = softplus(0) = .69, as in the paper"
        },
    )
    ridge: float = field(default=0.01, metadata={"help": "ridge penalty of the value regression"})
    moment_match: str = field(
        default="exact", metadata={"help": "combined: exact, or paper-code (variance as sigma^2)"}
    )
    positions: str = field(
        default="cell_centre", metadata={"help": "combined: cell_centre, linspace (authors' code), right_edge"}
    )
    embed_dim: int = field(default=300, metadata={"help": "word vector size; pretrained vectors decide it"})
    embed_range: float = field(default=0.05, metadata={"help": "random word vectors ~ U(-r, r)"})
    fixed_vectors: bool = field(default=True, metadata={"help": "pretrained vectors are not trained"})
    hidden_dim: int = field(default=128, metadata={"help": "LSTM size per direction"})
    score_dim: int = field(default=128, metadata={"help": "hidden size of the additive scores, channels of the CNN"})
    dropout: float = field(
        default=0.0, metadata={"help": "on the word vectors and the context (0 in the paper's code)"}
    )


class DocumentCnn(nn.Module):
    """Width-3 convolution without padding, ReLU, maximum over the windows that lie inside each document.

    states [B, L, D], mask [B, L] -> [B, C]. A document of fewer than three words has one window, filled up with zeros.
    """

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, channels, 3)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        states = states.masked_fill(~mask.unsqueeze(-1), 0.0)
        missing = max(0, 3 - states.size(1))
        windows = torch.relu(self.conv(nn.functional.pad(states.transpose(1, 2), (0, missing))))  # [B, C, L - 2]
        inside = nn.functional.pad(mask, (0, missing))[:, 2:].clone()  # a window counts when its last word is real
        inside[:, 0] = True
        return windows.masked_fill(~inside.unsqueeze(1), 0.0).amax(-1)  # after ReLU zero is the least value


@register_model("sa_imdb", dataclass=ImdbConfig)
class ImdbModel(BaseFairseqModel):
    def __init__(self, cfg: ImdbConfig, encoded: Any) -> None:
        super().__init__()
        self.vectors = WordVectors(encoded, cfg.embed_dim, cfg.embed_range, cfg.fixed_vectors)
        self.dropout = nn.Dropout(cfg.dropout)
        self.lstm = BiLstm(self.vectors.dim, cfg.hidden_dim)
        dim = 2 * cfg.hidden_dim
        self.kind = "discrete"
        if cfg.mapping in ALPHAS:
            self.kind = "continuous" if cfg.discrete in ("none", "") else "combined"
        self.density = cfg.mapping if self.kind != "discrete" else None
        if self.kind != "continuous":
            self.scores = AdditiveScores(dim, cfg.score_dim)
        if self.kind == "discrete":
            self.mapping = sa.make(cfg.mapping, **json.loads(cfg.mapping_params))
        else:
            basis = GaussianBasis1d.linspaced(cfg.rbf, widths=tuple(float(w) for w in cfg.widths.split(",")))
            alpha = ALPHAS[cfg.mapping]
            if self.kind == "continuous":
                self.cnn = DocumentCnn(dim, cfg.score_dim)
                self.attend = ContinuousAttention1d(basis, alpha, query_dim=cfg.score_dim, ridge=cfg.ridge)
                if cfg.start_variance:
                    self._start_at(cfg.start_variance, alpha)
            else:
                self.attend = DiscreteContinuousAttention1d(
                    sa.make(cfg.discrete),
                    basis,
                    alpha,
                    ridge=cfg.ridge,
                    moment_match=cfg.moment_match,
                    positions=cfg.positions,
                )
        self.output = nn.Linear(dim, len(encoded.classes))

    @classmethod
    def build_model(cls, cfg: ImdbConfig, task) -> ImdbModel:
        return cls(cfg, task.encoded)

    def forward(self, texts: list[Tensor], lengths: list[Tensor], **_) -> tuple[Tensor, dict[str, Any]]:
        """texts [1][B, L] padded on the right, lengths [1][B] -> logits [B, C], {"attention": {name: [B, L]}}.

        Attention of a density is its mass per word, density / L at the words' cell centres: zero exactly off its support.
        """
        ids = texts[0]
        mask = ids.ne(PAD)
        states = self.lstm(self.dropout(self.vectors(ids)), lengths[0])
        if self.kind == "discrete":
            p = self.mapping(self.scores(states), mask=mask)
            context, attention = (p.unsqueeze(1) @ states).squeeze(1), {"words": p}
        elif self.kind == "continuous":
            context, info = self.attend(states, mask, query=self.cnn(states, mask))
            attention = {"density": self._density(info, mask)}
        else:
            context, info = self.attend(states, mask, self.scores(states))
            attention = {"words": info.discrete, "density": self._density(info, mask)}
        return self.output(self.dropout(context)), {"attention": attention}

    @torch.no_grad()
    def _start_at(self, variance: float, alpha: float) -> None:
        """Set the predictor's bias so that training starts from mu = 1/2 and a density of this variance.

        sigma^2 = softplus(0) = .69 puts much of the density outside [0, 1], where the value function is extrapolated: the words
        near the ends then get large weights of both signs (sum of |w| 8 to 10 for 1), and learning starts late.
        """
        sigma_sq = float(matched_sigma_sq(torch.tensor(variance, dtype=torch.float64), alpha))
        self.attend.predictor.linear.bias.copy_(torch.tensor([0.0, math.log(math.expm1(sigma_sq))]))

    @torch.no_grad()
    def _density(self, info: ContinuousInfo, mask: Tensor) -> Tensor:
        at = document_positions(mask)  # [B, L]
        mu, sigma_sq = info.mu.double().unsqueeze(-1), info.sigma.double().unsqueeze(-1)
        alpha = ALPHAS[self.density]
        mass = (BetaGaussian(mu, sigma_sq, alpha).pdf(at) / mask.sum(-1, keepdim=True)).float()
        if alpha == 1:
            mass = mass.clamp(min=torch.finfo(mass.dtype).tiny)  # a Gaussian is nowhere zero; float32 would make it so
        return mass.masked_fill(~mask, 0.0)

    def penalty(self) -> float:
        """Weight decay is the optimiser's here."""
        return 0.0
