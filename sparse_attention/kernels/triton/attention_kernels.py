"""Sparse attention on the GPU: a forward kernel, a backward kernel for queries, and a backward kernel for keys, values.

The mapping is entmax with alpha = 1 + 1/r. With x = (alpha - 1) scale q k' and top = max x, p = (x - top - tau)_+^r,
where tau in [-1, 0) is such that sum p = 1. RULE says which r: SPARSEMAX (1), ENTMAX15 (2), ANY (the argument r) or
EACH (each head has its own, in memory). Scores are computed block by block whenever they are needed and never stored.
AdaSplash (arXiv 2502.12082) found that a block-sparse gradient is worthwhile on GPUs; the root finder here is a
different one.

The first pass sees every visible block of keys once. For each query and each of the KEYS columns of a block, it keeps the
LAYERS largest scores that any block had in that column, and per query the largest one that was dropped. Kept scores are
candidates for the support: Newton's method finds their threshold without another look at the keys. If no dropped score
exceeds it, it is the threshold of all keys. Otherwise, it is a lower bound, and Newton's method goes on over the blocks
that may have support. The r-norm of (x - top - tau)_+ is convex in tau, so tau increases to the root and never passes
it, and a block whose scores are all below the threshold stays below it. The last pass multiplies weights and values.

A row that sees no key has top = +inf; a row with NaN or +inf among its scores has top = NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import power

SPARSEMAX, ENTMAX15, ANY, EACH = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
SIZES = ["n", "m", "repeat", "per_head"]  # one compiled kernel for all values


@triton.jit
def _powers(d, r, RULE: tl.constexpr):
    """d^r and d^(r - 1); 0 where d is 0, and NaN where d is NaN."""
    if RULE == SPARSEMAX:
        lower = tl.where(d > 0, 1.0, d)
        upper = d
    elif RULE == ENTMAX15:
        lower = d
        upper = d * d
    else:
        lower = tl.where(d != d, d, power(d, r - 1.0))
        upper = lower * d
    return upper, lower


@triton.jit
def _step(f, h, r, RULE: tl.constexpr):
    """The Newton step towards an r-norm of 1; f is the sum of d^r, and h the sum of d^(r - 1)."""
    if RULE == SPARSEMAX:
        goal = 0.0 * f + 1.0
    elif RULE == ENTMAX15:
        goal = tl.sqrt(f)
    else:
        goal = tl.exp2((1.0 - 1.0 / r) * tl.log2(tl.where(f > 0, f, 1.0)))
    return (f - goal) / tl.where(h > 0, h, 1.0)


@triton.jit
def _moves(step, tau, h, size, RULE: tl.constexpr):
    """Whether Newton's method goes on after a step from tau, where the support had h keys and size in the step before."""
    if RULE == SPARSEMAX:  # the support shrinks until it is correct; if it grows again, this is rounding, so stop
        on = (size == 0.0) | (h < size)
    else:
        on = tl.abs(step) > -4e-6 * tau
    return on


@triton.jit
def _of_head(r_ptr, head, r, factor, RULE: tl.constexpr):
    """r and the factor of the scores: those of all heads, or with EACH the head's own r, which divides the factor."""
    if RULE == EACH:
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
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _live(flags_ptr, step, size, list_ptr, CHUNK: tl.constexpr):
    """Write the places of the flags that are not 0 to ``list_ptr``, in their order; returns their number."""
    count = 0
    tl.debug_barrier()
    for base in range(0, size, CHUNK):
        at = base + tl.arange(0, CHUNK)
        on = (tl.load(flags_ptr + at.to(tl.int64) * step, mask=at < size, other=0) != 0).to(tl.int32)
        tl.store(list_ptr + count + tl.cumsum(on, 0) - 1, at, mask=on == 1)
        count += tl.sum(on, 0)
    tl.debug_barrier()
    return count


@triton.jit
def _visible(
    lengths_ptr, spans_ptr, head, rows, n, m, per_head,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The keys that rows see: from start to below stop [ROWS], and key 0 where pinned [ROWS].

    Also the first key seen by any row, except key 0 if PINNED, then the first block and the end of a loop over their blocks.
    If PINNED, the first turn of the loop is for key 0 (see `_place`).
    """
    stop = tl.where(rows < n, m, 0)
    if LENGTHS:
        stop = tl.minimum(stop, tl.maximum(tl.load(lengths_ptr + head), 0).to(tl.int32))
    if CAUSAL:
        stop = tl.minimum(stop, tl.maximum(rows + 1 + (m - n), 0))
    start = 0 * stop
    pinned = stop > m
    least = 0
    first = 0
    if SPANS:
        if PINNED:
            pinned = stop > 0
        span = spans_ptr + head * per_head + 2 * rows
        start = tl.maximum(tl.load(span, mask=rows < n, other=0), 0).to(tl.int32)
        stop = tl.minimum(stop, tl.load(span + 1, mask=rows < n, other=0).to(tl.int32))
        least = tl.min(tl.where(start < stop, start, m), 0)
        first = least // KEYS * KEYS
    end = tl.maximum(tl.max(stop, 0), tl.max(pinned.to(tl.int32), 0))
    if PINNED:
        first = tl.minimum(tl.maximum(first - KEYS, 0), tl.maximum(end - 1, 0) // KEYS * KEYS)
    return start, stop, pinned, least, first, end


@triton.jit
def _place(turn, first, PINNED: tl.constexpr):
    """The first key of the block of a turn."""
    place = turn
    if PINNED:
        place = tl.where(turn == first, 0, turn)
    return place


@triton.jit
def _keys(x_ptr, start, columns, least, end, width, PINNED: tl.constexpr, CHANNELS: tl.constexpr):
    """A block of keys or values, with 0 for those that no row may see: a weight of 0 times NaN would be NaN."""
    channel = tl.arange(0, CHANNELS)
    seen = columns >= least
    if PINNED:
        seen = seen | (columns == 0)
    inside = (seen & (columns < end))[:, None] & (channel < width)[None, :]
    return tl.load(x_ptr + (start + columns)[:, None] * width + channel[None, :], mask=inside, other=0.0)


@triton.jit
def _shown(keys, x, BIAS: tl.constexpr):
    """`_keys` without those that a mask or a bias of -inf hides from all rows; x are the scores of the block."""
    if BIAS:
        keys = tl.where((tl.max((x != -float("inf")).to(tl.int32), 0) > 0)[:, None], keys, 0.0).to(keys.dtype)
    return keys


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


@triton.jit(do_not_specialize=SIZES)
def attend_forward(
    q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, out_ptr, mean_ptr, top_ptr, tau_ptr, flags_ptr,
    list_ptr, n, m, d, e, repeat, per_head, row, key, factor, r,
    RULE: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, SAVE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    VALUES: tl.constexpr, CHUNK: tl.constexpr, BOUND: tl.constexpr = 1,
):  # fmt: skip
    """Writes out [H, n, e], top and tau [H, n], and flags int8 [H, query blocks, key blocks].

    A flag is 1 if its pair of blocks has support; the flags must be zeros before the call. If SAVE, it also writes mean
    float32 [H, n, e], the mean of v weighted by s = p^(2 - alpha). The inputs are q [H, n, d], k [H / repeat, m, d] and
    v [H / repeat, m, e]; spans are int64 [1 or H, n, 2] (per_head is the step from one head to the next), and the bias of
    head h begins at ``at[h]`` in memory, with steps row and key. list is int32, of the flags' shape. One program handles
    ROWS queries of a head.
    """
    blocks = tl.cdiv(n, ROWS)
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks  # with a causal mask, the longest blocks run first
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * m
    rows = block * ROWS + tl.arange(0, ROWS)
    q = _block(q_ptr, head * n, rows, n, d, WIDTH)
    start, stop, pinned, least, first, end = _visible(
        lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
    )
    r, factor = _of_head(r_ptr, head, r, factor, RULE)
    if BIAS:
        bias_ptr += tl.load(at_ptr + head)
    flags = flags_ptr + (head * blocks + block) * key_blocks
    live = list_ptr + (head * blocks + block) * key_blocks

    a = tl.full([ROWS, KEYS], -float("inf"), tl.float32)
    b = a
    c = a
    lost = a
    low = tl.full([ROWS], -float("inf"), tl.float32)
    for turn in range(first, end, KEYS):
        j = _place(turn, first, PINNED)
        columns = j + tl.arange(0, KEYS)
        k = _block(k_ptr, keys, columns, m, d, WIDTH)
        x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
        spill = tl.minimum(a, x)
        a = _maximum(a, x)
        after = tl.minimum(b, spill)
        b = tl.maximum(b, spill)
        lost = tl.maximum(lost, tl.minimum(c, after))
        c = tl.maximum(c, after)
        # A lower bound of the threshold, by a Newton step for the largest candidate of each column
        top = tl.max(a, 1)
        low = tl.maximum(low, top - 1.0)
        if BOUND:
            above = tl.where(a > low[:, None], a - low[:, None], 0.0)
            upper, lower = _powers(above, r, RULE)
            f = tl.sum(upper, 1)
            low += tl.where(f > 1.0, _step(f, tl.sum(lower, 1), r, RULE), 0.0)
        slack = 1e-6 * (tl.abs(top) + 1.0)  # larger than the rounding error of the bound
        may = x > (low - slack)[:, None]
        tl.store(flags + j // KEYS, tl.max(tl.max(may.to(tl.int32), 1), 0).to(tl.int8))

    top = tl.reduce(a, 1, _maximum)
    spoilt = (top != top) | (top == float("inf"))
    idle = (top == -float("inf")) | spoilt
    tau = tl.where(idle, -1.0, tl.maximum(low - 1e-6 * (tl.abs(top) + 1.0) - top, -1.0))
    top = tl.where(idle, float("inf"), top)
    moving = (~idle).to(tl.int32)
    size = tl.zeros([ROWS], tl.float32)
    passes = 0
    while tl.max(moving, 0) == 1:
        upper, lower = _powers(_excess(a, top, tau), r, RULE)
        f = tl.sum(upper, 1)
        h = tl.sum(lower, 1)
        upper, lower = _powers(_excess(b, top, tau), r, RULE)
        f += tl.sum(upper, 1)
        h += tl.sum(lower, 1)
        upper, lower = _powers(_excess(c, top, tau), r, RULE)
        f += tl.sum(upper, 1)
        h += tl.sum(lower, 1)
        step = _step(f, h, r, RULE)
        on = _moves(step, tau, h, size, RULE) & (passes < 60)
        tau = tl.where(moving == 1, tau + step, tau)
        moving = tl.where((moving == 1) & on, 1, 0)
        size = h
        passes += 1

    moving = ((tl.max(_excess(lost, top, tau), 1) > 0) & ~idle).to(tl.int32)
    count = _live(flags, 1, key_blocks, live, CHUNK)
    size = tl.zeros([ROWS], tl.float32)
    passes = 0
    while tl.max(moving, 0) == 1:
        f = tl.zeros([ROWS], tl.float32)
        h = tl.zeros([ROWS], tl.float32)
        for i in range(0, count):
            j = tl.load(live + i) * KEYS
            columns = j + tl.arange(0, KEYS)
            k = _block(k_ptr, keys, columns, m, d, WIDTH)
            x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
            upper, lower = _powers(_excess(x, top, tau), r, RULE)
            f += tl.sum(upper, 1)
            h += tl.sum(lower, 1)
        step = _step(f, h, r, RULE)
        on = _moves(step, tau, h, size, RULE) & (passes < 60)
        tau = tl.where(moving == 1, tau + step, tau)
        moving = tl.where((moving == 1) & on, 1, 0)
        size = h
        passes += 1

    top = tl.where(spoilt, float("nan"), top)
    out = tl.zeros([ROWS, VALUES], tl.float32)
    mean = out
    mass = tl.zeros([ROWS], tl.float32)
    for i in range(0, count):
        j = tl.load(live + i) * KEYS
        columns = j + tl.arange(0, KEYS)
        k = _block(k_ptr, keys, columns, m, d, WIDTH)
        x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
        p, s = _powers(_excess(x, top, tau), r, RULE)
        v = _shown(_keys(v_ptr, keys, columns, least, end, e, PINNED, VALUES), x, BIAS)
        out = tl.dot(p.to(v.dtype), v, out, input_precision="ieee")
        if SAVE:
            s = s.to(v.dtype)
            mass += tl.sum(s.to(tl.float32), 1)
            mean = tl.dot(s, v, mean, input_precision="ieee")
        tl.store(flags + j // KEYS, tl.max(tl.max((p != 0).to(tl.int32), 1), 0).to(tl.int8))
    channel = tl.arange(0, VALUES)
    at = (head * n + rows)[:, None] * e + channel[None, :]
    inside = (rows < n)[:, None] & (channel < e)[None, :]
    tl.store(out_ptr + at, tl.where(spoilt[:, None], float("nan"), out), mask=inside)
    if SAVE:
        mean = mean / tl.where(mass == 0, 1.0, mass)[:, None]
        tl.store(mean_ptr + at, tl.where(spoilt[:, None], float("nan"), mean), mask=inside)
    tl.store(top_ptr + head * n + rows, top, mask=rows < n)
    tl.store(tau_ptr + head * n + rows, tau, mask=rows < n)


@triton.jit(do_not_specialize=SIZES)
def attend_queries_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, mean_ptr, top_ptr, tau_ptr, flags_ptr,
    list_ptr, along_ptr, dq_ptr, dbias_ptr, dalpha_ptr, n, m, d, e, repeat, per_head, row, key, factor, r, scale,
    RULE: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """dq = scale (s (g v' - along)) k with s = p^(2 - alpha); along is g times the forward's mean.

    If BIAS is 2, it also writes s (g v' - along) to dbias [H, n, m], which must be zeros before the call.
    With EACH, it also writes dalpha [H, n], the gradient of the head's alpha from each query:
    r^2 sum (g v' - along) p (1 - log d) with d = x - top - tau, since p = d^r and tau moves so that the sum of p stays 1.
    Also writes along [H, n], which the kernel for the keys needs.
    """
    blocks = tl.cdiv(n, ROWS)
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * m
    rows = block * ROWS + tl.arange(0, ROWS)
    q = _block(q_ptr, head * n, rows, n, d, WIDTH)
    g = _block(g_ptr, head * n, rows, n, e, VALUES)
    along = tl.sum(_block(mean_ptr, head * n, rows, n, e, VALUES) * g.to(tl.float32), 1)
    tl.store(along_ptr + head * n + rows, along, mask=rows < n)
    top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
    tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
    start, stop, pinned, least, _, end = _visible(
        lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
    )
    r, factor = _of_head(r_ptr, head, r, factor, RULE)
    if BIAS:
        bias_ptr += tl.load(at_ptr + head)
    live = list_ptr + (head * blocks + block) * key_blocks
    count = _live(flags_ptr + (head * blocks + block) * key_blocks, 1, key_blocks, live, CHUNK)

    dq = tl.zeros([ROWS, WIDTH], tl.float32)
    dalpha = tl.zeros([ROWS], tl.float32)
    for i in range(0, count):
        columns = tl.load(live + i) * KEYS + tl.arange(0, KEYS)
        k = _keys(k_ptr, keys, columns, least, end, d, PINNED, WIDTH)
        x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS)
        above = _excess(x, top, tau)
        p, s = _powers(above, r, RULE)
        v = _block(v_ptr, keys, columns, m, e, VALUES)
        apart = tl.dot(g, tl.trans(v), input_precision="ieee") - along[:, None]
        ds = tl.where(s == 0, 0.0, s * apart)
        dq = tl.dot(ds.to(k.dtype), _shown(k, x, BIAS), dq, input_precision="ieee")
        if RULE == EACH:
            turned = apart * p * (1.0 - tl.log(tl.where(above > 0, above, 1.0)))
            dalpha += tl.sum(tl.where(s == 0, 0.0, turned), 1)
        if BIAS == 2:
            at = (head * n + rows)[:, None] * m + columns[None, :]
            tl.store(dbias_ptr + at, ds, mask=(rows < n)[:, None] & (columns < m)[None, :])
    if RULE == EACH:
        tl.store(dalpha_ptr + head * n + rows, r * r * dalpha, mask=rows < n)
    channel = tl.arange(0, WIDTH)
    at = (head * n + rows)[:, None] * d + channel[None, :]
    dq = tl.where((top != top)[:, None], float("nan"), dq * scale)
    tl.store(dq_ptr + at, dq, mask=(rows < n)[:, None] & (channel < d)[None, :])


@triton.jit(do_not_specialize=[*SIZES, "parts"])
def attend_keys_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, top_ptr, tau_ptr, flags_ptr, list_ptr,
    along_ptr, dk_ptr, dv_ptr, n, m, d, e, repeat, per_head, row, key, factor, r, scale, parts,
    RULE: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """dk [parts G, m, d] and dv [parts G, m, e] for KEYS keys and repeat / parts heads of a group.

    The program adds up the query blocks with support, one head after another, so the order of the sums is always the
    same. list is int32 [H, key blocks, query blocks].
    """
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    key_block = program % key_blocks
    part = (program // key_blocks).to(tl.int64)
    group = part // parts
    heads = repeat // parts
    columns = key_block * KEYS + tl.arange(0, KEYS)
    k = _block(k_ptr, group * m, columns, m, d, WIDTH)
    v = _block(v_ptr, group * m, columns, m, e, VALUES)
    blocks = tl.cdiv(n, ROWS)
    dk = tl.zeros([KEYS, WIDTH], tl.float32)
    dv = tl.zeros([KEYS, VALUES], tl.float32)
    live = list_ptr + (part * key_blocks + key_block) * heads * blocks
    # The flags of a group's heads lie one after another
    count = _live(flags_ptr + part * heads * blocks * key_blocks + key_block, key_blocks, heads * blocks, live, CHUNK)
    for i in range(0, count):
        turn = tl.load(live + i)
        head = part * heads + turn // blocks
        rows = turn % blocks * ROWS + tl.arange(0, ROWS)
        start, stop, pinned, _, _, _ = _visible(
            lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
        )
        own, weight = _of_head(r_ptr, head, r, factor, RULE)
        bias = bias_ptr
        if BIAS:
            bias += tl.load(at_ptr + head)
        q = _block(q_ptr, head * n, rows, n, d, WIDTH)
        g = _block(g_ptr, head * n, rows, n, e, VALUES)
        top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
        tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
        along = tl.load(along_ptr + head * n + rows, mask=rows < n, other=0.0)
        x = _scores(q, k, rows, columns, n, m, start, stop, pinned, bias, row, key, weight, own, PINNED, BIAS)
        p, s = _powers(_excess(x, top, tau), own, RULE)
        ds = s * (tl.dot(g, tl.trans(v), input_precision="ieee") - along[:, None])
        ds = tl.where(s == 0, 0.0, ds)
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision="ieee")
        dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    channel, value = tl.arange(0, WIDTH), tl.arange(0, VALUES)
    start = (part * m + columns)[:, None]
    inside = (columns < m)[:, None]
    tl.store(dk_ptr + start * d + channel[None, :], dk * scale, mask=inside & (channel < d)[None, :])
    tl.store(dv_ptr + start * e + value[None, :], dv, mask=inside & (value < e)[None, :])
