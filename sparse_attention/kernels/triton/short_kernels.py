"""Attention of few keys, or of few queries as in decoding. The mathematics, arguments and helpers are those of ``attention_kernels``.

If all keys fit into one block, a program sees every key of its queries, so the forward scores them once, and one backward kernel
gives all gradients. The scores of few queries fit into memory, so they are computed once, in float32; the mapping of rows
(``simplex``) follows, and the values are read where a weight is not 0. A program takes a run of keys, for all heads of a group.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import attention_blocks as tile
from .attention_blocks import SIZES


@triton.jit(do_not_specialize=SIZES)
def short_forward(
    q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sinks_ptr, out_ptr, state_ptr,
    n, m, d, e, repeat, room, sees, per_head, size1, size2, s0, s1, s2, row, key, factor, r,
    RULE: tl.constexpr, SPANS: tl.constexpr, BIAS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out [H, n, e]; the state gets the maximum and the threshold of each query, float32 [2, H, n]."""
    blocks = tl.cdiv(n, ROWS)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, KEYS)
    keys = head // repeat * room
    q = tile.rows_of(q_ptr, head * n, rows, 0, n, d, WIDE)
    k = tile.rows_of(k_ptr, keys, columns, 0, m, d, WIDE)
    inputs = lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, (size1, size2, s0, s1, s2), row, key, factor, r  # fmt: skip
    form: tl.constexpr = (RULE, SPANS, BIAS, FORMS)
    seen, weights, _ = tile.head_of(inputs, head, rows, n, m, form)
    x = tile.scores(q, k, rows, columns, n, m, seen, weights, False, form)
    v = tile.shown(tile.rows_of(v_ptr, keys, columns, 0, m, e, WIDE), x, True)
    top = tl.reduce(x, 1, tile.largest_of)
    spoilt = (top != top) | (top == float("inf"))
    idle = (top == -float("inf")) | spoilt
    top = tl.where(idle, float("inf"), top)
    tau = tl.full([ROWS], -1.0, tl.float32)  # the threshold of only the largest score, which is at most the threshold
    tau = tile.threshold_of((x,), top, tau, idle, r, 1, RULE)
    top = tl.where(spoilt, float("nan"), top)
    p, _ = tile.powers(tile.excess(x, top[:, None], tau[:, None]), r, RULE)
    out = tl.zeros([ROWS, WIDE], tl.float32)
    out = tl.dot(p.to(v.dtype), v, out, input_precision=tile.SINGLE)
    nan = tl.where(spoilt, float("nan"), 0.0)[:, None]
    tile.store_rows(out_ptr, head * n, rows, n, e, out + nan, WIDE)
    heads = tl.num_programs(0) // blocks
    tl.store(state_ptr + head * n + rows, top, mask=rows < n)
    tl.store(state_ptr + heads.to(tl.int64) * n + head * n + rows, tau, mask=rows < n)


@triton.jit(do_not_specialize=[*SIZES, "parts"])
def short_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sinks_ptr, state_ptr,
    dq_ptr, dk_ptr, dv_ptr, n, m, d, e, repeat, room, sees, per_head, size1, size2, s0, s1, s2, row, key, factor, r, scale, parts,
    RULE: tl.constexpr, SPANS: tl.constexpr, BIAS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dq [H, n, d], dk [parts G, m, d] and dv [parts G, m, e]; a program handles repeat / parts heads of a group, one after another."""
    part = tl.program_id(0).to(tl.int64)
    count = repeat // parts
    every = tl.num_programs(0).to(tl.int64) * count * n
    columns = tl.arange(0, KEYS)
    keys = part // parts * room
    k = tile.rows_of(k_ptr, keys, columns, 0, m, d, WIDE)
    v = tile.rows_of(v_ptr, keys, columns, 0, m, e, WIDE)
    inputs = lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, (size1, size2, s0, s1, s2), row, key, factor, r  # fmt: skip
    form: tl.constexpr = (RULE, SPANS, BIAS, FORMS)
    dk = tl.zeros([KEYS, WIDE], tl.float32)
    dv = tl.zeros([KEYS, WIDE], tl.float32)
    blocks = tl.cdiv(n, ROWS)
    for i in range(0, count * blocks):
        head = part * count + i // blocks
        rows = i % blocks * ROWS + tl.arange(0, ROWS)
        q = tile.rows_of(q_ptr, head * n, rows, 0, n, d, WIDE)
        g = tile.rows_of(g_ptr, head * n, rows, 0, n, e, WIDE)
        seen, weights, own = tile.head_of(inputs, head, rows, n, m, form)
        x = tile.scores(q, k, rows, columns, n, m, seen, weights, False, form)
        top = tl.load(state_ptr + head * n + rows, mask=rows < n, other=float("inf"))
        tau = tl.load(state_ptr + every + head * n + rows, mask=rows < n, other=-1.0)
        p, s = tile.powers(tile.excess(x, top[:, None], tau[:, None]), r, RULE)
        apart = tl.where(s == 0, 0.0, tile.inner(g, v))  # a hidden value may be NaN
        mass = tl.sum(s, 1)
        along = tl.sum(s * apart, 1) / tl.where(mass == 0, 1.0, mass)
        ds = tl.where(s == 0, 0.0, s * (apart - along[:, None]))
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=tile.SINGLE)
        dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision=tile.SINGLE)
        dq = tl.zeros([ROWS, WIDE], tl.float32)
        dq = tl.dot(ds.to(k.dtype), tile.shown(k, x, True), dq, input_precision=tile.SINGLE)
        by = (tl.where(top != top, float("nan"), scale) * own)[:, None]
        tile.store_rows(dq_ptr, head * n, rows, n, d, dq * by, WIDE)
    tile.store_rows(dk_ptr, part * m, columns, m, d, dk * scale, WIDE)
    tile.store_rows(dv_ptr, part * m, columns, m, e, dv, WIDE)


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
    if tile.SCALE & FORMS:
        factor = (factor * tl.load(scales_ptr + head * n + rows))[:, None]
    slope = tl.load(slopes_ptr + head)[:, None] if tile.SLOPE & FORMS else 0.0
    form: tl.constexpr = (0, SPANS, 0, FORMS)
    x = tile.scores(q, k, rows, columns, n, m, seen, (q_ptr, 0, 0, factor, slope, 1.0), False, form)
    if tile.SINK & FORMS:
        x = tl.where(columns[None, :] == m, tl.load(sinks_ptr + head)[:, None], x)
    x_ptr += (group * size + at)[:, None] * width + columns[None, :]
    tl.store(x_ptr, x, mask=(at < size)[:, None] & (columns < width)[None, :])


@triton.jit(do_not_specialize=[*SIZES, "turns"])
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
