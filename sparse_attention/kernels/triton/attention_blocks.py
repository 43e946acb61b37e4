"""What the kernels of sparse attention do with one block of queries and keys; see ``attention_kernels``."""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import power

SPARSEMAX, ENTMAX15, ANY, EACH = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
PART, WHOLE = tl.constexpr(1), tl.constexpr(2)  # flags of blocks with support; in whole ones, all rows see all keys
SIZES = ["n", "m", "repeat", "per_head"]  # one compiled kernel for all values


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
        lower = tl.where(d != d, d, power(d, r - 1.0))
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
def moves(step, tau, h, size, small, RULE: tl.constexpr):
    """Whether Newton's method goes on after a step from tau, where the support had h keys and size in the step before."""
    if RULE == SPARSEMAX:  # the support shrinks until it is correct; if it grows again, this is rounding, so stop
        on = (size == 0.0) | (h < size)
    else:
        on = tl.abs(step) > -small * tau
    return on


@triton.jit
def of_head(r_ptr, head, r, factor, RULE: tl.constexpr):
    """r and the factor of the scores: those of all heads, or with EACH the head's own r, which divides the factor."""
    if RULE == EACH:
        r = tl.load(r_ptr + head)
        factor = factor / r
    return r, factor


@triton.jit
def block_of(x_ptr, start, at, size, width, CHANNELS: tl.constexpr):
    """Rows ``at`` of an array [size, width] that begins at row ``start`` in memory: [len(at), CHANNELS], 0 outside."""
    channel = tl.arange(0, CHANNELS)
    inside = (at < size)[:, None] & (channel < width)[None, :]
    return tl.load(x_ptr + (start + at)[:, None] * width + channel[None, :], mask=inside, other=0.0)


@triton.jit
def largest_of(a, b):
    """The maximum, or NaN if one is NaN: tl.max would drop it, and a row with NaN would pass for a sound one."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def live_blocks(flags_ptr, step, size, list_ptr, CHUNK: tl.constexpr):
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
def visible(
    lengths_ptr, spans_ptr, head, rows, n, m, per_head,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The keys that rows see: from start to below stop [ROWS], and key 0 where pinned [ROWS].

    Also the first key seen by any row, except key 0 if PINNED, then the first block and the end of a loop over their blocks.
    If PINNED, the first turn of the loop is for key 0 (see `place_of`). Last the first and the end of the blocks in which all
    rows see all keys.
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
    whole = (tl.max(start, 0) + KEYS - 1) // KEYS * KEYS
    if PINNED:
        whole = tl.maximum(whole, first + KEYS)
    whole_end = tl.maximum(tl.min(stop, 0) // KEYS * KEYS, whole)
    return start, stop, pinned, least, first, end, tl.minimum(whole, end), tl.minimum(whole_end, end)


@triton.jit
def place_of(turn, first, PINNED: tl.constexpr):
    """The first key of the block of a turn."""
    place = turn
    if PINNED:
        place = tl.where(turn == first, 0, turn)
    return place


@triton.jit
def keys_of(x_ptr, start, columns, least, end, width, PINNED: tl.constexpr, CHANNELS: tl.constexpr):
    """A block of keys or values, with 0 for those that no row may see: a weight of 0 times NaN would be NaN."""
    channel = tl.arange(0, CHANNELS)
    seen = columns >= least
    if PINNED:
        seen = seen | (columns == 0)
    inside = (seen & (columns < end))[:, None] & (channel < width)[None, :]
    return tl.load(x_ptr + (start + columns)[:, None] * width + channel[None, :], mask=inside, other=0.0)


@triton.jit
def shown(keys, x, BIAS: tl.constexpr):
    """`keys_of` without those that a mask or a bias of -inf hides from all rows; x are the scores of the block."""
    if BIAS:
        keys = tl.where((tl.max((x != -float("inf")).to(tl.int32), 0) > 0)[:, None], keys, 0.0).to(keys.dtype)
    return keys


@triton.jit
def scores(
    q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor,
    r, PINNED: tl.constexpr, BIAS: tl.constexpr, FREE: tl.constexpr,
):  # fmt: skip
    """factor q k' + (alpha - 1) bias, or -inf where a query does not see a key or the bias is -inf. FREE: nothing is hidden.

    The forward and backward kernels use the same formula, so they get the same bits.
    """
    x = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    if not FREE:
        seen = (columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None])
        if PINNED:
            seen = seen | ((columns == 0)[None, :] & pinned[:, None])
        if BIAS:
            at = rows.to(tl.int64)[:, None] * row + columns.to(tl.int64)[None, :] * key
            bias = tl.load(bias_ptr + at, mask=(rows < n)[:, None] & (columns < m)[None, :], other=0.0).to(tl.float32)
            seen = seen & (bias != -float("inf"))
            x += bias * (1.0 / r)
        x = tl.where(seen, x, -float("inf"))
    return x


@triton.jit
def excess(x, top, tau):
    """(x - top - tau)_+, or NaN in rows whose top is NaN."""
    return largest_of((x - top) - tau, 0.0)


@triton.jit
def sums(x, top, tau, r, RULE: tl.constexpr):
    """For each row, the sums of d^r and d^(r - 1)."""
    upper, lower = powers(excess(x, top[:, None], tau[:, None]), r, RULE)
    return tl.sum(upper, 1), tl.sum(lower, 1)
