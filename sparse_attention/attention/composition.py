r"""Attention by its definition: :math:`O = \pi(s\,QK^\top)V` with the mapping :math:`\pi` applied along the keys.

The other paths are tested against this one. It works on every device and with every mapping, and is differentiable as
often as the mapping. It stores :math:`Hnm` scores. Grouped queries share keys without a copy: the queries of a group
are the rows of one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ..mappings.entmax import entmax
from ..mappings.fusedmax import fusedmax
from ..rows.masked import readable
from .forms import Inputs, Numbers
from .reading import blank, finite, gathered, read, scores, slopes, times, weighed

Maps = Callable[[Tensor, Tensor | None], Tensor]  # scores [..., H, n, m] and a mask to weights


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mapping: Maps, keep: Tensor | None, dropout: float | Tensor = 0.0
) -> tuple[Tensor, Tensor]:
    """Attend with q ``[..., H, n, d]`` to k ``[..., G, m, d]`` and v ``[..., G, m, e]``.

    Returns the output ``[..., H, n, e]`` and the weights ``[..., H, n, m]``. Dropout, a share or
    factors ``[H, n, m]`` of 0 and ``1 / (1 - share)``, is applied to the weights that multiply the values, not to the returned ones.
    """
    x = scores(q * scale, blank(k, keep))
    weights = weighed(x, mapping(x, keep))
    dropped = weights * dropout if isinstance(dropout, Tensor) else F.dropout(weights, dropout) if dropout else weights
    return read(dropped, blank(v, keep)), weights


def visible(
    n: int, m: int, lengths: Tensor | None, causal: bool, device: Any = None, spans: Tensor | None = None,
    pinned: bool = False,
) -> Tensor | None:  # fmt: skip
    """Mask of visible keys: bool, broadcastable to ``[H, n, m]``, True = visible; None means all.

    The lengths ``[H]`` hide right padding; with ``causal``, query i sees keys up to i + m - n; the spans ``[..., n, 2]``
    hide the keys before the first number and from the second on. If ``pinned``, they do not hide key 0.
    """
    kept = None
    if lengths is not None:
        kept = torch.arange(m, device=device) < lengths[..., None, None]
    if causal:
        past = torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)
        kept = past if kept is None else kept & past
    if spans is not None:
        keys = torch.arange(m, device=device)
        within = (keys >= spans[..., :1]) & (keys < spans[..., 1:])
        within = within | (keys == 0) if pinned else within
        kept = within if kept is None else kept & within
    return kept


def of_alpha(alpha: float, alphas: Tensor | None = None, lam: float | None = None) -> Maps:
    """Entmax with a fixed alpha, or with ``alphas [H]`` of the heads, or fusedmax with lam, as a mapping for `attend`."""
    if lam:
        return lambda x, keep: fusedmax(x, lam=lam, mask=keep)
    given = alpha if alphas is None else alphas.view(-1, 1, 1)
    return lambda x, keep: entmax(x, alpha=given, mask=keep)


def kernel_of(alpha: float, lam: float | None, x: Tensor) -> tuple[Any, dict[str, float]]:
    """The kernel for rows like ``x [R, m]`` of entmax or, with lam, fusedmax, and the parameters of its functions."""
    op = "fusedmax" if lam else "sparsemax" if alpha == 2.0 else "entmax"
    params = {"alpha": alpha} if op == "entmax" else {"gamma": 1.0} if not lam else {"lam": lam, "gamma": 1.0}
    return kernels.select(op, x).OPS[op], params


def with_forms(mapping: Maps, inputs: Inputs, lead: tuple[int, ...]) -> Maps:
    """The mapping of scores ``[H, n, m]`` after scales, slopes, a bias and sinks; the weights of the sinks are dropped."""

    def mapped(x: Tensor, keep: Tensor | None) -> Tensor:
        n, m = x.shape[-2:]
        if inputs.scales is not None:
            x = x * inputs.scales.unsqueeze(-1)
        if inputs.slopes is not None:
            x = x - inputs.slopes.view(-1, 1, 1) * distances(n, m, x)
        if inputs.bias is not None:
            x = x + inputs.bias.to(x.dtype).expand(*lead, n, m).reshape(-1, n, m)
        if inputs.sinks is None:
            return mapping(x, keep)
        x = torch.cat([inputs.sinks.view(-1, 1, 1).expand(-1, n, 1), x], -1)
        return mapping(x, None if keep is None else F.pad(keep.expand(x.shape[0], n, m), (1, 0), value=True))[..., 1:]

    return mapped


def distances(n: int, m: int, like: Tensor) -> Tensor:
    """The distance of queries and keys, ``[n, m]``; the last query is at the position of the last key."""
    at = torch.arange(max(n, m), device=like.device, dtype=like.dtype)
    return (at[:n, None] + (m - n) - at[:m]).abs()


def gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, inputs: Inputs, numbers: Numbers
) -> tuple[Tensor | None, ...]:
    """The gradients of q, k, v, scales, slopes and sinks, without autograd from g ``[H, n, e]``, for use inside an operator."""
    n, m, alpha, lam = q.shape[-2], k.shape[-2], numbers.alpha, numbers.lam
    keep = visible(n, m, inputs.lengths, numbers.causal, q.device, inputs.spans, numbers.pinned)
    x = products = times(q * numbers.scale, k.transpose(-1, -2))  # [H, n, m]
    scales = None if inputs.scales is None else inputs.scales.unsqueeze(-1)
    x = x if scales is None else x * scales
    if inputs.slopes is not None:
        x = x - inputs.slopes.view(-1, 1, 1) * distances(n, m, x)
    x = x if keep is None else x.masked_fill(~keep, -torch.inf)
    sunk = int(inputs.sinks is not None)
    if inputs.sinks is not None:
        x = torch.cat([inputs.sinks.view(-1, 1, 1).expand(-1, n, 1), x], -1)
    flat = x.view(-1, x.shape[-1])
    kernel, params = kernel_of(alpha, lam, flat)
    p, saved = kernel.forward(flat, **params)
    p = p.view(x.shape)
    dp = F.pad(slopes(g, p[..., sunk:], v), (sunk, 0)).reshape(flat.shape)
    dx = kernel.backward(dp, p.view(flat.shape), saved, **params).view(x.shape)
    dsinks = dx[..., 0].sum(-1) if sunk else None
    dx, p = dx[..., sunk:], p[..., sunk:]
    dslopes = None if inputs.slopes is None else -(dx * distances(n, m, dx)).sum((-2, -1))
    dscales = None if scales is None else (dx * products).masked_fill(dx == 0, 0.0).sum(-1)
    dx = (dx if scales is None else dx * scales) * numbers.scale
    dx = dx if not readable(dx) or finite(dx) else dx.masked_fill((p == 0) & ~dx.isfinite(), 0.0)
    return read(dx, k), gathered(dx, q, k.shape[0]), gathered(p, g, v.shape[0]), dscales, dslopes, dsinks
