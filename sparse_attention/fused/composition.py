r"""Attention as it is written: :math:`O = \pi(s\,QK^\top)V`, the mapping :math:`\pi` along the keys. The other paths are tested against it.

It works on every device and with every mapping, and is differentiable as often as the mapping. Its scores take :math:`Hnm`
numbers. Grouped queries share keys without a copy: the queries of a group are the rows of one product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ..mappings.entmax import entmax
from ..mappings.sparsemax import sparsemax
from .reading import blank, finite, gathered, read, scores, slopes, times, weighed


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mapping: Callable[[Tensor, Tensor | None], Tensor],
    keep: Tensor | None, dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q ``[..., H, n, d]``, k ``[..., G, m, d]``, v ``[..., G, m, e]`` -> ``[..., H, n, e]`` and weights ``[..., H, n, m]``.

    dropout: applied to the weights that read the values, not to those returned.
    """
    x = scores(q * scale, blank(k, keep))
    weights = weighed(x, mapping(x, keep))
    return read(F.dropout(weights, dropout) if dropout else weights, blank(v, keep)), weights


def visible(n: int, m: int, lengths: Tensor | None, causal: bool, device: Any = None) -> Tensor | None:
    """bool, broadcastable to ``[H, n, m]``, True = visible: from lengths ``[H]``, and keys up to i + m - n for query i."""
    kept = None
    if lengths is not None:
        kept = torch.arange(m, device=device) < lengths[..., None, None]
    if causal:
        past = torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)
        kept = past if kept is None else kept & past
    return kept


def of_alpha(alpha: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    """entmax with a number alpha, as a mapping for `attend`."""
    if alpha == 2.0:
        return lambda x, keep: sparsemax(x, mask=keep)
    return lambda x, keep: entmax(x, alpha=alpha, mask=keep)


def gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, alpha: float, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The vector-Jacobian products of g ``[H, n, e]`` with q, k, v, without autograd, for use inside an operator."""
    keep = visible(q.shape[-2], k.shape[-2], lengths, causal, q.device)
    x = times(q * scale, k.transpose(-1, -2))  # [H, n, m]
    x = x if keep is None else x.masked_fill(~keep, -torch.inf)
    flat, params = x.view(-1, x.shape[-1]), {"gamma": 1.0} if alpha == 2.0 else {"alpha": alpha}
    op = "sparsemax" if alpha == 2.0 else "entmax"
    kernel = kernels.select(op, flat).OPS[op]
    p, saved = kernel.forward(flat, **params)
    p = p.view(x.shape)
    dp = slopes(g, p, v).reshape(flat.shape)
    dx = kernel.backward(dp, p.view(flat.shape), saved, **params).view(x.shape) * scale
    dx = dx if finite(dx) else dx.masked_fill((p == 0) & ~dx.isfinite(), 0.0)
    return read(dx, k), gathered(dx, q, k.shape[0]), gathered(p, g, v.shape[0])
