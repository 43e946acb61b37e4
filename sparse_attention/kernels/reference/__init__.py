"""Row operations in plain torch, computed in float64 on any device; the other kernels are tested against them."""

from __future__ import annotations

from torch import Tensor

from . import constrained, structured, threshold
from .rows import NoMemory, Op

_ENTMAX = threshold.entmax_forward, threshold.entmax_backward, ("alpha",), True, "nothing"
_SPARSEMAX = threshold.sparsemax_forward, threshold.sparsemax_backward, ("gamma",), True, "nothing"
_PNORMMAX = threshold.pnormmax_forward, threshold.pnormmax_backward, ("p", "gamma"), True, "nothing"
_BOUNDED = constrained.constrained_sparsemax_forward, constrained.constrained_sparsemax_backward
_FUSED, _OSCAR, _GROUPED = structured.fusedmax_forward, structured.oscarmax_forward, structured.grouped_backward
OPS = {
    "softmax": Op(threshold.softmax_forward, threshold.softmax_backward, ("gamma",), True, None),
    "sparsemax": Op(*_SPARSEMAX, gamma_gradient=threshold.sparsemax_gamma_gradient),
    "entmax": Op(*_ENTMAX, threshold.entmax_alpha_gradient),
    "pnormmax": Op(*_PNORMMAX, threshold.pnormmax_p_gradient, threshold.pnormmax_gamma_gradient),
    "fusedmax": Op(_FUSED, _GROUPED, ("lam", "gamma"), False, "scores"),
    "oscarmax": Op(_OSCAR, _GROUPED, ("lam", "gamma"), False, "blocks"),
    "constrained_sparsemax": Op(*_BOUNDED, (), False, "threshold"),
}


def available(op: str, x: Tensor) -> bool:
    return op in OPS


__all__ = ["OPS", "NoMemory", "Op", "available"]
