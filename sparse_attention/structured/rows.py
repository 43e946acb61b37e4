"""SparseMAP on batches, with gradients.

`sparsemap` takes any factor and loops over the batch. Sequences, matchings and trees have native kernels, which process a
whole batch and store structures as lists of choices (`solve_listed`). The result of both is piecewise linear in the
scores. For second derivatives, the gradient is computed by differentiable torch operations.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.utils.rnn import pad_sequence

from .. import kernels
from ..kernels.reference.graph import refuse
from ..rows.forward_mode import forward_levels, split
from ..rows.shape import PLAIN, batched, dispatch_modes, in_float64, last, transformed
from .active_set import Factor, projected, solve
from .factors import Matching, Sequence, Tree


class _Heads(Tree):
    """`Tree` for scores ``[word, head]``."""

    def highest(self, scores: Tensor) -> Tensor:
        return super().highest(scores.T).T


_REFERENCE: dict[str, Factor] = {"sparsemap_sequence": Sequence(), "sparsemap_matching": Matching()}
_REFERENCE["sparsemap_tree"] = _Heads()


class Solution(NamedTuple):
    """The result with ``return_structures=True``. Only the marginals have a gradient.

    marginals: the shape of the scores.
    structures: ``[..., K, ...]``, where K is the largest number of structures of any row in the batch.
    weights: ``[..., K]``, > 0 for the structures of a row and 0 for the padding after them. They sum to 1. If the
        structures are affinely dependent, other weights are possible too.
    gap: ``[...]`` float64, the certificate: the marginals are within ``sqrt(2 gap)`` of the exact ones.
    """

    marginals: Tensor
    structures: Tensor
    weights: Tensor
    gap: Tensor


@in_float64
def sparsemap(
    factor: Factor, scores: Tensor, *inputs: Tensor, mask: Tensor | None = None, return_structures: bool = False
) -> Tensor | Solution:
    """SparseMAP for any factor: the average of its structures that is nearest to the scores.

    The scores of a structure in the inputs (such as transitions) are added to the objective.

    Args:
        factor: see `active_set.Factor`.
        scores: ``[..., *shape]``, where shape has ``factor.dims`` dimensions; -inf counts as masked.
        inputs: the inputs of the factor; their leading dimensions broadcast to those of the scores.
        mask: bool, broadcastable to scores, True = keep.
        return_structures: return a `Solution`, whose structures are indicators ``[..., K, *shape]``.
    Returns:
        the shape of the scores; 0 where masked and in fully masked rows, NaN in rows with NaN or +inf.
    Raises:
        ValueError: a row allows no structure, or the inputs do not fit.
    """
    refuse("sparsemap")
    x, restore = last(scores, -1, mask)
    lead, shape = x.shape[: x.ndim - factor.dims], x.shape[x.ndim - factor.dims :]
    rows = math.prod(lead)
    own = getattr(factor, "inputs", ())
    if len(own) != len(inputs) or any(i.ndim < n for i, n in zip(inputs, own)):
        raise ValueError(
            f"{type(factor).__name__} takes inputs of {list(own)} dimensions each (its attribute `inputs`), after those of "
            f"the batch; got shapes {[tuple(i.shape) for i in inputs]}"
        )
    given = [i.to(x.dtype).expand(*lead, *i.shape[i.ndim - n :]) for i, n in zip(inputs, own)]
    flat = [i.reshape(rows, *i.shape[len(lead) :]) for i in given]
    if not x.numel():
        raise ValueError(f"scores of shape {tuple(scores.shape)} are empty: skip this call")
    each = x.reshape(rows, *shape)
    if forward_levels() < 2:
        mu, weights, gap, M, *_ = _Looped.apply(each, factor, *flat)
    else:  # piecewise linear
        (each, *flat), (dx, *tangents) = split(each, *flat)
        mu, weights, gap, M, held, *counts = _Looped.apply(each, factor, *flat)
        mu = mu + _tangent(dx, tuple(tangents), M, held, tuple(counts)).view(mu.shape).to(mu.dtype)
    marginals = restore(mu.view(x.shape))
    if not return_structures:
        return marginals
    most = max(1, int((weights > 0).sum(-1).max()))
    structures = M[:, :most].reshape(*lead, most, *shape)
    return Solution(marginals, structures, weights[:, :most].reshape(*lead, most), gap.view(lead))


def _of_row(factor: Factor, x: Tensor, inputs: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Solve one row ``x [*shape]``, which is float64 on the CPU, as the inputs are.

    Returns the marginals ``[D]`` and the gap; then, for each of its structures, by weight: the weight, the indicator,
    True, and the counts of the inputs. A row that has nothing to solve (0 or NaN) has one structure, of False.
    """
    bad = not all(bool((v < torch.inf).all()) for v in (x, *inputs))
    if bad or bool((x == -torch.inf).all()):
        mu = torch.full((x.numel(),), torch.nan if bad else 0.0, dtype=torch.float64)
        parts = [mu.new_zeros(1, part.numel()) for part in (x, *inputs)]
        return mu, mu[0], mu.new_zeros(1), parts[0], torch.zeros(1, dtype=torch.bool), *parts[1:]
    try:
        found = solve(factor, x, inputs)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    order = found.weights.argsort(descending=True, stable=True)
    held, counts = torch.ones_like(order, dtype=torch.bool), [c[order].flatten(1) for c in found.counts]
    return found.marginals, found.weights.new_tensor(found.gap), found.weights[order], found.M[order], held, *counts


def _gradients(g: Tensor, M: Tensor, held: Tensor, counts: tuple[Tensor, ...]) -> list[Tensor]:
    """``M Q M' g`` for ``g [R, D]``, and ``counts' Q M' g`` for every input, in float64; differentiable in g."""
    q = projected((M @ g.double().unsqueeze(-1)).squeeze(-1), M, held)
    return [(q.unsqueeze(-2) @ part).squeeze(-2) for part in (M, *counts)]


def _tangent(dx: Any, dinputs: tuple[Any, ...], M: Tensor, held: Tensor, counts: tuple[Tensor, ...]) -> Tensor:
    """The tangent of the marginals, ``M Q (M' dx + sum counts dinput)``, flattened."""
    r = torch.zeros(held.shape, dtype=M.dtype, device=M.device)
    for part, tangent in zip((M, *counts), (dx, *dinputs)):
        if tangent is not None:
            r = r + (part @ tangent.reshape(len(M), -1, 1).double()).squeeze(-1)
    return (projected(r, M, held).unsqueeze(-2) @ M).squeeze(-2)


class _Looped(Function):
    """SparseMAP for any factor.

    Returns marginals, weights, gap, structures ``M [R, K, D]``, the mask ``[R, K]`` of those that are not padding, and
    the counts of the inputs.
    """

    @staticmethod
    def forward(x: Tensor, factor: Factor, *inputs: Tensor) -> tuple[Tensor, ...]:
        wide, given = x.double().cpu(), [i.double().cpu() for i in inputs]
        found = [
            _of_row(factor, row, tuple(i[r] for i in given), f"row {r} of {len(wide)}") for r, row in enumerate(wide)
        ]
        mu, gap, *parts = zip(*found)
        weights, M, held, *counts = (pad_sequence([*part], batch_first=True) for part in parts)
        out = (torch.stack(mu).view(x.shape).to(x.dtype), weights.to(x.dtype), torch.stack(gap), M, held, *counts)
        return tuple(t.to(x.device) for t in out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        rest = output[1:]
        ctx.mark_non_differentiable(*rest)
        ctx.save_for_backward(*rest[2:])
        ctx.save_for_forward(*rest[2:])
        ctx.given = inputs[2:]

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        M, held, *counts = ctx.saved_tensors
        dx, *rest = _gradients(g.reshape(len(M), -1), M, held, tuple(counts))
        shaped = [d.view(i.shape).to(i.dtype) for d, i in zip(rest, ctx.given)]
        return dx.view(g.shape).to(g.dtype), None, *shaped

    @staticmethod
    def jvp(ctx: Any, dx: Any, _: Any, *dinputs: Any) -> tuple[Any, ...]:
        M, held, *counts = ctx.saved_tensors
        tangent = next(t for t in (dx, *dinputs) if t is not None)
        mu = _tangent(dx, dinputs, M, held, tuple(counts))
        return (
            mu.view(dx.shape if dx is not None else mu.shape).to(tangent.dtype),
            *(None for _ in range(4 + len(counts))),
        )


def solve_listed(op: str, x: Tensor, transitions: Tensor | None) -> tuple[Tensor, ...]:
    """SparseMAP over sequences, matchings or trees, with the selected kernels.

    Args:
        x: ``[R, L, W]``, contiguous, float32 or float64, -inf where masked.
        transitions: for sequences only, ``[W, W]`` or ``[R, W, W]``, with the dtype of x.
    Returns:
        marginals, like x; weights ``[R, K]``; gap ``[R]``; structures ``[R, K, L]`` int16; counts ``[R, 2]``: the
        number of structures with weight, and the number that form a basis of the face. Entries after these counts are
        undefined.
    Raises:
        ValueError: a row allows no structure.
    """
    refuse(op)
    if forward_levels() > 1:  # piecewise linear
        dt = None
        (x,), (dx,) = split(x)
        if transitions is not None:
            (transitions,), (dt,) = split(transitions)
        mu, *rest = _ListedInTransforms.apply(x, transitions, op)
        return mu + _marginals_along(dx, dt, rest[2], rest[3]), *rest
    if transformed():
        return _ListedInTransforms.apply(x, transitions, op)
    learned = x.requires_grad or (transitions is not None and transitions.requires_grad)
    if (learned and torch.is_grad_enabled()) or torch.autograd.forward_ad._current_level >= 0:
        return _Listed.apply(x, transitions, op)
    return _listed(op, x, transitions)


def _listed(op: str, x: Tensor, transitions: Tensor | None) -> tuple[Tensor, ...]:
    here = x.cpu()
    native = getattr(kernels.select("sparsemax", here), "STRUCTURED", {}).get(op)
    if native is None:
        return _by_reference(op, x, transitions)
    status, found = native.forward(here, None if transitions is None else transitions.cpu().contiguous())
    gap, counts = found[2], found[4]
    if status == native.not_converged:
        warnings.warn(f"{op} stopped at a duality gap of {gap.nan_to_num().max():.1e}", RuntimeWarning, stacklevel=2)
    elif status:
        row = int((counts[:, 0] == -2).nonzero()[0])
        what = {"sparsemap_sequence": "a state or a transition", "sparsemap_matching": "a pair"}
        raise ValueError(
            f"row {row} of {len(counts)}: no structure is allowed: each has {what.get(op, 'an arc or a root')} that is "
            "masked or of score -inf; keep more of the row, or mask all of it (it becomes zeros)"
        )
    return tuple(t.to(x.device) for t in found) if x.device.type != "cpu" else found


def _by_reference(op: str, x: Tensor, transitions: Tensor | None) -> tuple[Tensor, ...]:
    rows, length, width = x.shape
    inputs = () if transitions is None else (transitions.expand(rows, width, width),)
    mu, weights, gap, M, held, *_ = _Looped.forward(x, _REFERENCE[op], *inputs)
    M = M.view(rows, -1, length, width)
    structures = torch.where(M.sum(-1) > 0, M.argmax(-1), -1).to(torch.int16)
    found = torch.where(gap.isnan(), -1, (weights > 0).sum(-1))
    return mu, weights, gap, structures, torch.stack((found, held.sum(-1)), -1)


def dense(structures: Tensor, used: Tensor, width: int, steps: bool) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Convert listed structures ``[R, K, L]``, of which the first ``used [R]`` in each row are valid, to dense form.

    Returns:
        the indicators ``M [R, K, L W]``; the mask of valid structures ``[R, K]``; and, if ``steps`` (for sequences), a
        tuple with the number of times each structure takes every transition ``[R, K, W W]``.
    """
    structures = structures[:, : max(1, int(used.max()))].long()
    rows, count, length = structures.shape
    held = torch.arange(count, device=used.device) < used.unsqueeze(-1)
    y = torch.where(held.unsqueeze(-1), structures, -1)
    M = torch.zeros(rows, count, length, width + 1, dtype=torch.float64, device=y.device)
    M = M.scatter_(-1, torch.where(y < 0, width, y).unsqueeze(-1), 1.0)[..., :width].flatten(-2)
    if not steps:
        return M, held, ()
    return M, held, (steps_taken(y, width),)


def steps_taken(y: Tensor, width: int) -> Tensor:
    """How often each sequence ``y [..., T]`` (-1 = position left out) takes every transition, ``[..., W W]``."""
    taken = torch.zeros(*y.shape[:-1], width * width + 1, dtype=torch.float64, device=y.device)
    before = torch.full_like(y[..., 0], -1)
    for state in y.unbind(-1):
        at = torch.where((before >= 0) & (state >= 0), before * width + state, width * width)
        taken.scatter_add_(-1, at.unsqueeze(-1), torch.ones_like(at, dtype=torch.float64).unsqueeze(-1))
        before = torch.where(state >= 0, state, before)
    return taken[..., :-1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, transitions, ctx.op = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[3:])
    ctx.save_for_forward(*output[3:])
    ctx.transitions = None if transitions is None else transitions.shape


def _marginals_along(dx: Any, dt: Any, structures: Tensor, counts: Tensor) -> Tensor:
    """The tangent of the marginals; ``dt`` is None if there are no transitions."""
    rows, length = structures.shape[0], structures.shape[2]
    tangent = dx if dx is not None else dt
    width = tangent.shape[-1]
    given = () if dt is None else (dt.expand(rows, width, width),)
    mu = _tangent(dx, given, *dense(structures, counts[:, 1], width, dt is not None))
    return mu.view(rows, length, width).to(tangent.dtype)


class _Listed(Function):
    """The ordinary case, outside torch.func transforms: one kernel for forward and one for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, transitions: Tensor | None, op: str) -> tuple[Tensor, ...]:
        out = _listed(op, x, transitions)
        _keep(ctx, (x, transitions, op), out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        structures, counts = ctx.saved_tensors
        rows, width, native = g.shape[0], g.shape[2], None
        steps = ctx.transitions is not None and ctx.needs_input_grad[1]
        watched = torch.is_grad_enabled() or batched(g) or transformed() or dispatch_modes()
        if g.__class__ in PLAIN and not watched and g.is_cpu:
            native = getattr(kernels.select("sparsemax", g), "STRUCTURED", {}).get(ctx.op)
        if native is not None:
            dx, dt = native.backward(g.resolve_neg(), structures, counts, steps)
        else:
            dx, *rest = _gradients(g.reshape(rows, -1), *dense(structures, counts[:, 1], width, steps))
            dx = dx.view(g.shape).to(g.dtype) + torch.where(counts[:, :1, None] == -1, torch.nan, 0.0).to(g.dtype)
            dt = rest[0].view(rows, width, width).to(g.dtype) if steps else None
        if dt is not None and len(ctx.transitions) == 2:
            dt = dt.sum(0)
        return dx, dt, None

    @staticmethod
    def jvp(ctx: Any, dx: Any, dt: Any, _: Any) -> tuple[Any, ...]:
        if ctx.transitions is not None and dt is None:
            dt = dx.new_zeros(ctx.transitions)
        return _marginals_along(dx, dt, *ctx.saved_tensors), None, None, None, None


class _ListedInTransforms(_Listed):
    """The case inside torch.func transforms. It is separate because binding its arguments takes 20 us per call."""

    @staticmethod
    def forward(x: Tensor, transitions: Tensor | None, op: str) -> tuple[Tensor, ...]:  # type: ignore[override]
        return _listed(op, x, transitions)

    setup_context = staticmethod(_keep)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, transitions: Tensor | None, op: str) -> Any:
        n = info.batch_size
        given = zip((x, transitions), in_dims)
        x, own = (t if t is None else t.expand(n, *t.shape) if d is None else t.movedim(d, 0) for t, d in given)
        rows = x.shape[1]
        if own is not None and (in_dims[1] is not None or own.ndim == 4):
            own = own.unsqueeze(1) if own.ndim == 3 else own
            transitions = own.expand(n, rows, *own.shape[-2:]).flatten(0, 1)
        out = _ListedInTransforms.apply(x.flatten(0, 1).contiguous(), transitions, op)
        return tuple(t.unflatten(0, (n, rows)) for t in out), (0,) * 5


def solution(found: tuple[Tensor, ...], lead: torch.Size) -> Solution:
    """A `Solution` with leading shape ``lead`` from the result of `solve_listed`; the marginals are left unchanged."""
    mu, weights, gap, structures, counts = found
    most = max(1, int(counts[:, 0].max())) if len(counts) else 1
    held = torch.arange(most, device=counts.device) < counts[:, :1]
    chosen = torch.where(held.unsqueeze(-1), structures[:, :most].long(), -1)
    return Solution(
        mu, chosen.view(*lead, most, -1), torch.where(held, weights[:, :most], 0.0).view(*lead, most), gap.view(lead)
    )
