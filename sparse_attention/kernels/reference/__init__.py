"""Row operations in plain torch, computed in float64 on any device; the other kernels are tested against them."""

from __future__ import annotations

from torch import Tensor

from .constrained import constrained_sparsemax_backward, constrained_sparsemax_forward
from .rows import NoMemory, Op
from .structured import fusedmax_forward, grouped_backward, oscarmax_forward
from .threshold import (
    entmax_alpha_gradient,
    entmax_backward,
    entmax_forward,
    pnormmax_backward,
    pnormmax_forward,
    pnormmax_gamma_gradient,
    pnormmax_p_gradient,
    softmax_backward,
    softmax_forward,
    sparsemax_backward,
    sparsemax_forward,
    sparsemax_gamma_gradient,
)

OPS = {
    "softmax": Op(softmax_forward, softmax_backward, ("gamma",), True, None),
    "sparsemax": Op(
        sparsemax_forward, sparsemax_backward, ("gamma",), True, "nothing", gamma_gradient=sparsemax_gamma_gradient
    ),
    "entmax": Op(entmax_forward, entmax_backward, ("alpha",), True, "nothing", entmax_alpha_gradient),
    "pnormmax": Op(
        pnormmax_forward,
        pnormmax_backward,
        ("p", "gamma"),
        True,
        "nothing",
        pnormmax_p_gradient,
        pnormmax_gamma_gradient,
    ),
    "fusedmax": Op(fusedmax_forward, grouped_backward, ("lam", "gamma"), False, "scores"),
    "oscarmax": Op(oscarmax_forward, grouped_backward, ("lam", "gamma"), False, "blocks"),
    "constrained_sparsemax": Op(constrained_sparsemax_forward, constrained_sparsemax_backward, (), False, "threshold"),
}


def available(op: str, x: Tensor) -> bool:
    return op in OPS


__all__ = ["OPS", "NoMemory", "Op", "available"]
