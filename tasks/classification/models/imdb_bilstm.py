"""Document classifier of Martins et al. 2020: biLSTM, then discrete, continuous or combined attention.

    h_1..h_L = biLSTM(words)
    discrete     p = mapping(w' tanh(W h_l + b)),  c = sum_l p_l h_l
    continuous   v = max_l relu(conv(h)),  mu = sigmoid(w_1' v),  sigma^2 = softplus(w_2' v),  c = B E_density[psi]
    combined     p as in discrete; (mu, sigma^2) are its moments; both contexts are summed
    y ~ softmax(U c + d)

The mapping determines the kind: a mapping over rows gives discrete attention, a density gives continuous attention.
With a density, the option `discrete` may name a discrete mapping to combine it with. Source: Martins et al. 2020,
section 4; sizes from the authors' code.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import sparse_attention as sa
from repro.options import choice, flag, integer, number
from sparse_attention.mappings.continuous import ContinuousAttention1d, DiscreteContinuousAttention1d, matched_sigma_sq
from tasks.classification.models._words import WordModel, WordOptions
from tasks.config.files import defaults
from tasks.config.models import Place, nodes_at, row_mappings
from tasks.data.symbols import PAD
from tasks.layers.attention import AdditiveScores, Attention
from tasks.layers.lstm import BiLstm
from tasks.layers.words import DensityOptions, density_alpha, density_on_words

TEXTS = 1  # per example
PLACES = {"attention": Place(over=("row", "density"))}
EARLIER = {"scaled": False}  # of cells from before this option


@defaults("model/imdb_bilstm")
class Options(DensityOptions, WordOptions):
    """Sizes from the authors' code; the paper does not state them."""

    discrete: str = choice(
        "none",
        names=row_mappings,
        help="with a density: the discrete mapping that gives its moments and whose context is added",
    )
    start_variance: float = number(
        low=0,
        high=1000,
        help="variance of a predicted density before training; 0: sigma^2 = softplus(0) = .69, as in the paper",
    )
    hidden_dim: int = integer(low=1, help="LSTM size per direction")
    score_dim: int = integer(low=1, help="hidden size of the scores, channels of the CNN")
    scaled: bool = flag(help="combined: divide the scores by the root of the states' size, as the authors' code does")


def problems(config: Mapping[str, Any]) -> list[str]:
    """Check that `discrete` is used only with a density."""
    name, discrete = nodes_at(config["mapping"], PLACES)["attention"]["name"], config["model"]["discrete"]
    if discrete != "none" and sa.spec(name).over != "density":
        return [f"model.discrete={discrete} goes with a density only (mapping=continuous_*), not with mapping={name}"]
    return []


class DocumentCnn(nn.Module):
    """Width-3 convolution without padding, ReLU, and the maximum over the windows inside each document.

    states [B, L, D], mask [B, L] -> [B, C]. A document of fewer than three words has one window, padded with zeros.
    """

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, channels, 3)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        states = states.masked_fill(~mask.unsqueeze(-1), 0.0)
        missing = max(0, 3 - states.size(1))
        windows = torch.relu(self.conv(nn.functional.pad(states.transpose(1, 2), (0, missing))))  # [B, C, L - 2]
        inside = nn.functional.pad(mask, (0, missing))[:, 2:].clone()  # a window counts if its last word is real
        inside[:, 0] = True
        return windows.masked_fill(~inside.unsqueeze(1), 0.0).amax(-1)  # zero is the smallest value after ReLU


class Model(WordModel):
    """Built from `Options`, an encoding (see `WordModel`) and {"attention": mapping}."""

    def __init__(self, options: Options, encoded: Any, mappings: Mapping[str, nn.Module]) -> None:
        super().__init__(options, encoded)
        self.lstm = BiLstm(self.vectors.dim, options.hidden_dim)
        dim, mapping = 2 * options.hidden_dim, mappings["attention"]
        self.alpha = density_alpha(mapping)
        self.combined = self.alpha is not None and options.discrete != "none"
        basis = options.basis()
        if self.alpha is None:
            self.attend: nn.Module = Attention(AdditiveScores(None, dim, options.score_dim), mapping)
        elif self.combined:
            self.scores, self.scale = AdditiveScores(None, dim, options.score_dim), dim**-0.5 if options.scaled else 1.0
            fit = {key: getattr(options, key) for key in ("ridge", "moment_match", "positions")}
            self.attend = DiscreteContinuousAttention1d(sa.make(options.discrete), basis, self.alpha, **fit)
        else:
            self.cnn = DocumentCnn(dim, options.score_dim)
            self.attend = ContinuousAttention1d(basis, self.alpha, query_dim=options.score_dim, ridge=options.ridge)
            if options.start_variance:
                self._start_at(options.start_variance)
        self.output = nn.Linear(dim, len(encoded.classes))

    def forward(self, texts: list[Tensor], lengths: list[Tensor]) -> tuple[Tensor, dict[str, Any]]:
        """texts [1][B, L] padded on the right, lengths [1][B] -> logits [B, C], {"attention": {name: [B, L]}}.

        The attention of a density is its mass per word (see `tasks.layers.density_on_words`), which is exactly zero
        outside the support.
        """
        mask = texts[0].ne(PAD)
        states = self.lstm(self.words(texts[0]), lengths[0])
        if self.alpha is None:
            context, p = self.attend(None, states, mask=mask)
            attention = {"words": p}
        elif self.combined:
            scores = self.scale * self.scores(None, self.scores.precompute(states)).squeeze(1)  # [B, L]
            context, info = self.attend(states, mask, scores)
            attention = {"words": info.discrete, "density": density_on_words(info.mu, info.sigma, self.alpha, mask)}
        else:
            context, info = self.attend(states, mask, query=self.cnn(states, mask))
            attention = {"density": density_on_words(info.mu, info.sigma, self.alpha, mask)}
        return self.output(self.dropout(context)), {"attention": attention}

    @torch.no_grad()
    def _start_at(self, variance: float) -> None:
        """Set the predictor's bias so that training starts with mu = 1/2 and a density of this variance.

        The default sigma^2 = softplus(0) = .69 puts much of the density outside [0, 1], where the value function is
        extrapolated. Words near both ends then get large positive and negative weights (sum of |w| 8 to 10 instead
        of 1), and learning starts late.
        """
        sigma_sq = float(matched_sigma_sq(torch.tensor(variance, dtype=torch.float64), self.alpha))
        self.attend.predictor.linear.bias.copy_(torch.tensor([0.0, math.log(math.expm1(sigma_sq))]))
