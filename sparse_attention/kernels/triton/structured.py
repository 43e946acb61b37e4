"""fusedmax and oscarmax on the GPU: each has its own forward kernel, and they share the backward kernel.

The forward saves one int8 per position, `marks`: 1 for the first position of a group, 0 for its other positions, -1 off
the support, and -2 in a row with NaN. For fusedmax, the marks are in the order of the positions. For oscarmax, they are
in the order of the scores, which is saved as well (int16 [R, n]).

Entries that are certainly off the support are raised to a floor below the support. The solution stays the same, and a
score of -1e9 does not reduce the precision of sums that include its neighbours. ``work`` is memory for passing values
between the lanes of a program: after a barrier, a lane can read what another lane has stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import SIZES, scores_of, simplex_threshold, standing

FIRST, MEMBER, OFF, SPOILT = tl.constexpr(1), tl.constexpr(0), tl.constexpr(-1), tl.constexpr(-2)


@triton.jit
def _marks(first, p, empty, spoilt):
    """The int8 marks of positions, from their probabilities ``p`` before rounding."""
    marks = tl.where(p > 0, tl.where(first, FIRST, MEMBER), OFF)
    return tl.where(spoilt, SPOILT, tl.where(empty, OFF, marks)).to(tl.int8)


@triton.jit
def _inverse(count):
    """1 / count in float64, by a float32 division and a Newton step, since float64 divisions take ten times as long."""
    guess = (1.0 / count.to(tl.float32)).to(tl.float64)
    return guess * (2.0 - guess * count)


@triton.jit
def _total_variation(z, y, length, lam, ROWS: tl.constexpr):
    """argmin |y - z|^2 / 2 + lam sum |y_{i+1} - y_i| by the direct scan of Condat 2013, one row per lane.

    z and y are pointers [ROWS].

    Names are as in ``native/src/total_variation.h``. In each pass, every lane advances its own scan by one step, with
    selections instead of branches. The scan uses float64, since it sums along whole rows. The value of a segment is
    stored at the start of the segment; nothing is stored at its other positions.
    """
    working = length > 0
    start = tl.zeros([ROWS], tl.int32)
    k = start
    low_end = start
    high_end = start
    first = tl.load(z, mask=working, other=0.0).to(tl.float64)
    lam64 = tl.zeros([ROWS], tl.float64) + lam
    low = first - lam64
    high = first + lam64
    low_dual = lam64
    high_dual = -lam64
    while tl.max(working.to(tl.int32), 0) == 1:
        last = k + 1 >= length
        following = tl.load(z + k + 1, mask=working & ~last, other=0.0).to(tl.float64)
        low_next = tl.where(last, low_dual, low_dual + following - low)
        high_next = tl.where(last, high_dual, high_dual + following - high)
        bound = tl.where(last, 0.0, lam64)
        down = working & (low_next < -bound)
        up = working & ~down & (high_next > bound)
        finish = working & last & ~down & ~up
        on = working & ~last & ~down & ~up

        value = tl.where(down, low, tl.where(up, high, low + low_dual * _inverse(k - start + 1)))
        tl.store(y + start, value.to(tl.float32), mask=down | up | finish)
        jump = down | up
        working = working & ~finish
        start = tl.where(down, low_end + 1, tl.where(up, high_end + 1, start))
        shifted = tl.load(z + start, mask=jump, other=0.0).to(tl.float64) + tl.where(down, lam64, -lam64)

        k = tl.where(jump, start, tl.where(on, k + 1, k))
        raise_low = on & (low_next >= lam64)
        lower_high = on & (high_next <= -lam64)
        share = _inverse(k - start + 1)
        low = tl.where(raise_low, low + (low_next - lam64) * share, low)
        high = tl.where(lower_high, high + (high_next + lam64) * share, high)
        low_end = tl.where(raise_low, k, low_end)
        high_end = tl.where(lower_high, k, high_end)
        low_dual = tl.where(raise_low, lam64, tl.where(on, low_next, low_dual))
        high_dual = tl.where(lower_high, -lam64, tl.where(on, high_next, high_dual))

        low = tl.where(jump, shifted - lam64, low)
        high = tl.where(jump, shifted + lam64, high)
        low_dual = tl.where(jump, lam64, low_dual)
        high_dual = tl.where(jump, -lam64, high_dual)
        low_end = tl.where(jump, start, low_end)
        high_end = tl.where(jump, start, high_end)


@triton.jit(do_not_specialize=SIZES)
def fusedmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, work_ptr, rows, n, size1, size2, s0, s1, s2, s3, scale, lam,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p and its marks for ROWS rows of contiguous [R, n]. work: float32 [2, R, n]. BLOCK: a power of two, at least n.

    Kept positions are counted and moved to the front, so that the positions on both sides of a gap become neighbours.
    The scan processes the rows in parallel. Then the rows are projected one by one and moved back.
    """
    row0 = tl.program_id(0).to(tl.int64) * ROWS
    at = tl.arange(0, BLOCK)
    lane = tl.arange(0, ROWS)
    second = rows.to(tl.int64) * n
    floor = -2.0 - 4.0 * lam
    length = tl.zeros([ROWS], tl.int32)
    for i in range(ROWS):
        row = row0 + i
        inside = at < tl.where(row < rows, n, 0)
        x = scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED)
        top, _, spoilt = standing(x)
        keep = tl.where(spoilt, -float("inf"), x) > -float("inf")
        place = tl.cumsum(keep.to(tl.int32), 0) - 1
        z = tl.maximum((x - top) * scale, floor)
        tl.store(work_ptr + row * n + place, z, mask=keep)
        tl.store(work_ptr + second + row * n + at, tl.full([BLOCK], float("nan"), tl.float32), mask=inside)
        length = tl.where(lane == i, tl.sum(keep.to(tl.int32), 0), length)
    tl.debug_barrier()
    rows_of_lanes = work_ptr + (row0 + lane) * n
    _total_variation(rows_of_lanes, rows_of_lanes + second, length, lam, ROWS)
    tl.debug_barrier()
    for i in range(ROWS):
        row = row0 + i
        inside = at < tl.where(row < rows, n, 0)
        front = work_ptr + row * n
        x = scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED)
        _, empty, spoilt = standing(x)
        keep = tl.where(spoilt, -float("inf"), x) > -float("inf")
        place = tl.cumsum(keep.to(tl.int32), 0) - 1
        count = tl.sum(keep.to(tl.int32), 0)
        # NaN means "same as the value before". Number the segments and store their values one after another.
        value = tl.load(front + second + at, mask=at < count, other=float("nan"))
        begins = value == value
        segment = tl.cumsum(begins.to(tl.int32), 0) - 1
        tl.store(front + segment, value, mask=begins)
        tl.debug_barrier()
        value = tl.load(front + segment, mask=at < count, other=0.0)
        before = tl.load(front + segment - 1, mask=begins & (segment > 0), other=float("nan"))
        first = begins & (value != before)
        tl.store(front + second + at, value, mask=at < count)
        tl.store(marks_ptr + row * n + at, first.to(tl.int8), mask=at < count)
        tl.debug_barrier()
        y = tl.load(front + second + place, mask=keep, other=-1e9)
        first = tl.load(marks_ptr + row * n + place, mask=keep, other=0) != 0
        tl.debug_barrier()
        y = tl.where(count > 0, y, 0.0)  # empty or invalid rows are computed with zeros
        p = tl.where(keep, tl.maximum(y - simplex_threshold(y), 0.0), 0.0)
        tl.store(marks_ptr + row * n + at, _marks(first, p, empty, spoilt), mask=inside)
        tl.store(p_ptr + row * n + at, tl.where(spoilt, float("nan"), p), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def oscarmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, order_ptr, work_ptr, starts_ptr, rows, n, size1, size2, s0, s1, s2, s3, scale, lam,
    MASKED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p, its marks and the order of the scores for one row. work: float64 [R, n + 1]. starts: int32 [R, n + 1].

    To sort the scores, the kernel counts for each score how many are larger, CHUNK scores at a time. With s in
    decreasing order, it then pools ``s_i + lam i`` until the result decreases (isotonic regression). All violations are
    pooled at once, since two adjacent blocks in the wrong order always end up in one block.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    sums = work_ptr + row * (n + 1)
    starts = starts_ptr + row * (n + 1)
    order = order_ptr + row * n
    x = scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED)
    top, empty, spoilt = standing(x)
    keep = tl.where(spoilt, -float("inf"), x) > -float("inf")
    count = tl.sum(keep.to(tl.int32), 0)
    z = tl.where(keep, tl.maximum((x - top) * scale, -2.0 - lam * n), -float("inf"))
    tl.store(sums + at, z.to(tl.float64), mask=inside)
    tl.debug_barrier()
    rank = tl.zeros([BLOCK], tl.int32)
    for j in range(0, n, CHUNK):
        other = j + tl.arange(0, CHUNK)
        w = tl.load(sums + other, mask=other < n, other=-float("inf")).to(tl.float32)
        earlier = (w[None, :] == z[:, None]) & (other[None, :] < at[:, None]) & (other[None, :] < n)
        rank += tl.sum(((w[None, :] > z[:, None]) | earlier).to(tl.int32), 1)
    tl.debug_barrier()
    tl.store(sums + rank, z.to(tl.float64), mask=inside)
    tl.store(order + rank, at.to(tl.int16), mask=inside)
    tl.debug_barrier()
    real = at < count
    s = tl.load(sums + at, mask=real, other=0.0)
    source = tl.load(order + at, mask=inside, other=0).to(tl.int32)
    tl.debug_barrier()
    lifted = tl.where(real, s + (tl.zeros([BLOCK], tl.float64) + lam) * (at + 1), 0.0)
    tl.store(sums, 0.0)
    tl.store(sums + 1 + at, tl.cumsum(lifted, 0), mask=inside)

    begins = real  # in another order than this, Triton 3.6 fails at blocks of 256 and more
    mean = lifted
    left = count
    blocks = count + 1
    while left < blocks:
        blocks = left
        number = tl.cumsum(begins.to(tl.int32), 0)
        tl.debug_barrier()
        tl.store(starts + number - 1, at, mask=begins)
        tl.store(starts + left, count)
        tl.debug_barrier()
        begin = tl.load(starts + number - 1, mask=real, other=0)
        end = tl.load(starts + number, mask=real, other=1)
        previous = tl.load(starts + number - 2, mask=real & (number > 1), other=0)
        below = tl.load(sums + begin, mask=real, other=0.0)
        mean = (tl.load(sums + end, mask=real, other=0.0) - below) / (end - begin)
        before = (below - tl.load(sums + previous, mask=real, other=0.0)) / tl.maximum(begin - previous, 1)
        begins = begins & ((number == 1) | ~(mean > before))
        left = tl.sum(begins.to(tl.int32), 0)
    # Subtract the row's largest value: this does not change the projection and preserves precision in float32.
    highest = tl.max(tl.where(real, mean, -float("inf")), 0)
    y = tl.where(real, (mean - highest).to(tl.float32), -1e9)
    y = tl.where(count > 0, y, 0.0)
    p = tl.where(real, tl.maximum(y - simplex_threshold(y), 0.0), 0.0)
    tl.store(marks_ptr + row * n + at, _marks(begins, p, empty, spoilt), mask=inside)
    tl.store(p_ptr + row * n + source, tl.where(spoilt, float("nan"), p), mask=inside)


@triton.jit
def grouped_backward(
    g_ptr, marks_ptr, order_ptr, dx_ptr, work_ptr, n, scale, ORDERED: tl.constexpr, BLOCK: tl.constexpr
):
    """dx = scale (mean of g over the group - mean of g over the support). work: float64 [R, 2, n + 1].

    The means are computed from differences of running sums, since the groups are contiguous (in the order of the
    scores, if ORDERED).
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    mark = tl.load(marks_ptr + row * n + at, mask=inside, other=-1).to(tl.int32)
    on = mark >= 0
    source = at
    if ORDERED:
        source = tl.load(order_ptr + row * n + at, mask=inside, other=0).to(tl.int32)
    g = tl.load(g_ptr + row * n + source, mask=inside & on, other=0.0).to(tl.float64)
    sums = work_ptr + row * 2 * (n + 1)
    sizes = sums + n + 1
    running = tl.cumsum(g, 0)
    counted = tl.cumsum(on.to(tl.int32), 0)
    group = tl.cumsum((mark == 1).to(tl.int32), 0)
    total = tl.sum(g, 0)
    size = tl.sum(on.to(tl.int32), 0)
    tl.store(sums + group - 1, running - g, mask=mark == 1)
    tl.store(sizes + group - 1, (counted - 1).to(tl.float64), mask=mark == 1)
    groups = tl.sum((mark == 1).to(tl.int32), 0)
    tl.store(sums + groups, total)
    tl.store(sizes + groups, size.to(tl.float64))
    tl.debug_barrier()
    members = tl.load(sizes + group, mask=on, other=1.0) - tl.load(sizes + group - 1, mask=on, other=0.0)
    own = tl.load(sums + group, mask=on, other=0.0) - tl.load(sums + group - 1, mask=on, other=0.0)
    dx = tl.where(on, own / members - total / tl.maximum(size, 1), 0.0) * scale
    dx = tl.where(mark == -2, float("nan"), dx)
    tl.store(dx_ptr + row * n + source, dx.to(tl.float32), mask=inside)
