"""What the kernels of sparse attention do with one block of queries and keys; see ``attention_kernels``."""

from __future__ import annotations

import os

import triton
import triton.language as tl

SPARSEMAX, ENTMAX15, ANY, EACH = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
PART, WHOLE = tl.constexpr(1), tl.constexpr(2)  # flags of blocks with support; in WHOLE blocks, all rows see all keys
MASK = tl.constexpr(2)  # BIAS: 0 or 1, or this if it is a mask, uint8, nonzero = keep
FULL = tl.constexpr(2.0)  # in place of thresholds: `list_kernels` leaves these rows to `attend_forward`
SCALE, SLOPE, SINK = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)  # bits of FORMS
SINGLE = tl.constexpr("tf32x3")  # products of float32: three of tensor cores, whose error is that of float32's own
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"))  # without machine instructions
CHUNK = tl.constexpr(16 if INTERPRETED else 256)  # flags that are read at once
SIZES = "n m repeat room sees per_head size1 size2 s0 s1 s2".split()  # one compiled kernel for all values


@triton.jit
def powers(d, r, RULE: tl.constexpr):
    """d^r and d^(r - 1); 0 where d is 0, and NaN where d is NaN."""
    if RULE == SPARSEMAX:
        lower = tl.where(d > 0, 1.0, d)
        upper = d
    elif RULE == ENTMAX15:
        lower = d
        upper = d * d
    else:
        log = tl.where(d > 0, d, 1.0)
        if INTERPRETED:
            log = tl.log2(log)
        else:  # the error of 2^-22 makes that of d^r at most r 2^-22 ln 2, 1.7e-6 at alpha = 1.1
            log = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [log], tl.float32, True, 1)
        lower = tl.where(d != d, d, tl.where(d > 0, tl.exp2((r - 1.0) * log), 0.0))
        upper = lower * d
    return upper, lower


@triton.jit
def newton_step(f, h, r, RULE: tl.constexpr):
    """The Newton step towards an r-norm of 1; f is the sum of d^r, and h the sum of d^(r - 1)."""
    if RULE == SPARSEMAX:
        goal = 0.0 * f + 1.0
    elif RULE == ENTMAX15:
        goal = tl.sqrt(f)
    else:
        goal = tl.exp2((1.0 - 1.0 / r) * tl.log2(tl.where(f > 0, f, 1.0)))
    return (f - goal) / tl.where(h > 0, h, 1.0)


@triton.jit
def stepped(f, h, tau, moving, size, passes, r, SMALL: tl.constexpr, RULE: tl.constexpr):
    """tau after a Newton step in the rows that are moving, and which of them go on; their support had size keys in the step before."""
    step = newton_step(f, h, r, RULE)
    if RULE == SPARSEMAX:  # the support shrinks until it is correct; if it grows again, this is rounding, so stop
        on = (size == 0.0) | (h < size)
    else:
        on = tl.abs(step) > -SMALL * tau
    on = on & (passes < 60)
    return tl.where(moving == 1, tau + step, tau), tl.where((moving == 1) & on, 1, 0)


@triton.jit
def after(x_ptr, heads, n):
    """What lies in memory after float32 [heads, n], as int32."""
    return (x_ptr + heads.to(tl.int64) * n).to(tl.pointer_type(tl.int32))


@triton.jit
def parts_of(state_ptr, heads, n, e, blocks, key_blocks, SAVE: tl.constexpr):
    """top and tau [H, n], a list int32 and the flags int8 [H, blocks, key blocks], one after another; first, with SAVE, the mean [H, n, e]."""
    rows = heads.to(tl.int64) * n
    top = state_ptr
    if SAVE:
        top += rows * e
    places = after(top + rows, heads, n)
    flags = (places + heads.to(tl.int64) * blocks * key_blocks).to(tl.pointer_type(tl.int8))
    return top, top + rows, places, flags


@triton.jit
def rows_of(x_ptr, start, at, first, end, width, WIDE: tl.constexpr):
    """Rows ``at`` of an array [., width] that begins at row ``start`` in memory [ROWS, WIDE], with 0 outside first <= at < end."""
    channel = tl.arange(0, WIDE)
    inside = ((at >= first) & (at < end))[:, None]
    x_ptr += (start + at)[:, None] * width
    return tl.load(x_ptr + channel[None, :], mask=inside & (channel < width)[None, :], other=0.0)


@triton.jit
def store_rows(x_ptr, start, at, end, width, x, WIDE: tl.constexpr):
    """The inverse of `rows_of`."""
    channel = tl.arange(0, WIDE)
    x_ptr += (start + at)[:, None] * width
    tl.store(x_ptr + channel[None, :], x, mask=(at < end)[:, None] & (channel < width)[None, :])


@triton.jit
def inner(a, b):
    """``a b'``."""
    return tl.dot(a, tl.trans(b), input_precision=SINGLE)


@triton.jit
def along_rows(a, b):
    """The inner product of each row of a with that of b, [ROWS]."""
    return tl.sum(a.to(tl.float32) * b.to(tl.float32), 1)


@triton.jit
def largest_of(a, b):
    """The maximum, or NaN if one is NaN: tl.max would drop it, and a row with NaN would look valid."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def clear(flags, size):
    """No block has support until it is seen."""
    for j in range(0, size, CHUNK):
        at = j + tl.arange(0, CHUNK)
        tl.store(flags + at, tl.zeros([CHUNK], tl.int8), mask=at < size)
    tl.debug_barrier()


@triton.jit
def live_blocks(flags_ptr, step, size, list_ptr):
    """Write the places of flags WHOLE to ``list_ptr``, then those of flags PART. Returns the number of the first, and of all."""
    count = 0
    whole = 0
    tl.debug_barrier()
    for flag in tl.static_range(2, 0, -1):  # WHOLE, then PART
        for base in range(0, size, CHUNK):
            at = base + tl.arange(0, CHUNK)
            on = (tl.load(flags_ptr + at.to(tl.int64) * step, mask=at < size, other=0) == flag).to(tl.int32)
            tl.store(list_ptr + count + tl.cumsum(on, 0) - 1, at, mask=on == 1)
            count += tl.sum(on, 0)
        if flag == WHOLE:
            whole = count
    tl.debug_barrier()
    return whole, count


@triton.jit
def visible(lengths_ptr, spans_ptr, head, rows, n, m, sees, per_head, SPANS: tl.constexpr):
    """The keys that rows see: from start to below stop [ROWS]."""
    stop = tl.where(rows < n, m, 0)
    length = tl.load(
        lengths_ptr + head.to(tl.int32) // tl.maximum(sees // 2, 1) + 0 * rows,
        mask=rows < tl.where(sees >= 2, n, 0),
        other=m,
    )
    stop = tl.minimum(stop, tl.maximum(length, 0).to(tl.int32))
    stop = tl.where(sees % 2 == 1, tl.minimum(stop, tl.maximum(rows + 1 + (m - n), 0)), stop)
    start = 0 * stop
    if SPANS:
        span = spans_ptr + head * per_head + 2 * rows
        start = tl.maximum(tl.load(span, mask=rows < n, other=0), 0).to(tl.int32)
        stop = tl.minimum(stop, tl.load(span + 1, mask=rows < n, other=0).to(tl.int32))
    return start, stop


@triton.jit
def head_of(inputs, head, rows, n, m, form: tl.constexpr):
    """What rows of a head see (`visible`), what `scores` needs of the head, and the scales of the rows [ROWS], or 1.

    The second is its bias with the steps of rows and keys, its factor (for each row with SCALE), its slope times alpha - 1, and r.
    With EACH, r is the head's own and divides the factor. inputs and form: see ``attention_kernels``.
    """
    lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, steps, row, key, factor, r = inputs
    RULE: tl.constexpr = form[0]
    BIAS: tl.constexpr = form[2]
    FORMS: tl.constexpr = form[3]
    if BIAS:
        size1, size2, s0, s1, s2 = steps
        own = head.to(tl.int32)  # divisions of 64 bits take many registers
        bias_ptr += (own // (size1 * size2)).to(tl.int64) * s0 + (own // size2 % size1).to(tl.int64) * s1
        bias_ptr += (own % size2).to(tl.int64) * s2
    if RULE == EACH:
        r = tl.load(r_ptr + head)
        factor = factor / r
    slope = tl.load(slopes_ptr + head) / r if SLOPE & FORMS else 0.0
    scale = 1.0
    if SCALE & FORMS:
        scale = tl.load(scales_ptr + head * n + rows, mask=rows < n, other=0.0)
        factor = (factor * scale)[:, None]
    seen = visible(lengths_ptr, spans_ptr, head, rows, n, m, sees, per_head, form[1])
    return seen, (bias_ptr, row, key, factor, slope, r), scale


@triton.jit
def blocks_seen(seen, m, KEYS: tl.constexpr):
    """The first and the end of the keys that rows see; then the first and the end of the blocks in which all rows see all keys."""
    start, stop = seen
    least = tl.min(tl.where(start < stop, start, m), 0)
    end = tl.max(stop, 0)
    whole = (tl.max(start, 0) + KEYS - 1) // KEYS * KEYS
    whole_end = tl.maximum(tl.min(stop, 0) // KEYS * KEYS, whole)
    return least, end, tl.minimum(whole, end), tl.minimum(whole_end, end)


@triton.jit
def run_of(bounds, position, BIAS: tl.constexpr, PART: tl.constexpr, KEYS: tl.constexpr):
    """The first key of a part of the blocks that rows see, the number of its blocks, and the turn of its first one.

    Blocks in which something is hidden come first (before the whole ones, then behind them), then whole ones, backwards from the query's own
    position: if nearby keys are the most similar, the bound is soon so high that most scores are below it. bounds: see `blocks_seen`.
    """
    least, end, whole, whole_end = bounds
    first = least // KEYS * KEYS
    if PART == 0:
        begin, turns, turned = first, tl.cdiv(whole - first, KEYS), 0
    elif PART == 1:
        begin, turned = (first if BIAS else whole_end), 0
        turns = tl.cdiv(end - begin, KEYS)
    else:
        begin, turns = whole, tl.cdiv(whole_end - whole, KEYS)
        turned = tl.minimum(tl.maximum((position - whole) // KEYS, 0), tl.maximum(turns - 1, 0))
    return begin, turns, turned


@triton.jit
def block_at(i, begin, turns, turned, PART: tl.constexpr, KEYS: tl.constexpr):
    """The first key of block i of a part, see `run_of`."""
    return begin + (tl.where(i <= turned, turned - i, turns + turned - i) if PART == 2 else i) * KEYS


@triton.jit
def shown(x, scores, BIAS: tl.constexpr):
    """`rows_of` keys or values without those that a mask or a bias of -inf hides from all rows: 0 times NaN would be NaN."""
    if BIAS:
        seen = (tl.max((scores != -float("inf")).to(tl.int32), 0) > 0)[:, None]
        x = tl.where(seen, x, 0.0).to(x.dtype)
    return x


@triton.jit
def scores(q, k, rows, columns, n, m, seen, weights, FREE: tl.constexpr, form: tl.constexpr):
    """factor q k' + (alpha - 1) (bias - slope |i - j|), or -inf where a query does not see a key or the bias is -inf.

    seen and weights: see `head_of`. FREE: nothing is hidden. The forward and backward kernels use the same formula, so
    they get the same bits.
    """
    bias_ptr, row, key, factor, slope, r = weights
    BIAS: tl.constexpr = form[2]
    FORMS: tl.constexpr = form[3]
    start, stop = seen
    x = inner(q, k) * factor
    if SLOPE & FORMS:
        x -= slope * distances(rows, columns, n, m)
    if not FREE:
        shows = (columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None])
        if BIAS:
            at = rows.to(tl.int64)[:, None] * row + columns.to(tl.int64)[None, :] * key
            bias = tl.load(bias_ptr + at, mask=(rows < n)[:, None] & (columns < m)[None, :], other=0)
            if BIAS == MASK:
                shows = shows & (bias != 0)
            else:
                bias = bias.to(tl.float32)
                shows = shows & (bias != -float("inf"))
                x += bias * (1.0 / r)
        x = tl.where(shows, x, -float("inf"))
    return x


@triton.jit
def distances(rows, columns, n, m):
    """The distance of queries and keys; the last query is at the position of the last key."""
    return tl.abs(rows[:, None] + (m - n) - columns[None, :]).to(tl.float32)


@triton.jit
def excess(x, top, tau):
    """(x - top - tau)_+, or NaN in rows whose top is NaN."""
    return largest_of((x - top) - tau, 0.0)


@triton.jit
def sums(x, top, tau, r, RULE: tl.constexpr):
    """For each row, the sums of d^r and d^(r - 1)."""
    upper, lower = powers(excess(x, top[:, None], tau[:, None]), r, RULE)
    return tl.sum(upper, 1), tl.sum(lower, 1)


@triton.jit
def threshold_of(layers, top, tau, idle, r, LAYERS: tl.constexpr, RULE: tl.constexpr):
    """The threshold of the scores in LAYERS arrays [rows, keys] by Newton's method from tau; unchanged in idle rows."""
    moving = (~idle).to(tl.int32)
    size = 0.0 * tau
    passes = 0
    while tl.max(moving, 0) == 1:
        f, h = sums(layers[0], top, tau, r, RULE)
        for i in tl.static_range(1, LAYERS):
            more, wider = sums(layers[i], top, tau, r, RULE)
            f, h = f + more, h + wider
        tau, moving = stepped(f, h, tau, moving, size, passes, r, 4e-6, RULE)
        size = h
        passes += 1
    return tau


@triton.jit
def gradient_of(
    inputs, thresholds, q_ptr, g_ptr, k, v, at, sizes, FREE: tl.constexpr, form: tl.constexpr, WIDE: tl.constexpr
):
    """p and the gradient of the scores of a block at a head, rows and columns; the scales of its rows, and its q and g."""
    n, m, d, e = sizes
    top_ptr, tau_ptr, along_ptr = thresholds
    head, rows, columns = at
    seen, weights, own = head_of(inputs, head, rows, n, m, form)
    q = rows_of(q_ptr, head * n, rows, 0, n, d, WIDE)
    g = rows_of(g_ptr, head * n, rows, 0, n, e, WIDE)
    top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
    tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
    along = tl.load(along_ptr + head * n + rows, mask=rows < n, other=0.0)
    x = scores(q, k, rows, columns, n, m, seen, weights, FREE, form)
    p, s = powers(excess(x, top[:, None], tau[:, None]), weights[5], form[0])
    ds = s * (inner(g, v) - along[:, None])
    if not FREE:  # a hidden value may be NaN
        ds = tl.where(s == 0, 0.0, ds)
    return p, ds, own, q, g
