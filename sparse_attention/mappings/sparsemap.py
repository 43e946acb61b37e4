r"""SparseMAP: attention over structures,
:math:`\mu = \arg\min_{\mu \in \mathcal M} \frac12\|\mu - \theta\|^2 - h(\mu)`.

Niculae, Martins, Blondel & Cardie 2018; Peters, Niculae & Martins 2018. :math:`\mathcal M` is the set of averages of
structures, which are sequences of states, matchings of rows and columns, or dependency trees. The unary scores :math:`\theta` are
regularised. Transition scores enter linearly: :math:`h(\mu)` is the highest transition score of any average of
structures that equals :math:`\mu`. Only a few structures have nonzero weight; :math:`\mu` is unique, but the weights
need not be. Without transitions, a sequence reduces to sparsemax at every position. A matching with a single row also
reduces to sparsemax.

The solution is computed by an active set method in float64. It is exact up to the duality gap, which is returned as a
certificate and is at most 64 times the rounding of the scores' sum (about 1e-12). Gradients use an affinely independent
basis of the face of optimal structures, so they are correct at ties. At a kink of the solution, or where transitions
can be exchanged without loss, they are one of the possible gradients. The mapping is piecewise linear, so its second
derivative is that of a linear map. In the authors' code, matchings need a padded square matrix; here, n rows are
matched to n of m columns.

Trees are the arborescences that Niculae et al. name as the non-projective case, found by the algorithm of Chu & Liu (1965)
and Edmonds (1967). It does not limit the number of roots.

`softmax_sequence` is the dense counterpart: the marginals of a linear-chain conditional random field. For other factors
(at most k, your own), see `sparse_attention.structured`; for exactly k of a row, `sparsemap_budget`.

Forward and backward: the reference is in ``structured/active_set.py`` and ``structured/rows.py`` (``_Listed``), the
fast kernels are in ``kernels/native/src/sparsemap.h`` and ``kernels/native/src/active_set.h``; softmax_sequence is
in this file, by autograd.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..registry import register
from ..rows.shape import in_float64, last, tensor
from ..structured.rows import Solution, solution, solve_listed

_PAPER = "Niculae et al. 2018; Peters et al. 2018"


def position_mask(mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """Expand a mask over positions ``[..., T]`` to ``[..., T, 1]``, to fit the scores; return other masks unchanged."""
    return mask.unsqueeze(-1) if mask is not None and mask.ndim == scores.ndim - 1 else mask


def sequence_scores(
    scores: Tensor, transitions: Tensor, start: Tensor | None, stop: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores and transitions, checked and ready for the solver.

    Returns:
        the scores ``[..., T, S]`` in float32 or float64, with start and stop added at the first and last kept position
        and -inf where masked; and the transitions in the same dtype. Both have the full leading shape, except that
        transitions shared by all sequences have no leading dimensions.
    Raises:
        ValueError: the shapes do not fit.
    """
    for name, x in (("scores", scores), ("transitions", transitions)):
        tensor(x, name)
    if scores.ndim < 2 or transitions.ndim < 2 or transitions.shape[-2:] != (scores.shape[-1],) * 2:
        raise ValueError(
            f"transitions of shape {tuple(transitions.shape)} do not fit scores of shape {tuple(scores.shape)}: "
            "scores are (..., T, S), transitions (..., S, S), indexed [from, to]"
        )
    x, _ = last(scores, -1, position_mask(mask, scores))
    if transitions.dtype != x.dtype:
        transitions = transitions.to(x.dtype)
    if start is not None or stop is not None:
        kept = (x.detach() > -torch.inf).any(-1)
        first, final = kept & (kept.cumsum(-1) == 1), kept & (kept.flip(-1).cumsum(-1).flip(-1) == 1)
        for end, where in ((start, first), (stop, final)):
            if end is not None:
                x = x + torch.where(where.unsqueeze(-1), end.to(x.dtype).unsqueeze(-2), 0.0)
    if transitions.ndim > 2:
        try:
            lead = torch.broadcast_shapes(x.shape[:-2], transitions.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"transitions of shape {tuple(transitions.shape)} do not broadcast to scores of shape {tuple(scores.shape)}; give (..., S, S) for scores (..., T, S)"
            ) from None
        x, transitions = x.expand(*lead, *x.shape[-2:]), transitions.expand(*lead, *transitions.shape[-2:])
    return x, transitions


def _solved(op: str, x: Tensor, transitions: Tensor | None, dtype: torch.dtype, structures: bool) -> Tensor | Solution:
    """The marginals of scores ``x [..., L, W]`` in ``dtype``, or the `Solution` if ``structures``."""
    lead = x.shape[:-2]
    if not x.numel():
        marginals, chosen = x.to(dtype).clone(), torch.full((*lead, 1, x.shape[-2]), -1, device=x.device)
        gap = torch.zeros(lead, dtype=torch.float64, device=x.device)
        return Solution(marginals, chosen, x.new_zeros(*lead, 1), gap) if structures else marginals
    if max(x.shape[-2:]) >= 2**15:
        raise ValueError(f"scores of shape {tuple(x.shape)} are too large: the last two sizes must be below {2**15:,}")
    if transitions is not None:
        transitions = (transitions.flatten(0, -3) if transitions.ndim > 3 else transitions).contiguous()
    rows = x.reshape(math.prod(lead), *x.shape[-2:]).contiguous()
    marginals, *rest = solve_listed(op, rows, transitions)
    marginals = marginals.view(x.shape).to(dtype)
    return solution((marginals, *rest), lead) if structures else marginals


@register(
    "sparsemap_sequence",
    kind="structured",
    over="sequence",
    inputs=("transitions",),
    paper=_PAPER,
    oracle="quadratic programme over all sequences (DAQP); sparsemax",
)
@in_float64
def sparsemap_sequence(
    scores: Tensor,
    transitions: Tensor,
    start: Tensor | None = None,
    stop: Tensor | None = None,
    mask: Tensor | None = None,
    return_structures: bool = False,
) -> Any:
    """Sparse attention over sequences of states; returns the marginals of the states at every position.

    Args:
        scores: ``(..., T, S)`` for S states at T positions; -inf counts as masked.
        transitions: ``(..., S, S)``, indexed [from, to], broadcastable over the leading dimensions; -inf forbids a
            transition.
        start, stop: ``(..., S)``, extra scores for the states of the first and last kept position.
        mask: bool, True = keep; either ``(..., T)`` for positions (one dimension fewer than the scores) or
            broadcastable to the scores. Positions without a kept state are left out, and the positions on both sides of
            them become neighbours.
        return_structures: return a `Solution` (marginals, structures, weights and gap). Each structure is a sequence of
            states; together they are ``(..., K, T)``, with -1 at positions that are left out.
    Returns:
        ``(..., T, S)``; every kept position sums to 1. The result is 0 where masked, and NaN in a sequence with NaN or
        +inf. It is differentiable in scores, transitions, start and stop.
    Raises:
        ValueError: the shapes do not fit, or a sequence has kept positions but every path through them scores -inf.
    """
    x, transitions = sequence_scores(scores, transitions, start, stop, mask)
    return _solved("sparsemap_sequence", x, transitions, scores.dtype, return_structures)


@register(
    "sparsemap_matching",
    kind="structured",
    over="matching",
    paper=_PAPER,
    oracle="quadratic programme over all matchings (DAQP), over the Birkhoff polytope (cvxpy); scipy's assignment",
)
@in_float64
def sparsemap_matching(scores: Tensor, mask: Tensor | None = None, return_structures: bool = False) -> Any:
    """Sparse attention over matchings of rows and columns; returns the marginals of every pair.

    Args:
        scores: ``(..., n, m)``; -inf counts as masked.
        mask: bool, broadcastable to the scores, True = keep. Rows and columns without a kept pair are left out.
        return_structures: return a `Solution` (marginals, structures, weights and gap). A structure gives the column of
            every row; together they are ``(..., K, n)``, with -1 for rows without a column.
    Returns:
        ``(..., n, m)``. If no more rows than columns are kept, every kept row sums to 1 and every column to at most 1;
        otherwise, every kept column sums to 1 and every row to at most 1. The result is 0 where masked, and NaN in a
        matrix with NaN or +inf.
    Raises:
        ValueError: the scores have fewer than two dimensions, or the kept pairs of a matrix contain no complete
            matching.
    """
    if scores.ndim < 2:
        raise ValueError(f"scores of shape {tuple(scores.shape)} have no rows and columns; give (..., n, m)")
    x, _ = last(scores, -1, mask)
    return _solved("sparsemap_matching", x, None, scores.dtype, return_structures)


@register(
    "sparsemap_tree",
    kind="structured",
    over="tree",
    paper="Niculae et al. 2018",
    oracle="quadratic programme over all trees (DAQP)",
)
@in_float64
def sparsemap_tree(scores: Tensor, mask: Tensor | None = None, return_structures: bool = False) -> Any:
    """Sparse attention over dependency trees; returns the marginals of the head of every word.

    Trees need not be projective (arcs may cross), and a word is a root if it is its own head. There may be several roots.

    Args:
        scores: ``(..., n, n)``, indexed [word, head], as in self-attention; the diagonal scores roots. -inf
            counts as masked. (The factor `structured.Tree` is indexed [head, word].)
        mask: bool, True = keep; either ``(..., n)`` for words (one dimension fewer than the scores) or broadcastable to
            the scores. Words without a kept head are left out, also as heads.
        return_structures: return a `Solution` (marginals, structures, weights and gap). A structure gives the head of
            every word; together they are ``(..., K, n)``, with -1 for words that are left out.
    Returns:
        ``(..., n, n)``; every kept word's row sums to 1. The result is 0 where masked, and NaN in a table with NaN or
        +inf.
    Raises:
        ValueError: the scores are not square, or no tree has only kept arcs.
    """
    tensor(scores)
    if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2]:
        raise ValueError(f"scores {tuple(scores.shape)} are not square; to align two texts use sparsemap_matching")
    x, _ = last(scores, -1, position_mask(mask, scores))
    return _solved("sparsemap_tree", x, None, scores.dtype, return_structures)


_NEVER = -1e30  # replaces -inf, which has no derivative in logsumexp


@register(
    "softmax_sequence",
    kind="structured",
    over="sequence",
    inputs=("transitions",),
    paper="Kim et al. 2017, structured attention; Lafferty et al. 2001",
    oracle="softmax over all sequences",
)
def softmax_sequence(
    scores: Tensor,
    transitions: Tensor,
    start: Tensor | None = None,
    stop: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Dense attention over sequences: the marginals of a linear-chain conditional random field.

    Computed by forward-backward. Arguments and result are those of :func:`sparsemap_sequence`. Twice differentiable;
    the cost is O(T S^2), in T sequential torch steps.
    """
    x, transitions = sequence_scores(scores, transitions, start, stop, mask)
    if not x.numel():
        return x.to(scores.dtype).clone()
    keep = x.detach() != -torch.inf
    there = keep.any(-1, keepdim=True)
    z = torch.where(keep, x, _NEVER)
    steps = torch.where(transitions.detach() == -torch.inf, _NEVER, transitions)
    # A position that is left out passes on the message it receives unchanged.
    forward, backward = [torch.zeros_like(z[..., 0, :])], [torch.zeros_like(z[..., 0, :])]
    begun = torch.zeros_like(there[..., 0, :])
    for t in range(z.shape[-2]):
        a = torch.where(begun, torch.logsumexp(forward[-1].unsqueeze(-1) + steps, -2), 0.0) + z[..., t, :]
        forward.append(torch.where(there[..., t, :], a, forward[-1]))
        begun = begun | there[..., t, :]
    for t in range(z.shape[-2] - 1, 0, -1):
        b = torch.logsumexp(steps + (backward[-1] + z[..., t, :]).unsqueeze(-2), -1)
        backward.append(torch.where(there[..., t, :], b, backward[-1]))
    total = torch.stack(forward[1:], -2) + torch.stack(backward[::-1], -2)
    return torch.where(keep, torch.softmax(total, -1), 0.0).to(scores.dtype)
