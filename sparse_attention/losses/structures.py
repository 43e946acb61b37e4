"""Fenchel-Young losses of SparseMAP (Niculae et al. 2018, sec. 5): convex, and 0 where the target is the only
structure.

Public as ``sa.losses.sparsemap_sequence_loss``, ``sparsemap_matching_loss`` and ``sparsemap_tree_loss``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..mappings.sparsemap import position_mask, sequence_scores, sparsemap_matching, sparsemap_sequence, sparsemap_tree
from ..rows.shape import in_float64, last
from ..structured.rows import steps_taken
from .regularisers import Slope, reduced


@in_float64
def sparsemap_sequence_loss(
    scores: Tensor,
    transitions: Tensor,
    target: Tensor,
    start: Tensor | None = None,
    stop: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Fenchel-Young loss of ``sparsemap_sequence``: ``max_mu [x.mu + h(mu) - |mu|^2/2] - (score of the target - T/2)``.

    The loss is non-negative. It is 0 where the target is the only structure, with the margin of Niculae et al. 2018,
    sec. 5. The gradient with respect to the scores is ``mu - target``; the loss is twice differentiable in them. The
    gradient with respect to transitions is the average number of times each is used, minus the number in the target;
    the loss is once differentiable in them.

    Args:
        scores, transitions, start, stop, mask: as in ``sa.sparsemap_sequence``.
        target: states ``(..., T)`` int64; positions that are left out may hold any number.
        reduction: "mean" over sequences, "sum" or "none".
    Raises:
        ValueError: the target has the wrong shape, or contains a state that is out of range or masked.
    """
    x, steps = sequence_scores(scores, transitions, start, stop, mask)
    if target.is_floating_point() or target.shape != x.shape[:-1]:
        raise ValueError(
            f"target {target.dtype} of shape {tuple(target.shape)} must hold states (int64), one per position: {tuple(x.shape[:-1])}"
        )
    there = (x.detach() != -torch.inf).any(-1)
    chosen = torch.where(there, target, 0)
    if bool((wrong := (chosen < 0) | (chosen >= x.shape[-1])).any()):
        raise ValueError(f"target contains {int(chosen[wrong][0])}; states are 0 to {x.shape[-1] - 1}")
    t = torch.nn.functional.one_hot(chosen, x.shape[-1]).to(x.dtype) * there.unsqueeze(-1)
    if bool(((t > 0) & (x.detach() == -torch.inf)).any()):
        raise ValueError("target contains a state that is masked or has a score of -inf")
    found: Any = sparsemap_sequence(x, steps, return_structures=True)
    mu, width = found.marginals, x.shape[-1]
    own = steps_taken(torch.where(there, target, -1), width).to(x.dtype)
    average = (found.weights.double().unsqueeze(-1) * steps_taken(found.structures, width)).sum(-2)
    taken = _Average.apply(x, steps, average.to(x.dtype))
    value = Slope.apply(x.flatten(-2), mu.flatten(-2), t.flatten(-2), None)
    value = value + Slope.apply(steps.flatten(-2).expand(own.shape), taken, own, None)
    return reduced(value + 0.5 * (t.sum((-1, -2)) - mu.detach().square().sum((-1, -2))), reduction)


class _Average(Function):
    """The average use of each transition, a constant in the first derivative of the loss (Danskin's theorem).

    A second derivative would also need the derivative of this average, which is not available.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Tensor, average: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return average.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        if g is None:
            return None, None, None
        raise NotImplementedError(
            "sparsemap_sequence_loss has no second derivative in the transitions, whose average counts need "
            "not be unique; differentiate twice in the scores, with transitions.detach()"
        )


@in_float64
def sparsemap_matching_loss(
    scores: Tensor, target: Tensor, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Fenchel-Young loss of ``sparsemap_matching``, with gradient ``mu - target``; twice differentiable.

    Args:
        scores, mask: as in ``sa.sparsemap_matching``.
        target: a matching or an average of matchings, with the shape of the scores; 0 where masked.
        reduction: "mean" over matrices, "sum" or "none".
    Raises:
        ValueError: the target has the wrong shape, or has weight on a masked pair.
    """
    return _loss_of_pairs(sparsemap_matching, scores, target, mask, reduction)


@in_float64
def sparsemap_tree_loss(scores: Tensor, target: Tensor, mask: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Fenchel-Young loss of ``sparsemap_tree``, with gradient ``mu - target``; twice differentiable.

    Arguments and errors are those of :func:`sparsemap_matching_loss`, for trees, indexed [word, head]; the mask may be one
    of words.
    """
    return _loss_of_pairs(sparsemap_tree, scores, target, position_mask(mask, scores), reduction)


def _loss_of_pairs(mapping: Any, scores: Tensor, target: Tensor, mask: Tensor | None, reduction: str) -> Tensor:
    if target.shape != scores.shape:
        raise ValueError(
            f"target of shape {tuple(target.shape)} must have the shape of the scores {tuple(scores.shape)}"
        )
    x, _ = last(scores, -1, mask)
    t = target.to(x.dtype)
    if bool(((t != 0) & (x.detach() == -torch.inf)).any()):
        raise ValueError("target has weight on a pair that is masked or has a score of -inf")
    mu = mapping(x)
    value = Slope.apply(x.flatten(-2), mu.flatten(-2), t.flatten(-2), None)
    return reduced(value + 0.5 * (t.square() - mu.detach().square()).sum((-1, -2)), reduction)
