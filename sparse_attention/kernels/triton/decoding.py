"""Start the kernels of ``decoding_kernels``, for few queries, and the mapping of rows between them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .. import triton as rows
from . import attention_arguments as args
from .attention_arguments import Saved


def forward(q: Tensor, k: Tensor, v: Tensor, room: int, mask: Tensor | None, saved: Saved) -> Tensor:
    """`attention.forward` of few queries: their scores, the mapping of rows, and the values, read by enough programs for the device."""
    (heads, n, m, e), d = saved.sizes, q.shape[-1]
    groups, device = k.shape[:-2].numel(), q.device
    size, single = heads // groups * n, q.dtype == torch.float32
    keys = 32 if single else 64
    blocks = -(-m // keys)
    x = torch.empty(heads, n, m + (saved.sinks is not None), dtype=torch.float32, device=device)
    bits = args.bits(saved)
    scored, weighed = _of(size, keys, d, e, single, saved.spans is not None, bits)
    forms = [q if y is None else y for y in (saved.spans, saved.scales, saved.slopes, saved.sinks)]
    forms.insert(0, args.no_lengths(device) if saved.lengths is None else saved.lengths)
    numbers = n, m, d, heads // groups, room, args.sees(saved), args.per_head(saved, n), saved.scale
    programs = groups * -(-x.shape[2] // keys)
    scored.go(programs, q, k, *forms, x, *numbers)
    if saved.bias is not None or mask is not None:
        scores = x.view(*saved.lead, n, -1)[..., :m]
        if saved.bias is not None:
            scores += saved.bias
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
    op, params = ("sparsemax", {"gamma": 1.0}) if saved.alpha == 2 else ("entmax", {"alpha": saved.alpha})
    p, _ = rows.OPS[op].forward(x, **params)
    turns = max(1, groups * blocks // (2 * args.FEW))
    runs = -(-blocks // turns)
    sizes = x.shape[2], m, e, size, room, turns
    shape = (*q.shape[:-1], e)
    wide = runs > 1  # the parts of runs are added up in float32
    out = torch.empty(
        (groups, runs, size, e) if wide else shape, dtype=torch.float32 if wide else q.dtype, device=device
    )
    weighed.go(groups * runs, p, v, out, *sizes)
    return out.sum(1).to(q.dtype).view(shape) if wide else out


@functools.lru_cache(1024)
def _of(
    size: int, keys: int, d: int, e: int, single: bool, spans: bool, forms: int
) -> tuple[rows.Starter, rows.Starter]:
    """What starts `decode_scores` and `decode_values` for the queries of a group."""
    from . import decoding_kernels as kernels

    warps = 8 if single or max(d, e) > 128 else 4
    both = {"ROWS": max(16, 1 << (size - 1).bit_length()), "KEYS": keys, "num_warps": warps}
    seen = {"SPANS": spans, "FORMS": forms}
    scored = rows.starter(kernels.decode_scores, **seen, **args.channels("D", d), **both)
    return scored, rows.starter(kernels.decode_values, **args.channels("E", e), **both)
