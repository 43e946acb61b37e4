"""Sparse attention on the GPU: a forward kernel, a backward kernel for queries, and a backward kernel for keys, values.

The mapping is entmax with alpha = 1 + 1/r (r = 1 for sparsemax, r = 2 for entmax15). If the constant R is 0, each head
has its own r, in memory. With x = (alpha - 1) scale q k'
and top = max x, p = (x - top - tau)_+^r, where tau in [-1, 0) is such that sum p = 1. Scores are computed block by
block whenever they are needed and never stored. AdaSplash (arXiv 2502.12082) found that a block-sparse gradient is
worthwhile on GPUs; the root finder here is a different one.

The threshold for some of the keys is at most the threshold for all keys. So the first pass, which finds top, also
raises a lower bound of the threshold by Newton steps inside each block. Then Newton's method runs on all blocks that
may have support. The r-norm of (x - top - tau)_+ is convex in tau, so tau increases to the root and never passes it,
and a block whose scores are all below the threshold stays below it.

A row that sees no key has top = +inf; a row with NaN or +inf among its scores has top = NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import power


@triton.jit
def _powers(d, r, R: tl.constexpr):
    """d^r and d^(r - 1); 0 where d is 0, and NaN where d is NaN."""
    if R == 1.0:
        lower = tl.where(d > 0, 1.0, d)
        upper = d
    elif R == 2.0:
        lower = d
        upper = d * d
    else:
        lower = tl.where(d != d, d, power(d, r - 1.0))
        upper = lower * d
    return upper, lower


@triton.jit
def _step(f, h, r, R: tl.constexpr):
    """The Newton step towards an r-norm of 1; f is the sum of d^r, and h the sum of d^(r - 1)."""
    if R == 1.0:
        goal = 0.0 * f + 1.0
    elif R == 2.0:
        goal = tl.sqrt(f)
    else:
        goal = tl.exp2((1.0 - 1.0 / r) * tl.log2(tl.where(f > 0, f, 1.0)))
    return (f - goal) / tl.where(h > 0, h, 1.0)


@triton.jit
def _of_head(r_ptr, head, factor, R: tl.constexpr):
    """r and the factor of the scores: those of all heads, or if R is 0, with the head's own r, which divides the factor."""
    r = R
    if R == 0.0:
        r = tl.load(r_ptr + head)
        factor = factor / r
    return r, factor


@triton.jit
def _block(x_ptr, start, at, size, width, CHANNELS: tl.constexpr):
    """Rows ``at`` of an array [size, width] that begins at row ``start`` in memory: [len(at), CHANNELS], 0 outside."""
    channel = tl.arange(0, CHANNELS)
    inside = (at < size)[:, None] & (channel < width)[None, :]
    return tl.load(x_ptr + (start + at)[:, None] * width + channel[None, :], mask=inside, other=0.0)


@triton.jit
def _visible(
    lengths_ptr, spans_ptr, head, rows, n, m, per_head,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The keys that rows see: from start to below stop [ROWS], and key 0 where pinned [ROWS].

    Also the first block and the end of a loop over their blocks. If PINNED, the first turn of the loop is for key 0
    (see `_place`).
    """
    stop = tl.where(rows < n, m, 0)
    if LENGTHS:
        stop = tl.minimum(stop, tl.maximum(tl.load(lengths_ptr + head), 0).to(tl.int32))
    if CAUSAL:
        stop = tl.minimum(stop, tl.maximum(rows + 1 + (m - n), 0))
    start = 0 * stop
    pinned = stop > m
    first = 0
    if SPANS:
        if PINNED:
            pinned = stop > 0
        span = spans_ptr + head * per_head + 2 * rows
        start = tl.maximum(tl.load(span, mask=rows < n, other=0), 0).to(tl.int32)
        stop = tl.minimum(stop, tl.load(span + 1, mask=rows < n, other=0).to(tl.int32))
        first = tl.min(tl.where(start < stop, start, m), 0) // KEYS * KEYS
    end = tl.maximum(tl.max(stop, 0), tl.max(pinned.to(tl.int32), 0))
    if PINNED:
        first = tl.minimum(tl.maximum(first - KEYS, 0), tl.maximum(end - 1, 0) // KEYS * KEYS)
    return start, stop, pinned, first, end


@triton.jit
def _place(turn, first, PINNED: tl.constexpr):
    """The first key of the block of a turn."""
    place = turn
    if PINNED:
        place = tl.where(turn == first, 0, turn)
    return place


@triton.jit
def _scores(
    q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor,
    r, PINNED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """factor q k' + (alpha - 1) bias, or -inf where a query does not see a key or the bias is -inf.

    The forward and backward kernels use the same formula, so they get the same bits.
    """
    x = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    seen = (columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None])
    if PINNED:
        seen = seen | ((columns == 0)[None, :] & pinned[:, None])
    if BIAS:
        at = rows.to(tl.int64)[:, None] * row + columns.to(tl.int64)[None, :] * key
        bias = tl.load(bias_ptr + at, mask=(rows < n)[:, None] & (columns < m)[None, :], other=0.0).to(tl.float32)
        seen = seen & (bias != -float("inf"))
        x += bias * (1.0 / r)
    return tl.where(seen, x, -float("inf"))


@triton.jit
def _excess(x, top, tau):
    """(x - top - tau)_+, or NaN in rows whose top is NaN."""
    d = (x - top[:, None]) - tau[:, None]
    return tl.where(d <= 0, 0.0, d)


@triton.jit
def attend_forward(
    q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, out_ptr, top_ptr, tau_ptr, flags_ptr,
    n, m, d, e, repeat, per_head, row, key, factor,
    R: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Writes out [H, n, e], top and tau [H, n], and flags int8 [H, query blocks, key blocks].

    A flag is 1 if its pair of blocks has support; the flags must be zeros before the call. The inputs are q [H, n, d],
    k [H / repeat, m, d] and v [H / repeat, m, e]; spans are int64 [1 or H, n, 2] (per_head is the step from one head
    to the next), and the bias of head h begins at ``at[h]`` in memory, with steps row and key. One program handles ROWS queries of a head.
    """
    blocks = tl.cdiv(n, ROWS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks  # with a causal mask, the longest blocks run first
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * m
    rows = block * ROWS + tl.arange(0, ROWS)
    q = _block(q_ptr, head * n, rows, n, d, WIDTH)
    start, stop, pinned, first, end = _visible(
        lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
    )
    r, factor = _of_head(r_ptr, head, factor, R)
    if BIAS:
        bias_ptr += tl.load(at_ptr + head)
    flags = flags_ptr + (head * blocks + block) * tl.cdiv(m, KEYS)

    top = tl.full([ROWS], -float("inf"), tl.float32)
    low = top
    spoilt = tl.zeros([ROWS], tl.int32)
    for turn in range(first, end, KEYS):
        j = _place(turn, first, PINNED)
        columns = j + tl.arange(0, KEYS)
        k = _block(k_ptr, keys, columns, m, d, WIDTH)
        x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
        spoilt = tl.maximum(spoilt, tl.max(((x != x) | (x == float("inf"))).to(tl.int32), 1))
        x = tl.where(x != x, -float("inf"), x)
        top = tl.maximum(top, tl.max(x, 1))
        low = tl.maximum(low, top - 1.0)
        for _ in tl.static_range(3):
            above = tl.where(x > low[:, None], x - low[:, None], 0.0)
            upper, lower = _powers(above, r, R)
            f = tl.sum(upper, 1)
            low += tl.where(f > 1.0, _step(f, tl.sum(lower, 1), r, R), 0.0)
        slack = 1e-6 * (tl.abs(top) + 1.0)  # larger than the rounding error of the bound
        may = (x > (low - slack)[:, None]) | (spoilt > 0)[:, None]
        tl.store(flags + j // KEYS, tl.max(tl.max(may.to(tl.int32), 1), 0).to(tl.int8))

    idle = (top == -float("inf")) | (spoilt > 0)
    tau = tl.where(idle, -1.0, tl.maximum(low - 1e-6 * (tl.abs(top) + 1.0) - top, -1.0))
    top = tl.where(spoilt > 0, float("nan"), tl.where(idle, float("inf"), top))
    moving = (~idle).to(tl.int32)
    size = tl.zeros([ROWS], tl.float32)
    passes = 0
    while tl.max(moving, 0) == 1:
        tl.debug_barrier()
        f = tl.zeros([ROWS], tl.float32)
        h = tl.zeros([ROWS], tl.float32)
        for turn in range(first, end, KEYS):
            j = _place(turn, first, PINNED)
            if tl.load(flags + j // KEYS) != 0:
                columns = j + tl.arange(0, KEYS)
                k = _block(k_ptr, keys, columns, m, d, WIDTH)
                x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
                above = _excess(x, top, tau)
                upper, lower = _powers(above, r, R)
                f += tl.sum(upper, 1)
                h += tl.sum(lower, 1)
                tl.store(flags + j // KEYS, tl.max(tl.max((above != 0).to(tl.int32), 1), 0).to(tl.int8))
        step = _step(f, h, r, R)
        tau = tl.where(moving == 1, tau + step, tau)
        if R == 1.0:  # the support shrinks until it is correct; if it grows again, this is rounding, so stop
            on = (size == 0.0) | (h < size)
            size = h
        else:
            on = (tl.abs(step) > -4e-6 * tau) & (passes < 60)
        moving = tl.where((moving == 1) & on, 1, 0)
        passes += 1

    tl.debug_barrier()
    out = tl.zeros([ROWS, VALUES], tl.float32)
    for turn in range(first, end, KEYS):
        j = _place(turn, first, PINNED)
        if tl.load(flags + j // KEYS) != 0:
            columns = j + tl.arange(0, KEYS)
            k = _block(k_ptr, keys, columns, m, d, WIDTH)
            x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
            above = _excess(x, top, tau)
            p, _ = _powers(above, r, R)
            v = _block(v_ptr, keys, columns, m, e, VALUES)
            out = tl.dot(p.to(v.dtype), v, out, input_precision="ieee")
            tl.store(flags + j // KEYS, tl.max(tl.max((above != 0).to(tl.int32), 1), 0).to(tl.int8))
    channel = tl.arange(0, VALUES)
    at = (head * n + rows)[:, None] * e + channel[None, :]
    tl.store(out_ptr + at, out, mask=(rows < n)[:, None] & (channel < e)[None, :])
    tl.store(top_ptr + head * n + rows, top, mask=rows < n)
    tl.store(tau_ptr + head * n + rows, tau, mask=rows < n)


@triton.jit
def attend_queries_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, top_ptr, tau_ptr, flags_ptr, mean_ptr,
    dq_ptr, dbias_ptr, dalpha_ptr, n, m, d, e, repeat, per_head, row, key, factor, scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """dq = scale (s (g v' - mean)) k with s = p^(2 - alpha).

    If BIAS is 2, it also writes s (g v' - mean) to dbias [H, n, m], which must be zeros before the call.
    If R is 0, it also writes dalpha [H, n], the gradient of the head's alpha from each query:
    r^2 sum (g v' - mean) p (1 - log d) with d = x - top - tau, since p = d^r and tau moves so that the sum of p stays 1.
    Also writes mean [H, n], the mean of g v' weighted by s, which the kernel for the keys needs.
    """
    blocks = tl.cdiv(n, ROWS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * m
    rows = block * ROWS + tl.arange(0, ROWS)
    q = _block(q_ptr, head * n, rows, n, d, WIDTH)
    g = _block(g_ptr, head * n, rows, n, e, VALUES)
    top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
    tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
    start, stop, pinned, first, end = _visible(
        lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
    )
    r, factor = _of_head(r_ptr, head, factor, R)
    if BIAS:
        bias_ptr += tl.load(at_ptr + head)
    flags = flags_ptr + (head * blocks + block) * tl.cdiv(m, KEYS)

    mass = tl.zeros([ROWS], tl.float32)
    along = tl.zeros([ROWS], tl.float32)
    for turn in range(first, end, KEYS):
        j = _place(turn, first, PINNED)
        if tl.load(flags + j // KEYS) != 0:
            columns = j + tl.arange(0, KEYS)
            k = _block(k_ptr, keys, columns, m, d, WIDTH)
            x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
            above = _excess(x, top, tau)
            _, s = _powers(above, r, R)
            v = _block(v_ptr, keys, columns, m, e, VALUES)
            mass += tl.sum(s, 1)
            along += tl.sum(s * tl.dot(g, tl.trans(v), input_precision="ieee"), 1)
    mean = along / tl.where(mass == 0, 1.0, mass)
    tl.store(mean_ptr + head * n + rows, mean, mask=rows < n)

    dq = tl.zeros([ROWS, WIDTH], tl.float32)
    dalpha = tl.zeros([ROWS], tl.float32)
    for turn in range(first, end, KEYS):
        j = _place(turn, first, PINNED)
        if tl.load(flags + j // KEYS) != 0:
            columns = j + tl.arange(0, KEYS)
            k = _block(k_ptr, keys, columns, m, d, WIDTH)
            x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
            above = _excess(x, top, tau)
            p, s = _powers(above, r, R)
            v = _block(v_ptr, keys, columns, m, e, VALUES)
            apart = tl.dot(g, tl.trans(v), input_precision="ieee") - mean[:, None]
            ds = s * apart
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
            if R == 0.0:
                dalpha += tl.sum(apart * p * (1.0 - tl.log(tl.where(above > 0, above, 1.0))), 1)
            if BIAS == 2:
                at = (head * n + rows)[:, None] * m + columns[None, :]
                tl.store(dbias_ptr + at, ds, mask=(rows < n)[:, None] & (columns < m)[None, :])
    if R == 0.0:
        tl.store(dalpha_ptr + head * n + rows, r * r * dalpha, mask=rows < n)
    channel = tl.arange(0, WIDTH)
    at = (head * n + rows)[:, None] * d + channel[None, :]
    tl.store(dq_ptr + at, dq * scale, mask=(rows < n)[:, None] & (channel < d)[None, :])


@triton.jit
def attend_keys_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, top_ptr, tau_ptr, flags_ptr, mean_ptr,
    dk_ptr, dv_ptr, n, m, d, e, repeat, per_head, row, key, factor, scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """dk and dv for KEYS keys of a group.

    The program adds up the query blocks with support, one head after another, so the order of the sums is always the
    same.
    """
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    key_block = program % key_blocks
    group = (program // key_blocks).to(tl.int64)
    columns = key_block * KEYS + tl.arange(0, KEYS)
    k = _block(k_ptr, group * m, columns, m, d, WIDTH)
    v = _block(v_ptr, group * m, columns, m, e, VALUES)
    blocks = tl.cdiv(n, ROWS)
    dk = tl.zeros([KEYS, WIDTH], tl.float32)
    dv = tl.zeros([KEYS, VALUES], tl.float32)
    for turn in range(0, repeat * blocks):
        head = group * repeat + turn // blocks
        block = turn % blocks
        if tl.load(flags_ptr + (head * blocks + block) * key_blocks + key_block) != 0:
            rows = block * ROWS + tl.arange(0, ROWS)
            start, stop, pinned, _, _ = _visible(
                lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
            )
            r, weight = _of_head(r_ptr, head, factor, R)
            bias = bias_ptr
            if BIAS:
                bias += tl.load(at_ptr + head)
            q = _block(q_ptr, head * n, rows, n, d, WIDTH)
            g = _block(g_ptr, head * n, rows, n, e, VALUES)
            top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
            tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
            mean = tl.load(mean_ptr + head * n + rows, mask=rows < n, other=0.0)
            x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias, row, key, weight, r, PINNED, BIAS)
            above = _excess(x, top, tau)
            p, s = _powers(above, r, R)
            ds = s * (tl.dot(g, tl.trans(v), input_precision="ieee") - mean[:, None])
            dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision="ieee")
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    channel, value = tl.arange(0, WIDTH), tl.arange(0, VALUES)
    start = (group * m + columns)[:, None]
    inside = (columns < m)[:, None]
    tl.store(dk_ptr + start * d + channel[None, :], dk * scale, mask=inside & (channel < d)[None, :])
    tl.store(dv_ptr + start * e + value[None, :], dv, mask=inside & (value < e)[None, :])
