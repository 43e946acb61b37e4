"""Time continuous attention: milliseconds of rho(mu, Sigma), forward and backward, for our rules and the authors' rule.

Times are absolute, so each case runs separately; if cases took turns, the large ones would evict the small ones from
the cache. The authors' own code takes 36 ms (alpha = 1) and 2,500 ms (alpha = 2) per batch of 64 for 100 basis
functions on one thread of another machine. The targets are absolute times for a batch of 64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.table import backward, medians
from sparse_attention.mappings import continuous

BATCH = 64


@dataclass(frozen=True)
class ContinuousCase:
    """Attention over `functions` basis functions; target in milliseconds, forward and backward, for a batch of 64."""

    label: str
    dim: int
    alpha: float
    functions: int
    target: float | None = None
    quadrature: str = "auto"

    def function(self) -> Callable[[Tensor, Tensor], Tensor]:
        if self.dim == 1:
            line = continuous.GaussianBasis1d.linspaced(self.functions)
            return lambda mu, sigma: continuous.continuous_attention_1d(mu, sigma, line, self.alpha)
        side, how = round(self.functions**0.5), self.quadrature
        plane = continuous.GaussianBasis2d.grid(side, side)
        return lambda mu, sigma: continuous.continuous_attention_2d(mu, sigma, plane, self.alpha, quadrature=how)


CONTINUOUS_CASES = (
    ContinuousCase("continuous softmax, 1-D, N = 64", 1, 1.0, 64),
    ContinuousCase("continuous sparsemax, 1-D, N = 64", 1, 2.0, 64),
    ContinuousCase("continuous softmax, 2-D, N = 100", 2, 1.0, 100, 1.0),
    ContinuousCase("continuous sparsemax, 2-D, N = 100", 2, 2.0, 100, 40.0),
    ContinuousCase("continuous sparsemax, 2-D, N = 100, any basis", 2, 2.0, 100, None, "angular"),
    ContinuousCase("continuous sparsemax, 2-D, N = 100, the authors' 100 angles", 2, 2.0, 100, None, "paper-code"),
)


@dataclass
class ContinuousRow:
    """Median milliseconds of one case, one value for each breadth of its densities."""

    case: ContinuousCase
    forward: list[float]
    both: list[float]


# Standard deviations of the timed densities; narrow densities need more angles.
BREADTHS = (0.05, 0.15, 0.4)


def measure_continuous(cases: tuple[ContinuousCase, ...], seconds: float) -> list[ContinuousRow]:
    """Time `cases` for densities of every breadth, for `seconds` per breadth and direction."""
    rows = [ContinuousRow(case, [], []) for case in cases]
    for row in rows:
        for breadth in BREADTHS:
            f, inputs = row.case.function(), _inputs(row.case, breadth)
            for times, call in ((row.forward, partial(f, *inputs)), (row.both, backward(f, *inputs))):
                times.append(medians({"": call}, seconds)[""] / 1e6)
    return rows


def _inputs(case: ContinuousCase, breadth: float) -> tuple[Tensor, Tensor]:
    """The means and (co)variances of a batch of densities."""
    generator = torch.Generator().manual_seed(0)
    mu = torch.rand(BATCH, *([2] if case.dim == 2 else []), generator=generator)
    if case.dim == 1:
        return mu, torch.full((BATCH,), breadth**2)
    # Axes with a ratio of 1 to 2, rotated by a random angle.
    turn = torch.linalg.qr(torch.randn(BATCH, 2, 2, generator=generator)).Q
    return mu, turn @ torch.diag(torch.tensor([1.0, 0.25]) * breadth**2) @ turn.mT
