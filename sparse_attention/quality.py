"""What attention looks like: support, exact zeros, entropy, groups, contiguity."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_statistics(p: Tensor, mask: Tensor | None = None) -> dict[str, float]:
    """Means over the rows of attention weights that have at least one kept position.

    Args:
        p: weights ``[..., n]``, attention along the last dimension.
        mask: bool, broadcastable to p, True = keep.
    Returns:
        ``rows``: how many rows counted; ``support``: mean number of non-zero positions; ``zeros``: share of exact zeros
        among kept positions (over all rows together); ``entropy``: mean, in nats; ``max_weight``: mean of the largest
        weight; ``groups``: mean number of maximal runs of equal non-zero weight between neighbouring kept positions;
        ``segments``: mean number of maximal runs of non-zero weight; ``contiguity``: mean over rows of
        ``1 - (segments - 1)/(support - 1)``, 1 when the support is one run and 0 when no two of its positions touch
        (rows with one position in the support count 1). NaN for every mean without rows.
    """
    p = p.detach().to("cpu", torch.float64)
    n = p.shape[-1]
    keep = torch.ones_like(p, dtype=torch.bool) if mask is None else mask.to("cpu").expand(p.shape)
    p, keep = p.reshape(-1, n), keep.reshape(-1, n)
    alive = keep.any(-1)
    p, keep = p[alive], keep[alive]
    if not len(p):
        nan = float("nan")
        return {"rows": 0.0, **dict.fromkeys(
            ("support", "zeros", "entropy", "max_weight", "groups", "segments", "contiguity"), nan)}
    # Neighbours are kept positions: close the holes.
    order = torch.argsort(keep.to(torch.int8), dim=-1, descending=True, stable=True)
    p = p.masked_fill(~keep, 0.0).gather(-1, order)
    on = p > 0
    before = torch.nn.functional.pad(p[:, :-1], (1, 0), value=0.0)
    support = on.sum(-1).double()
    segments = (on & (before <= 0)).sum(-1).double()
    groups = (on & (before != p)).sum(-1).double()
    contiguity = 1.0 - (segments - 1.0) / (support - 1.0).clamp(min=1.0)
    entropy = -torch.where(on, p * torch.where(on, p, 1.0).log(), 0.0).sum(-1)
    kept = keep.sum().double()
    return {
        "rows": float(len(p)),
        "support": support.mean().item(),
        "zeros": ((kept - support.sum()) / kept).item(),
        "entropy": entropy.mean().item(),
        "max_weight": p.amax(-1).mean().item(),
        "groups": groups.mean().item(),
        "segments": segments.mean().item(),
        "contiguity": contiguity.clamp(max=1.0).mean().item(),
    }
