r"""SparseMAP for any factor, by the active set method (Niculae, Martins, Blondel & Cardie 2018), in plain torch.

.. math:: \mu = \arg\min_{\mu \in \mathrm{conv}\{m_y\}} \tfrac12\|\mu - \theta\|^2 - \max_{p \ge 0, 1^\top p = 1, Mp = \mu} c^\top p

A structure y has an indicator :math:`m_y` (a column of M) and an additional score :math:`c_y`, such as its transitions.
The solver holds a set of affinely independent structures with weights and repeats two steps. First, it moves the
weights towards the solution on this set without the constraint :math:`p \ge 0`; a structure whose weight becomes 0
leaves the set. Then the structure with the highest score under :math:`\theta - \mu` joins the set. The gain of this
structure is the duality gap, which is a certificate: no point is better by more than the gap, and :math:`\mu` is within
:math:`\sqrt{2\,\mathrm{gap}}` of the optimum. The solver stops at a gap of 64 times the rounding of the scores' sum
(about 1e-12).

Affinely dependent structures need two more steps. If a new structure is inside the affine hull of the set, it replaces
a structure whose weight it uses up (a pivot of the simplex method). And the hull of the set may be smaller than the
face within which :math:`\mu` can move. For the gradient, structures of weight 0 therefore join until the set spans the
whole face of optimal structures. The gradient is then

.. math:: d\mu = M Q (M^\top d\theta + dc), \qquad
          Q = Z^{-1} - \frac{Z^{-1} 1 1^\top Z^{-1}}{1^\top Z^{-1} 1}, \quad Z = M^\top M + 1 1^\top

Every structure found costs one call of the oracle and one linear solve. With K structures in the set, the solve is
O(K^3) here and O(K^2) in the native kernel.
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
    """A set of structures, defined by an oracle.

    dims: the number of trailing dimensions of the scores that one structure covers.

    highest: the oracle, ``(scores [*shape], *inputs) -> (m, *counts)``, all float64. It finds the structure with the
    highest score ``sum(scores * m) + sum_i sum(inputs_i * counts_i)``. ``m [*shape]`` >= 0 is the indicator of the
    structure. ``counts_i``, in the shape of the i-th input, says how often the structure uses each entry of that input.
    A score of -inf forbids its entry. The oracle raises ValueError if no structure is allowed, and may return only the
    indicator if there are no inputs.

    inputs: needed only by a factor with inputs; a tuple with the number of dimensions of each input.
    """

    dims: int

    @property
    def highest(self) -> Callable[..., Any]: ...


class Active(NamedTuple):
    """The result of the solver: structures ``M [K, D]``, their counts ``[K, D_i]`` for every input, weights ``[K]``,
    marginals ``[D]`` and the gap. The last weights may be 0, for structures that only help to span the face.
    """

    M: Tensor
    counts: tuple[Tensor, ...]
    weights: Tensor
    marginals: Tensor
    gap: float


class _Problem:
    """One row: its oracle and structure scores. A structure is a list of flat float64 vectors, indicator first."""

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
        """The score of a structure or, with ``size``, the sum of its absolute terms, to which rounding is relative."""
        total = 0.0
        for weight, count in zip((scores, *(i.reshape(-1) for i in self.inputs)), y):
            terms = torch.where(count == 0, 0.0, weight * count)
            total += float(terms.abs().sum() if size else terms.sum())
        return total


class _Set:
    """Affinely independent structures with weights ``p`` and linear scores ``b``."""

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
        """The coefficients of the affine combination nearest to ``m``, and whether that combination equals ``m``."""
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
        """Move the weights as far as possible; False if the newest structure leaves at once (its gain was rounding)."""
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
    """Solve one row.

    ``scores [*shape]`` and ``inputs`` are float64 without NaN. Scores are -inf where masked; at least one must be
    finite. Warns if rounding keeps the gap above its tolerance. Raises ValueError if the factor does.
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
                f"SparseMAP stopped after {limit} structures at a duality gap of {gap:.1e}; marginals may be off by {(2 * gap) ** 0.5:.1e}",
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
    """Add optimal structures with weight 0 until the set spans the whole face.

    The structures added are on the support of mu and outside the hull of the set. To find one, the scores are moved
    slightly in a random direction orthogonal to the hull: a structure that differs from the hull in this direction then
    has the highest score.
    """
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
    """``Q r [N, K]`` for bases ``M [N, K, D]``, using only the structures in ``held [N, K]``; differentiable in r."""
    h = held.to(M.dtype)
    Z = M @ M.mT + h.unsqueeze(-1) * h.unsqueeze(-2) + torch.diag_embed(1 - h)
    z, e = torch.linalg.solve(Z, torch.stack((r * h, h), -1)).unbind(-1)
    total = e.sum(-1, keepdim=True)
    return z - e * z.sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
