"""Vectors of words, and the mass that an attention density puts on each word."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repro.options import choice, integer, listing, number
from sparse_attention.mappings.continuous import BetaGaussian, GaussianBasis1d, document_positions
from sparse_attention.mappings.continuous.moments import MOMENT_MATCHES, POSITIONS
from tasks.data.symbols import PAD


class WordVectors(nn.Module):
    """Looks up word vectors: token ids [...] -> [..., dim].

    Pretrained vectors are fixed or trained further; all other vectors are initialised from U(-r, r) and trained. The
    vector of padding is zero. If there are pretrained vectors, they determine `dim`. Fixed vectors are stored in a
    buffer, so no optimiser and no weight decay changes them.

    Args:
        size: number of ids.
        dim: size of a vector; used only if no vectors are pretrained.
        init_range: r.
        vectors: pretrained vectors [found, dim] float32 of the last ids, or None.
        fixed: do not train the pretrained vectors.
    """

    def __init__(self, size: int, dim: int, init_range: float, vectors: np.ndarray | None, fixed: bool) -> None:
        super().__init__()
        self.dim = dim if vectors is None else vectors.shape[1]
        self.first = size if vectors is None else size - len(vectors)  # id with a pretrained vector
        self.register_buffer("pretrained", None)
        if vectors is not None and fixed:
            self.register_buffer("pretrained", torch.tensor(vectors), persistent=False)
            size = self.first + 1  # all pretrained words share the unused last row of the trained vectors
        self.trained = nn.Embedding(size, self.dim, PAD)
        nn.init.uniform_(self.trained.weight, -init_range, init_range)
        with torch.no_grad():
            self.trained.weight[PAD] = 0
            if self.pretrained is not None:
                self.trained.weight[-1] = 0
            elif vectors is not None:
                self.trained.weight[self.first :] = torch.as_tensor(vectors)

    def forward(self, ids: Tensor) -> Tensor:
        if self.pretrained is None:
            return self.trained(ids)
        known = F.embedding((ids - self.first).clamp(min=0), self.pretrained)
        return torch.where(ids.ge(self.first).unsqueeze(-1), known, self.trained(ids.clamp(max=self.first)))


@dataclass
class DensityOptions:
    """Options of a model that attends by a density over words; each architecture's file states the defaults."""

    rbf: int = integer(low=1, high=8192, help="N, Gaussian basis functions of the value regression")
    widths: list = listing(number(above=0, high=100), least=1, help="basis widths, which share N equally")
    ridge: float = number(above=0, high=1e6, help="ridge penalty of the value regression")
    moment_match: str = choice(*MOMENT_MATCHES, help="paper-code: the variance itself as sigma^2")
    positions: str = choice(*POSITIONS, help="linspace: the authors' code; right_edge: the paper's text")

    def problems(self) -> list[str]:
        try:
            self.basis()
        except (ValueError, TypeError) as error:
            return [f"rbf={self.rbf}, widths={self.widths}: {error}"]
        return []

    def basis(self) -> GaussianBasis1d:
        return GaussianBasis1d.linspaced(self.rbf, widths=tuple(self.widths))


def density_alpha(mapping: nn.Module) -> float | None:
    """alpha of a mapping over densities, made by `sa.make` (1: Gaussian, 2: truncated parabola); otherwise None."""
    return float(mapping.alpha) if mapping.spec.over == "density" else None


@torch.no_grad()
def density_on_words(mu: Tensor, sigma_sq: Tensor, alpha: float, mask: Tensor) -> Tensor:
    """Approximate mass per word [B, L] of densities (mu, sigma_sq) [B] over texts whose words are given by mask [B, L].

    Each word covers an interval of width 1 / L (L: number of words of the text); its mass is the density at the centre
    of the interval, divided by L. The mass is exactly zero outside the density's support.
    """
    mu, sigma_sq = mu.double().unsqueeze(-1), sigma_sq.double().unsqueeze(-1)
    mass = (BetaGaussian(mu, sigma_sq, alpha).pdf(document_positions(mask)) / mask.sum(-1, keepdim=True)).float()
    if alpha == 1:
        mass = mass.clamp(min=torch.finfo(mass.dtype).tiny)  # a Gaussian is never zero, but float32 may underflow
    return mass.masked_fill(~mask, 0.0)
