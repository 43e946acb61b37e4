"""Time attention over structures: milliseconds per call, forward and backward, compared with the solver in plain torch.

The solver in plain torch is our reference, a Python loop over the batch and the oracle's calls; its time shows the cost
of a factor package without native batching. lp-sparsemap is not compared because version 1.0 does not build with
current setuptools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import sparse_attention as sa
from benchmarks.table import backward, medians


@dataclass(frozen=True)
class StructuredCase:
    """Scores of ``shape`` [batch, ...], normal noise times ``scale``; target in milliseconds, forward and backward."""

    label: str
    name: str
    shape: tuple[int, int, int]
    target: float | None = None
    scale: float = 1.0

    def function(self) -> Callable[[Tensor], Tensor]:
        mapping: Any = getattr(sa, self.name)
        if sa.spec(self.name).over == "matching":
            return lambda x: mapping(x)
        states = self.shape[-1]
        transitions = torch.randn(states, states, generator=torch.Generator().manual_seed(1))
        return lambda x: mapping(x, transitions)


STRUCTURED_CASES = (
    StructuredCase("sparsemap_sequence, 1 of T = 30, S = 2", "sparsemap_sequence", (1, 30, 2), 0.15),
    StructuredCase("sparsemap_sequence, 64 of T = 30, S = 2", "sparsemap_sequence", (64, 30, 2)),
    StructuredCase("sparsemap_sequence, 64 of T = 30, S = 5", "sparsemap_sequence", (64, 30, 5)),
    StructuredCase("softmax_sequence, 64 of T = 30, S = 2", "softmax_sequence", (64, 30, 2)),
    StructuredCase("sparsemap_matching, 1 of 10 x 10", "sparsemap_matching", (1, 10, 10), 0.5),
    StructuredCase("sparsemap_matching, 1 of 10 x 10, scores x.1", "sparsemap_matching", (1, 10, 10), 0.5, 0.1),
    StructuredCase("sparsemap_matching, 64 of 10 x 10", "sparsemap_matching", (64, 10, 10)),
    StructuredCase("sparsemap_matching, 1 of 40 x 40", "sparsemap_matching", (1, 40, 40)),
)


@dataclass
class StructuredRow:
    """Median milliseconds of one case; ``loop`` is the time of forward and backward in the reference."""

    case: StructuredCase
    forward: float
    both: float
    loop: float | None


def measure_structured(cases: tuple[StructuredCase, ...], seconds: float) -> list[StructuredRow]:
    """Time `cases`, for `seconds` per direction.

    The reference is timed on one problem, and its time is multiplied by the batch size.
    """
    rows = []
    for case in cases:
        x = torch.randn(case.shape, generator=torch.Generator().manual_seed(0)) * case.scale
        f = case.function()
        times = [medians({"": call}, seconds)[""] / 1e6 for call in (partial(f, x), backward(f, x))]
        loop = None
        if case.name.startswith("sparsemap") and max(case.shape[1:]) <= 30:
            with sa.kernels.use("reference"):
                loop = medians({"": backward(f, x[:1])}, seconds)[""] / 1e6 * len(x)
        rows.append(StructuredRow(case, times[0], times[1], loop))
    return rows
