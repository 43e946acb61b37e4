"""Time continuous attention and attention over structures: milliseconds per call, forward and backward.

Times are absolute, so each case runs separately; if cases took turns, the large ones would evict the small ones from
the cache. The targets are absolute times of forward and backward.

Continuous attention is rho(mu, Sigma) for a batch of 64, by our rules and the authors' rule. The authors' own code takes
36 ms (alpha = 1) and 2,500 ms (alpha = 2) for 100 basis functions on one thread of another machine.

Structures are compared with our reference in plain torch, a Python loop over the batch and the oracle's calls; its time
shows the cost of a factor package without native batching. lp-sparsemap is not compared because version 1.0 does not
build with current setuptools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import sparse_attention as sa
from benchmarks.table import KNOWN, Row, backward, milliseconds
from sparse_attention.mappings import continuous

BATCH = 64
# Standard deviations of the timed densities; narrow densities need more angles.
BREADTHS = (0.05, 0.15, 0.4)


@dataclass(frozen=True)
class Density:
    """Attention over `functions` basis functions on the line or the plane (`dim`)."""

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

    def inputs(self, breadth: float) -> tuple[Tensor, Tensor]:
        """The means and (co)variances of a batch of densities."""
        generator = torch.Generator().manual_seed(0)
        mu = torch.rand(BATCH, *([2] if self.dim == 2 else []), generator=generator)
        if self.dim == 1:
            return mu, torch.full((BATCH,), breadth**2)
        # Axes with a ratio of 1 to 2, rotated by a random angle.
        turn = torch.linalg.qr(torch.randn(BATCH, 2, 2, generator=generator)).Q
        return mu, turn @ torch.diag(torch.tensor([1.0, 0.25]) * breadth**2) @ turn.mT


@dataclass(frozen=True)
class Structure:
    """Scores of ``shape`` [batch, ...], normal noise times ``scale``."""

    label: str
    name: str
    shape: Sequence[int]
    target: float | None = None
    scale: float = 1.0

    def function(self) -> Callable[[Tensor], Tensor]:
        mapping: Any = getattr(sa, self.name)
        if sa.spec(self.name).over == "matching":
            return lambda x: mapping(x)
        states = self.shape[-1]
        transitions = torch.randn(states, states, generator=torch.Generator().manual_seed(1))
        return lambda x: mapping(x, transitions)


DENSITIES = [Density(**case) for case in KNOWN["densities"]]
STRUCTURES = [Structure(**case) for case in KNOWN["structures"]]


def _time(call: Callable[[], Any], seconds: float) -> float:
    return milliseconds({"": call}, seconds)[""]


def densities(cases: Sequence[Density], seconds: float) -> list[Row]:
    """A row for each case, with a time for each of `BREADTHS`; each is timed for `seconds` per direction."""
    rows = []
    for case in cases:
        f, every = case.function(), [case.inputs(breadth) for breadth in BREADTHS]
        forward = [_time(partial(f, *inputs), seconds) for inputs in every]
        both = [_time(backward(f, *inputs), seconds) for inputs in every]
        rows.append(Row(case.label, forward, both, case))
    return rows


def structures(cases: Sequence[Structure], seconds: float) -> list[Row]:
    """A row for each case, timed for `seconds` per direction; `both` has also the time of the reference, or None.

    The reference is timed on one problem, and its time is multiplied by the batch size.
    """
    rows = []
    for case in cases:
        x = torch.randn(case.shape, generator=torch.Generator().manual_seed(0)) * case.scale
        f, loop = case.function(), None
        if case.name.startswith("sparsemap") and max(case.shape[1:]) <= 30:
            with sa.kernels.use("reference"):
                loop = _time(backward(f, x[:1]), seconds) * len(x)
        both = _time(backward(f, x), seconds)
        rows.append(Row(case.label, [_time(partial(f, x), seconds)], [both, loop], case))
    return rows
