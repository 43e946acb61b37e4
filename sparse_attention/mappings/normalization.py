r"""The mappings that Laha et al. 2018 (sec. 2 and Table 1) compare with, and the one-hot limit of them all.

sum-normalisation :math:`z_i/\sum z`; sum-normalisation++ :math:`\mathrm{sparsemax}(z/|\sum z|)` (sparsehourglass at q = 0);
spherical softmax :math:`z_i^2/\sum z^2`; hardmax, the arg max. A row of sum 0 (spherical: of zeros) has no value: NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import Mapping, register, set_module
from ._contract import under_contract
from .sparsehourglass import _cone

_PAPER = "Laha et al. 2018, sec. 2 and Table 1"


@register(
    "sum_normalization", params=(), paper=_PAPER, oracle="definition", summary="z / sum z, for z >= 0", complete=True
)
def sum_normalization(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """``scores / sum(scores)`` along ``dim``: a distribution only where the scores are not negative (its domain).

    A row with a negative kept score is outside of the domain and becomes NaN; so does a row of zeros.

    Args:
        scores: any shape; -inf counts as masked.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores.
    """

    def normalized(z: Tensor, keep: Tensor) -> Tensor:
        z = z.masked_fill(~keep, 0.0)
        outside = (z.detach() < 0).any(-1, keepdim=True)
        return (z / z.sum(-1, keepdim=True)).masked_fill(outside, torch.nan)

    return under_contract(normalized, scores, dim, mask)


@register(
    "sum_normalization_pp",
    params=(),
    paper="Laha et al. 2018, sec. 3.5 (sum normalization++)",
    oracle="quadratic programme",
    summary="sparsehourglass at q = 0",
    complete=True,
)
def sum_normalization_pp(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """``sparsemax(scores / |sum(scores)|)`` along ``dim``: scale invariant on the whole space but for rows of sum 0 (NaN).

    Arguments and result as :func:`sum_normalization`.
    """
    return _cone(scores, dim, 0.0, mask, mirrored=True)


@register(
    "spherical_softmax",
    params=(),
    paper=_PAPER + "; de Brebisson & Vincent 2016",
    oracle="definition",
    summary="z^2 / sum z^2",
    complete=True,
)
def spherical_softmax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """``scores^2 / sum(scores^2)`` along ``dim``; a row of zeros is NaN. Arguments as :func:`sum_normalization`."""

    def squared(z: Tensor, keep: Tensor) -> Tensor:
        z = z.masked_fill(~keep, 0.0)
        # The mapping is scale invariant: dividing by the largest size first keeps the squares in range.
        z = z / z.detach().abs().amax(-1, keepdim=True)
        square = z.square()
        return square / square.sum(-1, keepdim=True)

    return under_contract(squared, scores, dim, mask)


@register(
    "hardmax",
    params=(),
    paper="Laha et al. 2018, sec. 2",
    oracle="argmax",
    summary="one-hot at the largest score",
    complete=True,
)
def hardmax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """1 at the largest score (shared equally between ties), 0 elsewhere; gradient 0. Arguments as
    :func:`sum_normalization`."""

    def largest(z: Tensor, keep: Tensor) -> Tensor:
        z = z.masked_fill(~keep, -torch.inf)
        best = (z == z.detach().amax(-1, keepdim=True)).to(z.dtype)
        # Part of the graph, with derivative 0, so that a loss on it can be differentiated.
        return best / best.sum(-1, keepdim=True) + z.masked_fill(~keep, 0.0) * 0.0

    return under_contract(largest, scores, dim, mask)


class SumNormalization(Mapping):
    """Module twin of :func:`sum_normalization`."""

    mapping_name = "sum_normalization"

    def __init__(self) -> None:
        super().__init__()


class SumNormalizationPP(Mapping):
    """Module twin of :func:`sum_normalization_pp`."""

    mapping_name = "sum_normalization_pp"

    def __init__(self) -> None:
        super().__init__()


class SphericalSoftmax(Mapping):
    """Module twin of :func:`spherical_softmax`."""

    mapping_name = "spherical_softmax"

    def __init__(self) -> None:
        super().__init__()


class Hardmax(Mapping):
    """Module twin of :func:`hardmax`."""

    mapping_name = "hardmax"

    def __init__(self) -> None:
        super().__init__()


for _twin in (SumNormalization, SumNormalizationPP, SphericalSoftmax, Hardmax):
    set_module(_twin.mapping_name, _twin)
