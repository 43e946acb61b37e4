"""Sparse attention of few queries to many keys, as in decoding: one program for each run of keys, for all heads of a group.

The scores of so few queries fit into memory, so they are computed once, in float32; the mapping of rows (``simplex``)
follows, and the values are read where a weight is not 0. Forms are those of ``attention_kernels``; a sink is one more score.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import OPS, Starter, starter
from . import attention_arguments as args
from . import attention_blocks as tile
from .attention_arguments import Saved

SIZES = ["n", "m", "repeat", "room", "sees", "per_head", "turns"]


@triton.jit(do_not_specialize=SIZES)
def decode_scores(
    q_ptr, k_ptr, lengths_ptr, spans_ptr, scales_ptr, slopes_ptr, sinks_ptr, x_ptr, n, m, d, repeat, room, sees, per_head, factor,
    SPANS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """x [H, n, m], or [H, n, m + 1] with the sink's score at the end, of q [H, n, d] and k [G, room, d]; -inf is hidden."""
    width = m + (1 if tile.SINK & FORMS else 0)
    blocks = tl.cdiv(width, KEYS)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    columns = tl.program_id(0) % blocks * KEYS + tl.arange(0, KEYS)
    at = tl.arange(0, ROWS)  # the queries of all heads of the group
    size = repeat * n
    head = group * repeat + tl.minimum(at, size - 1) // n
    rows = at % n
    q = tile.rows_of(q_ptr, group * size, at, 0, size, d, WIDE)
    k = tile.rows_of(k_ptr, group * room, columns, 0, m, d, WIDE)
    seen = tile.visible(lengths_ptr, spans_ptr, head, rows, n, m, sees, per_head, SPANS)
    slope = 0.0
    if tile.SCALE & FORMS:
        factor = (factor * tl.load(scales_ptr + head * n + rows))[:, None]
    if tile.SLOPE & FORMS:
        slope = tl.load(slopes_ptr + head)[:, None]
    form: tl.constexpr = (0, SPANS, 0, FORMS)
    x = tile.scores(q, k, rows, columns, n, m, seen, (q_ptr, 0, 0, factor, slope, 1.0), False, form)
    if tile.SINK & FORMS:
        x = tl.where(columns[None, :] == m, tl.load(sinks_ptr + head)[:, None], x)
    x_ptr += (group * size + at)[:, None] * width + columns[None, :]
    tl.store(x_ptr, x, mask=(at < size)[:, None] & (columns < width)[None, :])


@triton.jit(do_not_specialize=SIZES)
def decode_values(
    p_ptr, v_ptr, out_ptr, width, m, e, size, room, turns,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out [G, runs, size, e], the part of each run of ``turns`` blocks of keys in p v, with p [G, size, width], width >= m."""
    runs = tl.cdiv(tl.cdiv(m, KEYS), turns)
    group = (tl.program_id(0) // runs).to(tl.int64)
    run = tl.program_id(0) % runs
    at = tl.arange(0, ROWS)
    p_ptr += (group * size + at)[:, None] * width
    out = tl.zeros([ROWS, WIDE], tl.float32)
    for i in range(run * turns, (run + 1) * turns):
        columns = i * KEYS + tl.arange(0, KEYS)
        p = tl.load(p_ptr + columns[None, :], mask=(at < size)[:, None] & (columns < m)[None, :], other=0.0)
        if tl.max((p != 0).to(tl.int32)) == 1:
            v = tile.rows_of(v_ptr, group * room, columns, 0, m, e, WIDE)
            v = tile.shown(v, tl.where(p != 0, p, -float("inf")), True)
            out = tl.dot(p.to(v.dtype), v, out, input_precision=tile.SINGLE)
    tile.store_rows(out_ptr, (group * runs + run) * size, at, size, e, out, WIDE)


def forward(
    q: Tensor, k: Tensor, v: Tensor, room: int, bias: Tensor | None, mask: Tensor | None, saved: Saved
) -> Tensor:
    """`attention.forward` of few queries: their scores, the mapping of rows, and the values, read by enough programs for the device.

    saved: without a bias.
    """
    (heads, n, m, e), d = saved.sizes, q.shape[-1]
    groups, device = k.shape[:-2].numel(), q.device
    size, single = heads // groups * n, q.dtype == torch.float32
    keys = 32 if single else 64
    blocks = -(-m // keys)
    x = torch.empty(heads, n, m + (saved.sinks is not None), dtype=torch.float32, device=device)
    scored, weighed = _of(size, keys, d, e, single, saved.spans is not None, args.bits(saved))
    (lengths, spans, _, _, _, *learned), (sees, per_head, *_) = args.visible(q, saved)
    programs, numbers = groups * -(-x.shape[2] // keys), (n, m, d, heads // groups, room, sees, per_head, saved.scale)
    scored.go(programs, q, k, lengths, spans, *learned, x, *numbers)
    if bias is not None or mask is not None:
        scores = x.view(*saved.lead, n, -1)[..., :m]
        if bias is not None:
            scores += bias
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
    op, params = ("sparsemax", {"gamma": 1.0}) if saved.alpha == 2 else ("entmax", {"alpha": saved.alpha})
    p, _ = OPS[op].forward(x, **params)
    turns = max(1, groups * blocks // (2 * args.FEW))
    runs = -(-blocks // turns)
    # the parts of runs are added up in float32
    shape, dtype = ((*q.shape[:-1], e), q.dtype) if runs == 1 else ((groups, runs, size, e), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=device)
    weighed.go(groups * runs, p, v, out, x.shape[2], m, e, size, room, turns)
    return out if runs == 1 else out.sum(1).to(q.dtype).view(*q.shape[:-1], e)


@functools.lru_cache(1024)
def _of(size: int, keys: int, d: int, e: int, single: bool, spans: bool, forms: int) -> tuple[Starter, Starter]:
    """What starts `decode_scores` and `decode_values` for the queries of a group."""
    warps = 8 if single or max(d, e) > 128 else 4
    both = {"ROWS": max(16, 1 << (size - 1).bit_length()), "KEYS": keys, "WIDE": args.whole(d, e), "num_warps": warps}
    return starter(decode_scores, SPANS=spans, FORMS=forms, **both), starter(decode_values, **both)
