r"""SparseMAP: sparse attention over structures, :math:`\mu = \arg\min_{\mu \in \mathcal M} \frac12\|\mu - \theta\|^2 - h(\mu)`.

Niculae, Martins, Blondel & Cardie 2018; Peters, Niculae & Martins 2018. :math:`\mathcal M` is the set of averages of structures:
sequences of states, or matchings of rows and columns. The unary scores :math:`\theta` are regularised. Transition scores enter
linearly: :math:`h(\mu)` is the highest transition score of an average that equals :math:`\mu`. Few structures have weight;
:math:`\mu` is unique, the weights of the structures need not be. Without transitions a sequence is sparsemax at every position, and a
matching of one row is sparsemax.

Exact by an active set, up to a duality gap of 64 times the rounding of the scores' sum (1e-12 or so), which is
returned as a certificate; computed in float64. Gradients use an affinely independent basis of the face of optimal
structures, so they are correct at ties; at a kink of the solution, or where transitions can be exchanged without loss, they
are one of the possible ones. Piecewise linear: the second derivative is that of a linear
map. Matchings of the authors' code take a padded square; here n rows take n of m columns.

`softmax_sequence` is the dense counterpart, the marginals of a linear-chain conditional random field. Other factors
(at most k, trees, your own): `sparse_attention.structured`.

Forward and backward: ``structured/active_set.py``, ``structured/rows.py`` (``_Listed``); fast
``kernels/native/src/sparsemap.h``, ``kernels/native/src/active_set.h``; softmax_sequence below, by autograd.
"""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from ..registry import register
from ..rows.shape import last
from ..structured.rows import Solution, solution, solve_listed

_PAPER = "Niculae et al. 2018; Peters et al. 2018"


def position_mask(mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """A mask over positions ``[..., T]`` as one over scores ``[..., T, S]``; others as they are."""
    return mask.unsqueeze(-1) if mask is not None and mask.ndim == scores.ndim - 1 else mask


def sequence_scores(
    scores: Tensor, transitions: Tensor, start: Tensor | None, stop: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores ``[..., T, S]`` in float32 or float64 with start and stop added to the first and last kept position, -inf where
    masked, and transitions of the same type; both with the full leading shape, transitions with none if they are shared.

    Raises:
        ValueError: shapes that do not fit.
    """
    if scores.ndim < 2 or transitions.ndim < 2 or transitions.shape[-2:] != (scores.shape[-1],) * 2:
        raise ValueError(
            f"transitions of shape {tuple(transitions.shape)} do not fit scores of shape {tuple(scores.shape)}: "
            "scores are (..., T, S), transitions (..., S, S), from x to"
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
                f"transitions of shape {tuple(transitions.shape)} do not broadcast to scores of shape {tuple(scores.shape)}"
            ) from None
        x, transitions = x.expand(*lead, *x.shape[-2:]), transitions.expand(*lead, *transitions.shape[-2:])
    return x, transitions


def _rows(op: str, x: Tensor, transitions: Tensor | None) -> tuple[Tensor, ...]:
    if max(x.shape[-2:]) >= 2**15:
        raise ValueError(f"scores of shape {tuple(x.shape)} are too large: structures are kept as 16 bit integers")
    if transitions is not None and transitions.ndim > 3:
        transitions = transitions.flatten(0, -3)
    rows = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]).contiguous()
    return solve_listed(op, rows, None if transitions is None else transitions.contiguous())


def _result(found: tuple[Tensor, ...], x: Tensor, dtype: torch.dtype, structures: bool) -> Tensor | Solution:
    marginals = found[0].view(x.shape)
    marginals = marginals if marginals.dtype == dtype else marginals.to(dtype)
    return solution((marginals, *found[1:]), x.shape[:-2]) if structures else marginals


@overload
def sparsemap_sequence(
    scores: Tensor, transitions: Tensor, start: Tensor | None = None, stop: Tensor | None = None,
    mask: Tensor | None = None, return_structures: Literal[False] = False,
) -> Tensor: ...  # fmt: skip


@overload
def sparsemap_sequence(
    scores: Tensor, transitions: Tensor, start: Tensor | None = None, stop: Tensor | None = None,
    mask: Tensor | None = None, *, return_structures: Literal[True],
) -> Solution: ...  # fmt: skip


@register(
    "sparsemap_sequence",
    kind="structured",
    over="sequence",
    inputs=("transitions",),
    paper=_PAPER,
    oracle="quadratic programme over all sequences (DAQP); sparsemax",
)
def sparsemap_sequence(
    scores: Tensor,
    transitions: Tensor,
    start: Tensor | None = None,
    stop: Tensor | None = None,
    mask: Tensor | None = None,
    return_structures: bool = False,
) -> Tensor | Solution:
    """Sparse attention over sequences of states: the marginals of every position's state.

    Args:
        scores: ``(..., T, S)`` of S states at T positions; -inf counts as masked.
        transitions: ``(..., S, S)``, from x to, broadcastable over the leading dimensions; -inf forbids one.
        start, stop: ``(..., S)``, scores of the first and last kept position's state.
        mask: bool, True = keep: ``(..., T)`` for positions (one dimension less than the scores), or broadcastable to the
            scores. Positions without a kept state are left out, and those on both sides of them become neighbours.
        return_structures: return a `Solution` (marginals, structures, weights, gap). Structures are states ``(..., K, T)``, -1 at
            positions that are left out.
    Returns:
        ``(..., T, S)``: every kept position sums to 1; 0 where masked; NaN in a sequence with NaN or +inf. Gradients for
        scores, transitions, start and stop.
    Raises:
        ValueError: shapes that do not fit; a sequence with kept positions and no path above -inf.
    """
    x, transitions = sequence_scores(scores, transitions, start, stop, mask)
    if not x.numel():
        return _empty(x, scores.dtype, x.shape[-2], return_structures)
    return _result(_rows("sparsemap_sequence", x, transitions), x, scores.dtype, return_structures)


@overload
def sparsemap_matching(
    scores: Tensor, mask: Tensor | None = None, return_structures: Literal[False] = False
) -> Tensor: ...


@overload
def sparsemap_matching(scores: Tensor, mask: Tensor | None = None, *, return_structures: Literal[True]) -> Solution: ...


@register(
    "sparsemap_matching",
    kind="structured",
    over="matching",
    paper=_PAPER,
    oracle="quadratic programme over all matchings (DAQP), over the Birkhoff polytope (cvxpy); scipy's assignment",
)
def sparsemap_matching(
    scores: Tensor, mask: Tensor | None = None, return_structures: bool = False
) -> Tensor | Solution:
    """Sparse attention over matchings of rows and columns: the marginals of every pair.

    Args:
        scores: ``(..., n, m)``; -inf counts as masked.
        mask: bool, broadcastable to the scores, True = keep. Rows and columns without a kept pair are left out.
        return_structures: return a `Solution` (marginals, structures, weights, gap). Structures are the column of every row
            ``(..., K, n)``, -1 for rows without one.
    Returns:
        ``(..., n, m)``. n <= m, of those kept: every row sums to 1, every column to at most 1; otherwise the other way
        round. 0 where masked; NaN in a matrix with NaN or +inf.
    Raises:
        ValueError: scores of less than two dimensions; a matrix whose kept pairs hold no complete matching.
    """
    if scores.ndim < 2:
        raise ValueError(f"scores of shape {tuple(scores.shape)} have no rows and columns: (..., n, m)")
    x, _ = last(scores, -1, mask)
    if not x.numel():
        return _empty(x, scores.dtype, x.shape[-2], return_structures)
    return _result(_rows("sparsemap_matching", x, None), x, scores.dtype, return_structures)


def _empty(x: Tensor, dtype: torch.dtype, length: int, structures: bool) -> Tensor | Solution:
    lead, marginals = x.shape[:-2], x.to(dtype).clone()
    if not structures:
        return marginals
    chosen = torch.full((*lead, 1, length), -1, device=x.device)
    return Solution(marginals, chosen, x.new_zeros(*lead, 1), torch.zeros(lead, dtype=torch.float64, device=x.device))


_NEVER = -1e30  # in place of -inf, which has no derivative in a log-sum


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
    """Dense attention over sequences: marginals of a linear-chain conditional random field, by forward-backward.

    Arguments and result as :func:`sparsemap_sequence`. Twice differentiable; O(T S^2) in T steps of torch.
    """
    x, transitions = sequence_scores(scores, transitions, start, stop, mask)
    if not x.numel():
        return x.to(scores.dtype).clone()
    keep = x.detach() != -torch.inf
    there = keep.any(-1, keepdim=True)
    z = torch.where(keep, x, _NEVER)
    steps = torch.where(transitions.detach() == -torch.inf, _NEVER, transitions)
    # A position that is left out passes its message on.
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
