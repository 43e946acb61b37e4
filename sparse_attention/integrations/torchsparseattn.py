r"""The functions and classes of torchsparseattn 0.2 (Niculae & Blondel 2017).

Import them with ``from sparse_attention.integrations import torchsparseattn``. ``Fusedmax(alpha)``, ``Oscarmax(beta)``
and ``Sparsemax()`` take scores ``[..., n]`` and ``lengths [...]``; positions at or after the length get 0. The
package's modules ``fused``, ``oscar``, ``sparsemax`` and ``isotonic`` all refer to this module. All rows are computed
together, on any device and with any leading shape; the package loops over the rows of a matrix in Python.

There is one difference. Our ``Oscarmax`` solves the problem in the paper, over the simplex:
``argmin 1/2 ||p - x||^2 + beta sum_{i<j} max(p_i, p_j)``. The package composes two operators, which gives a different
result if scores are negative or small (see ``sa.oscarmax``). ``Oscarmax(beta, mode="paper")`` computes the package's
composition.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.reference.structured import group_mean, isotonic_decreasing
from ..mappings.fusedmax import fusedmax
from ..mappings.oscarmax import oscarmax
from ..mappings.sparsemax import sparsemax as _sparsemax
from ..prox import oscar as _oscar
from ..prox import owl, tv1d

__version__ = "0.2"


def _kept(x: Tensor, lengths: Any) -> Tensor | None:
    """``x [..., n]``, ``lengths [...]`` -> bool ``[..., n]``, True at positions before the length.

    Raises:
        ValueError: the shape of lengths does not match.
    """
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths, device=x.device)
    if lengths.shape != x.shape[:-1] and not (x.ndim == 1 and lengths.numel() == 1):
        raise ValueError(f"lengths of shape {tuple(lengths.shape)}: one per row is needed, {tuple(x.shape[:-1])}")
    keep = torch.arange(x.shape[-1], device=x.device) < lengths.unsqueeze(-1)
    return keep.reshape(x.shape)


class SparsemaxFunction:
    """``f(x, lengths=None)``: :func:`sa.sparsemax` over the first ``lengths`` positions of each row."""

    def __call__(self, x: Tensor, lengths: Any = None) -> Tensor:
        return _sparsemax(x, mask=_kept(x, lengths))


class FusedProxFunction:
    """``f(x, lengths=None)``: :func:`sa.prox.tv1d` with ``lam=alpha``."""

    def __init__(self, alpha: float | Tensor = 1) -> None:
        self.alpha = alpha

    def __call__(self, x: Tensor, lengths: Any = None) -> Tensor:
        return tv1d(x, self.alpha, mask=_kept(x, lengths))


class OscarProxFunction:
    """``f(x, lengths=None)``: :func:`sa.prox.oscar` with ``lam=beta`` and ``l1=alpha``."""

    def __init__(self, alpha: float | Tensor = 0, beta: float | Tensor = 1) -> None:
        self.alpha, self.beta = alpha, beta

    def __call__(self, x: Tensor, lengths: Any = None) -> Tensor:
        return _oscar(x, self.beta, self.alpha, mask=_kept(x, lengths))


class Sparsemax(nn.Module):
    """``m(x, lengths=None)``: :func:`sa.sparsemax`."""

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        """Weights ``[..., n]`` of scores ``x [..., n]``; ``lengths [...]``: how many positions of each row count."""
        return _sparsemax(x, mask=_kept(x, lengths))


class Fusedmax(nn.Module):
    """``m(x, lengths=None)``: :func:`sa.fusedmax` with ``lam=alpha``."""

    def __init__(self, alpha: float | Tensor = 1) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        """Weights ``[..., n]`` of scores ``x [..., n]``; ``lengths [...]``: how many positions of each row count."""
        return fusedmax(x, lam=self.alpha, mask=_kept(x, lengths))


class Oscarmax(nn.Module):
    """``m(x, lengths=None)``: :func:`sa.oscarmax` with ``lam=beta``.

    Args:
        mode: "exact", or "paper" for the package's composition of two operators.
    """

    def __init__(self, beta: float | Tensor = 1, mode: str = "exact") -> None:
        super().__init__()
        self.beta, self.mode = beta, mode

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        """Weights ``[..., n]`` of scores ``x [..., n]``; ``lengths [...]``: how many positions of each row count."""
        return oscarmax(x, lam=self.beta, mask=_kept(x, lengths), mode=self.mode)


def project_simplex(v: Tensor, z: float = 1) -> Tensor:
    """Projection of ``v [..., n]`` onto ``{w >= 0, sum w = z}``."""
    return z * _sparsemax(v / z)


def sparsemax_grad(dout: Tensor, w_star: Tensor) -> Tensor:
    """Jacobian of sparsemax, computed from its output ``w_star [..., n]``, times ``dout``."""
    support = w_star > 0
    kept = torch.where(support, dout, 0.0)
    return torch.where(support, kept - kept.sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1), 0.0)


def fused_prox_jv_fast(y_hat: Tensor, dout: Tensor) -> Tensor:
    """Jacobian of the fused prox, computed from its output ``y_hat [..., n]``, times ``dout``.

    The product averages ``dout`` over runs of equal values in ``y_hat``.
    """
    starts = torch.ones_like(y_hat, dtype=torch.bool)
    starts[..., 1:] = y_hat[..., 1:] != y_hat[..., :-1]
    return group_mean(dout, starts.cumsum(-1) - 1)


fused_prox_jv_slow = fused_prox_jv_fast


def oscar_prox_jv(y_hat: Tensor, dout: Tensor) -> Tensor:
    """Jacobian of the OSCAR prox, computed from its output ``y_hat [..., n]``, times ``dout``.

    The product averages ``dout``, with signs, over positions where ``y_hat`` has the same absolute value.
    """
    sign = torch.sign(y_hat)
    ordered, place = y_hat.abs().sort(dim=-1)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    groups = torch.empty_like(place).scatter(-1, place, starts.cumsum(-1) - 1)
    return group_mean(dout * sign, groups) * sign


def prox_owl(v: Any, w: Any) -> Any:
    """:func:`sa.prox.owl` of ``v [n]`` with weights ``w [n]``; returns an array for arrays and a tensor for tensors."""
    if isinstance(v, Tensor):
        return owl(v, torch.as_tensor(w))
    return owl(torch.as_tensor(v), torch.as_tensor(w)).numpy()


def isotonic_regression(
    y: Any, sample_weight: Any = None, y_min: float | None = None, y_max: float | None = None, increasing: bool = True
) -> Any:
    """Least-squares fit to ``y [n]`` that never decreases (or never increases, if ``increasing`` is False).

    The fit is clipped to ``[y_min, y_max]``. Returns an array for an array; for a tensor ``[..., n]``, the result is a
    differentiable tensor.

    Args:
        sample_weight: > 0, one weight per position; by default 1.
    """
    x = torch.as_tensor(y)
    weight = torch.ones_like(x) if sample_weight is None else torch.as_tensor(sample_weight).to(x).expand(x.shape)
    if increasing:
        x, weight = x.flip(-1), weight.flip(-1)
    with torch.no_grad():
        rows = x.reshape(-1, x.shape[-1]), weight.reshape(-1, x.shape[-1])
        blocks = isotonic_decreasing(*rows)[1].view(x.shape)
    fit = group_mean(x * weight, blocks) / group_mean(weight, blocks)
    fit = fit.flip(-1) if increasing else fit
    fit = fit if y_min is None else fit.clamp(min=y_min)
    fit = fit if y_max is None else fit.clamp(max=y_max)
    return fit if isinstance(y, Tensor) else fit.numpy()


fused = oscar = sparsemax = isotonic = sys.modules[__name__]
__all__ = [
    *("Fusedmax", "FusedProxFunction", "Oscarmax", "OscarProxFunction", "Sparsemax", "SparsemaxFunction"),
    *("fused_prox_jv_fast", "fused_prox_jv_slow", "oscar_prox_jv", "prox_owl", "isotonic_regression"),
    *("project_simplex", "sparsemax_grad"),
]
