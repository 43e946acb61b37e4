"""The encoder-decoder of `lstm` with discrete plus continuous attention (Martins et al. 2020, section 4, "combined").

    p_t              = discrete(score(q_t, h_1..h_S))
    (mu_t, sigma_t)  = moments of p_t at the words' positions on [0, 1]
    r_t              = E[psi], psi N Gaussian basis functions, under the density with these parameters
    c_t              = sum_s p_ts h_s + B r_t                    B the ridge regression of h_1..h_S on psi

The mapping is the density (continuous_softmax or continuous_sparsemax). The option `discrete` names the mapping over
words that provides the moments and whose context is added. There are no parameters besides those of `lstm`.

B r_t is computed as sum_s (G r_t)_s h_s. G and the positions depend only on the length of the source and are computed
once per source, so a step costs O(N S) more than with discrete attention only.

The attention that a step returns, which is used for statistics and for copying words, is p_t; `densities` computes mu,
sigma and the density from it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import sparse_attention as sa
from repro.options import choice
from sparse_attention.mappings import continuous
from tasks.config.files import defaults
from tasks.config.models import Place, nodes_at, row_mappings
from tasks.layers.words import DensityOptions, density_alpha, density_on_words
from tasks.seq2seq.models import lstm

PLACES = {"cross": Place(over=("density",))}
ON_THE_LINE = ("continuous_softmax", "continuous_sparsemax", "continuous_biweight", "continuous_triweight")
Tensors = dict[str, Tensor]


@defaults("model/lstm_continuous")
class Options(lstm.Options, DensityOptions):
    """The options of `lstm` and the regression's; N and the widths are those of the paper for translation."""

    discrete: str = choice(
        names=row_mappings, help="mapping that gives the moments of the density and whose context is added"
    )

    def problems(self) -> list[str]:
        found = [*lstm.Options.problems(self), *DensityOptions.problems(self)]
        if not self.mask_padding:
            found.append("mask_padding=false is not possible: the density covers only the words of the source")
        return found


def problems(config: Mapping[str, Any]) -> list[str]:
    """Reject options of a density that apply only to images."""
    node = nodes_at(config["mapping"], PLACES)["cross"]
    if "max_components" in node:
        return [f"mapping={node['name']} is for images; over a sentence: {', '.join(ON_THE_LINE)}"]
    how = node.get("quadrature", "auto")
    told = f"mapping.quadrature={how} is for images; over a sentence nothing is integrated numerically"
    return [told] if how != "auto" else []


class Model(lstm.Model):
    """Like `lstm.Model`, but built from {"cross": the density}."""

    def __init__(self, options: Options, source_size: int, target_size: int, mappings: Mapping[str, nn.Module]) -> None:
        super().__init__(options, source_size, target_size, {"cross": sa.make(options.discrete)})
        self.alpha: Any = density_alpha(mappings["cross"])
        self.basis = options.basis()

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> Tensors:
        """Like `lstm.Model.encode`, plus "regression" (G' [B, N, S]) and "positions" (of the words, [B, S])."""
        memory = super().encode(src_tokens, src_lengths)
        B, N = len(src_tokens), len(self.basis)
        each = torch.eye(N, dtype=memory["states"].dtype, device=src_tokens.device).expand(B, N, N)
        regression = continuous.position_weights(each, memory["mask"], self.basis, self.options.ridge)
        positions = continuous.document_positions(memory["mask"], self.options.positions)
        return memory | {"regression": regression, "positions": positions}

    def _reading(self, weights: Tensor, memory: Tensors) -> Tensor:
        mu, sigma_sq = self._density(weights, memory["positions"].unsqueeze(1))
        r = continuous.continuous_attention_1d(mu, sigma_sq, self.basis, self.alpha)  # [B, T, N]
        return weights + (r @ memory["regression"].to(r.dtype)).to(weights.dtype)

    def _density(self, weights: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return continuous.match_moments_1d(weights, positions, self.alpha, self.options.moment_match)

    @torch.no_grad()
    def densities(self, weights: Tensor) -> Tensors:
        """From an output's attention [T, S], without padding: mu [T], sigma (sigma^2) [T], density [T, S].

        "density" is the mass per word (see `density_on_words`), which is exactly zero outside the support.
        """
        words = torch.ones(len(weights), weights.size(1), dtype=torch.bool, device=weights.device)
        mu, sigma_sq = self._density(weights, continuous.document_positions(words, self.options.positions))
        return {"mu": mu, "sigma": sigma_sq, "density": density_on_words(mu, sigma_sq, self.alpha, words)}
