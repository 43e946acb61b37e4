"""Losses that are minimal where the mapping returns the target, and the smoothed maximum on which they are built.

A mapping with a regulariser Omega is the gradient of ``max_Omega(x) = max_{p in simplex} x.p - Omega(p)`` (Niculae &
Blondel 2017, sec. 2). Its Fenchel-Young loss is ``max_Omega(x) + Omega(t) - x.t`` (Blondel, Martins & Niculae 2020).
This loss is convex and non-negative; it is 0 if and only if the mapping returns t. Its gradient is ``mapping(x) - t``.

    loss = sa.losses.fenchel_young(scores, classes, "entmax", alpha=1.3, ignore_index=0)
    loss = sa.losses.FenchelYoungLoss("sparsemax", reduction="sum")(scores, distributions, mask=mask)

Laha et al. 2018 (Eq. 7 and 8) define hinge losses for sparsehourglass, which has no such regulariser, and for
sparsegen. The SparseMAP losses are Fenchel-Young losses over structures (Niculae et al. 2018, sec. 5); their transition
scores are not regularised.
"""

from .fenchel_young import (
    EntmaxLoss,
    FenchelYoungLoss,
    SoftmaxLoss,
    SparsemaxLoss,
    entmax_loss,
    fenchel_young,
    max_omega,
    softmax_loss,
    sparsemax_loss,
)
from .hinge import sparsegen_hinge, sparsehourglass_hinge
from .regularisers import REGULARISERS
from .structures import sparsemap_matching_loss, sparsemap_sequence_loss, sparsemap_tree_loss

__all__ = [
    "REGULARISERS",
    "EntmaxLoss",
    "FenchelYoungLoss",
    "SoftmaxLoss",
    "SparsemaxLoss",
    "entmax_loss",
    "fenchel_young",
    "max_omega",
    "softmax_loss",
    "sparsegen_hinge",
    "sparsehourglass_hinge",
    "sparsemap_matching_loss",
    "sparsemap_sequence_loss",
    "sparsemap_tree_loss",
    "sparsemax_loss",
]
