r"""SparseMAP by the active set (Niculae, Martins, Blondel & Cardie 2018), for any factor, in plain torch.

.. math:: \mu = \arg\min_{\mu \in \mathrm{conv}\{m_y\}} \tfrac12\|\mu - \theta\|^2 - \max_{p \ge 0, 1^\top p = 1, Mp = \mu} c^\top p

A structure y has an indicator :math:`m_y` (a column of M) and a score :math:`c_y` of its own, such as transitions. The solver
holds a set of affinely independent structures with weights and repeats two steps. It moves the weights towards the solution on
the set without :math:`p \ge 0`; a structure whose weight becomes 0 leaves. Then the structure with the highest score under
:math:`\theta - \mu` joins. Its gain is the duality gap, a certificate: no point is better by more, and :math:`\mu` is within
:math:`\sqrt{2\,\mathrm{gap}}` of the best. The solver stops at a gap of 64 times the rounding of the scores' sum (about 1e-12).

Affinely dependent structures need two more steps. One that joins inside the hull of the set replaces a structure whose weight
it uses up (a pivot of the simplex method). And :math:`\mu` may be on a smaller hull than it can move in: for the gradient,
structures without weight join until the set spans the whole face of optimal structures. With it,

.. math:: d\mu = M Q (M^\top d\theta + dc), \qquad
          Q = Z^{-1} - \frac{Z^{-1} 1 1^\top Z^{-1}}{1^\top Z^{-1} 1}, \quad Z = M^\top M + 1 1^\top

Every structure found costs one call of the oracle and a solve, O(K^3) here for K held, O(K^2) in the native kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

_EPS = 64 * torch.finfo(torch.float64).eps
_NO_WEIGHT, _DEPENDENT = 1e-13, 1e-9


class Factor(Protocol):
    """A set of structures, defined by an oracle. ``dims``: how many last dimensions of the scores one structure covers.

    highest: ``(scores [*shape], *inputs) -> (m, *counts)``, all float64, for the structure of the highest score
    ``sum(scores * m) + sum_i sum(inputs_i * counts_i)``: ``m [*shape]`` >= 0 is its indicator, ``counts_i`` (as the input)
    how often it uses what has a score in the input. A score of -inf forbids its entry. Raises ValueError if
    nothing is allowed. A factor with inputs has ``inputs``, how many dimensions each of them has: a tuple; one without may
    return the indicator alone.
    """

    dims: int

    @property
    def highest(self) -> Callable[..., Any]: ...


class Active(NamedTuple):
    """Structures ``M [K, D]`` and their counts ``[K, D_i]`` for every input, weights ``[K]`` (the last ones may be 0: they
    span the face), marginals ``[D]`` and the gap."""

    M: Tensor
    counts: tuple[Tensor, ...]
    weights: Tensor
    marginals: Tensor
    gap: float


class _Problem:
    """One row: the oracle and scores of structures, each a list of flat float64 vectors, indicator first."""

    def __init__(self, factor: Factor, scores: Tensor, inputs: tuple[Tensor, ...]) -> None:
        self.factor, self.shape, self.inputs = factor, scores.shape, inputs

    def highest(self, scores: Tensor) -> list[Tensor]:
        found = self.factor.highest(scores.reshape(self.shape), *self.inputs)
        parts = list(found) if isinstance(found, (tuple, list)) else [found]
        if [p.shape for p in parts] != [self.shape, *(i.shape for i in self.inputs)]:
            raise ValueError(
                f"{type(self.factor).__name__}.highest returned {[tuple(p.shape) for p in parts]}; expected the indicator "
                f"{tuple(self.shape)} and counts for {[tuple(i.shape) for i in self.inputs]}"
            )
        return [p.reshape(-1).to(torch.float64) for p in parts]

    def value(self, scores: Tensor, y: list[Tensor], size: bool = False) -> float:
        """The score of a structure; ``size``: the sum of the absolute values in it, what rounding is relative to."""
        total = 0.0
        for weight, count in zip((scores, *(i.reshape(-1) for i in self.inputs)), y):
            terms = torch.where(count == 0, 0.0, weight * count)
            total += float(terms.abs().sum() if size else terms.sum())
        return total


class _Set:
    """Affinely independent structures with weights; ``b``: their linear scores."""

    def __init__(self) -> None:
        self.held: list[list[Tensor]] = []
        self.b: list[float] = []
        self.p = torch.zeros(0, dtype=torch.float64)

    @property
    def M(self) -> Tensor:
        return torch.stack([y[0] for y in self.held])

    def coefficients(self, values: Tensor) -> Tensor:
        M = self.M
        return torch.linalg.solve(M @ M.T + 1, values)

    def hull(self, m: Tensor) -> tuple[Tensor, bool]:
        """The affine combination nearest to ``m``, and whether it is ``m``."""
        a = self.coefficients(self.M @ m + 1)
        off = (m - a @ self.M).square().sum() + (1 - a.sum()).square()
        return a, bool(off <= _DEPENDENT * (m.square().sum() + 1))

    def add(self, y: list[Tensor], b: float, weight: float = 0.0) -> None:
        self.held.append(y)
        self.b.append(b)
        self.p = torch.cat((self.p, self.p.new_tensor([weight])))

    def drop(self, k: int) -> None:
        del self.held[k], self.b[k]
        self.p = torch.cat((self.p[:k], self.p[k + 1 :]))

    def exchange(self, y: list[Tensor], b: float, a: Tensor) -> None:
        ratio = torch.where(a > 1e-9, self.p / a.clamp(min=1e-9), torch.inf)
        k = int(ratio.argmin())
        step = float(ratio[k])
        self.p = self.p - step * a
        self.drop(k)
        self.add(y, b, step)

    def improve(self) -> bool:
        """Move the weights as far as possible; False if the newest structure leaves at once, because its gain was rounding."""
        newest = self.held[-1]
        for first in (True, *[False] * len(self.held)):
            ones = torch.ones(len(self.held), dtype=torch.float64)
            z = self.coefficients(torch.stack((ones.new_tensor(self.b), ones), -1))
            target = z[:, 0] - z[:, 1] * (z[:, 0].sum() - 1) / z[:, 1].sum()
            stops = target <= _NO_WEIGHT
            if len(self.held) == 1 or not bool(stops.any()):
                self.p = target
                return True
            ratio = torch.where(stops, self.p / (self.p - target).clamp(min=1e-300), torch.inf).clamp(0, 1)
            ratio = torch.where(stops, ratio, torch.inf)
            k = int(ratio.argmin())
            self.p = self.p + float(ratio[k]) * (target - self.p)
            leaves = self.held[k]
            self.drop(k)
            if first and leaves is newest:
                return False
        raise AssertionError("every pass drops a structure")


def solve(factor: Factor, scores: Tensor, inputs: tuple[Tensor, ...]) -> Active:
    """One row: scores ``[*shape]``, -inf where masked and not everywhere, and inputs, float64, without NaN.

    Warns where rounding keeps the gap above its tolerance. Raises ValueError where the factor does.
    """
    problem, theta, found = _Problem(factor, scores, inputs), scores.reshape(-1), _Set()
    y = problem.highest(theta)
    found.add(y, problem.value(theta, y), 1.0)
    limit = 1000 + 50 * theta.numel()
    for turn in range(limit + 1):
        mu = found.p @ found.M
        slope = theta - mu
        value = sum(float(p) * problem.value(slope, s) for p, s in zip(found.p, found.held))
        y = problem.highest(slope)
        gap = problem.value(slope, y) - value
        if gap <= _EPS * (mu.numel() + problem.value(slope, y, size=True)):
            break
        if any(torch.equal(y[0], s[0]) and problem.value(theta, y) <= problem.value(theta, s) for s in found.held):
            break
        if turn == limit:
            warnings.warn(
                f"SparseMAP stopped after {limit} structures at a duality gap of {gap:.1e}",
                RuntimeWarning,
                stacklevel=2,
            )
            break
        a, inside = found.hull(y[0])
        if inside:
            found.exchange(y, problem.value(theta, y), a)
        else:
            found.add(y, problem.value(theta, y))
        if not found.improve():
            break
    _span_face(problem, found, theta, mu)
    counts = tuple(torch.stack(c) for c in list(zip(*found.held))[1:])
    return Active(found.M, counts, found.p, mu, max(gap, 0.0))


def _span_face(problem: _Problem, found: _Set, theta: Tensor, mu: Tensor) -> None:
    """Adds, with weight 0, optimal structures on the support of mu outside the hull of those held, until there are none:
    one that differs from the hull in a random direction is the highest when the scores are moved a little that way."""
    slope, support = theta - mu, mu > 0
    values = [problem.value(slope, y) for y in found.held]
    scale = 1 + problem.value(theta, found.held[0], size=True) / mu.numel()
    random = torch.Generator().manual_seed(0)
    while len(found.held) <= int(support.sum()):
        direction = torch.where(support, torch.rand(mu.shape, dtype=torch.float64, generator=random) - 0.5, 0.0)
        q = found.coefficients(found.M @ direction)
        direction, constant = direction - q @ found.M, float(q.sum())
        for h in (1e-8 * scale, -1e-8 * scale):
            y = problem.highest(torch.where(support, slope + h * direction, -torch.inf))
            off = float(direction @ y[0]) - constant
            tight = problem.value(slope, y) >= max(values) - 1e-11 * scale
            if abs(off) > 1e-7 and tight and not found.hull(y[0])[1]:
                found.add(y, 0.0)
                break
        else:
            return


def projected(r: Tensor, M: Tensor, held: Tensor) -> Tensor:
    """``Q r [N, K]`` for bases ``M [N, K, D]`` of which ``held [N, K]`` count; differentiable in r."""
    h = held.to(M.dtype)
    Z = M @ M.mT + h.unsqueeze(-1) * h.unsqueeze(-2) + torch.diag_embed(1 - h)
    z, e = torch.linalg.solve(Z, torch.stack((r * h, h), -1)).unbind(-1)
    total = e.sum(-1, keepdim=True)
    return z - e * z.sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
