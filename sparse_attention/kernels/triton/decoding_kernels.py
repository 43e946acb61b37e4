"""Sparse attention of few queries to many keys, as in decoding: one program for each run of keys, for all heads of a group.

The scores of so few queries fit into memory, so they are computed once, in float32; the mapping of rows (``simplex``)
follows, and the values are read where a weight is not 0. Forms are those of ``attention_kernels``; a sink is one more score.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import attention_blocks as tile

SIZES = ["n", "m", "repeat", "room", "sees", "per_head", "turns"]


@triton.jit(do_not_specialize=SIZES)
def decode_scores(
    q_ptr, k_ptr, lengths_ptr, spans_ptr, scales_ptr, slopes_ptr, sinks_ptr, x_ptr, n, m, d, repeat, room, sees, per_head, factor,
    SPANS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, D: tl.constexpr, D2: tl.constexpr,
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
    q = tile.rows_of(q_ptr, group * size, at, 0, size, d, D, D2)
    k = tile.rows_of(k_ptr, group * room, columns, 0, m, d, D, D2)
    start, stop = tile.visible(lengths_ptr, spans_ptr, head, rows, n, m, sees, per_head, SPANS)
    if tile.SCALE & FORMS:
        x = tile.inner(q, k, D2) * (factor * tl.load(scales_ptr + head * n + rows))[:, None]
    else:
        x = tile.inner(q, k, D2) * factor
    if tile.SLOPE & FORMS:
        x -= tl.load(slopes_ptr + head)[:, None] * tile.distances(rows, columns, n, m)
    x = tl.where((columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None]), x, -float("inf"))
    if tile.SINK & FORMS:
        x = tl.where(columns[None, :] == m, tl.load(sinks_ptr + head)[:, None], x)
    x_ptr += (group * size + at)[:, None] * width + columns[None, :]
    tl.store(x_ptr, x, mask=(at < size)[:, None] & (columns < width)[None, :])


@triton.jit(do_not_specialize=SIZES)
def decode_values(
    p_ptr, v_ptr, out_ptr, width, m, e, size, room, turns,
    ROWS: tl.constexpr, KEYS: tl.constexpr, E: tl.constexpr, E2: tl.constexpr,
):  # fmt: skip
    """out [G, runs, size, e], the part of each run of ``turns`` blocks of keys in p v, with p [G, size, width], width >= m."""
    runs = tl.cdiv(tl.cdiv(m, KEYS), turns)
    group = (tl.program_id(0) // runs).to(tl.int64)
    run = tl.program_id(0) % runs
    at = tl.arange(0, ROWS)
    p_ptr += (group * size + at)[:, None] * width
    out, out2 = tile.zeros_of(ROWS, E, E2)
    for i in range(run * turns, (run + 1) * turns):
        columns = i * KEYS + tl.arange(0, KEYS)
        p = tl.load(p_ptr + columns[None, :], mask=(at < size)[:, None] & (columns < m)[None, :], other=0.0)
        if tl.max((p != 0).to(tl.int32)) == 1:
            v = tile.rows_of(v_ptr, group * room, columns, 0, m, e, E, E2)
            v = tile.shown(v, tl.where(p != 0, p, -float("inf")), True, E2)
            out, out2 = tile.added(p.to(v[0].dtype), v, out, out2, E2)
    tile.store_rows(out_ptr, (group * runs + run) * size, at, size, e, out, out2, E, E2)
