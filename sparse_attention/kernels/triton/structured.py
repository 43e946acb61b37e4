"""The sequential parts of fusedmax and oscarmax on the GPU: a block of rows per program, one row per lane.

Both algorithms walk along a row and decide at every step; what can run side by side are rows. Each pass of the loop is
one step of every lane's own walk, with selections in place of branches. State is float64, because both add up whole
rows. Rows have lengths of their own: positions from ``length[row]`` on are left alone.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def total_variation(z_ptr, y_ptr, length_ptr, rows, n, lam, ROWS: tl.constexpr):
    """y = argmin |y - z|^2 / 2 + lam sum |y_{i+1} - y_i| row by row, by the direct scan of Condat 2013.

    Names as in ``native/src/total_variation.h``. Linear in n on typical rows, quadratic on smooth ones. First every
    segment's value is stored at its start and its length in the following steps, then a sweep fills it in.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = row < rows
    length = tl.load(length_ptr + row, mask=real, other=0)
    z = z_ptr + row * n
    y = y_ptr + row * n
    working = length > 0
    # NaN marks "same as the value before".
    i = 0
    while i < tl.max(length, 0):
        tl.store(y + i, tl.full([ROWS], float("nan"), tl.float32), mask=i < length)
        i += 1

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

        value = tl.where(down, low, tl.where(up, high, low + low_dual / (k - start + 1)))
        tl.store(y + start, value.to(tl.float32), mask=down | up | finish)
        jump = down | up
        working = working & ~finish
        start = tl.where(down, low_end + 1, tl.where(up, high_end + 1, start))
        shifted = tl.load(z + start, mask=jump, other=0.0).to(tl.float64) + tl.where(down, lam64, -lam64)

        k = tl.where(jump, start, tl.where(on, k + 1, k))
        raise_low = on & (low_next >= lam64)
        lower_high = on & (high_next <= -lam64)
        span = (k - start + 1).to(tl.float64)
        low = tl.where(raise_low, low + (low_next - lam64) / span, low)
        high = tl.where(lower_high, high + (high_next + lam64) / span, high)
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

    before = tl.zeros([ROWS], tl.float32)
    i = 0
    while i < tl.max(length, 0):
        here = tl.load(y + i, mask=i < length, other=0.0)
        before = tl.where(here != here, before, here)
        tl.store(y + i, before, mask=i < length)
        i += 1


@triton.jit
def pool_adjacent_violators(s_ptr, y_ptr, id_ptr, sum_ptr, size_ptr, length_ptr, rows, n, lam, ROWS: tl.constexpr):
    """Decreasing isotonic regression of s_i + lam (i + 1), s in decreasing order; also each position's block (int32).

    ``sum_ptr`` (float64) and ``size_ptr`` (int32) are working memory [rows, n]: the stack of blocks. A step of a lane
    either merges its top block into the current one or pushes the current one and moves on, so 2n steps do.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = row < rows
    length = tl.load(length_ptr + row, mask=real, other=0)
    offset = row * n
    lam64 = tl.zeros([ROWS], tl.float64) + lam
    i = tl.zeros([ROWS], tl.int32)
    blocks = tl.zeros([ROWS], tl.int32)
    working = length > 0
    total = tl.load(s_ptr + offset, mask=working, other=0.0).to(tl.float64) + lam64
    size = tl.full([ROWS], 1, tl.int32)
    while tl.max(working.to(tl.int32), 0) == 1:
        stacked = working & (blocks > 0)
        top = tl.load(sum_ptr + offset + blocks - 1, mask=stacked, other=0.0)
        top_size = tl.load(size_ptr + offset + blocks - 1, mask=stacked, other=1)
        merge = stacked & (top * size <= total * top_size)
        push = working & ~merge
        tl.store(sum_ptr + offset + blocks, total, mask=push)
        tl.store(size_ptr + offset + blocks, size, mask=push)
        i = tl.where(push, i + 1, i)
        blocks = tl.where(push, blocks + 1, tl.where(merge, blocks - 1, blocks))
        working = working & (i < length)
        following = tl.load(s_ptr + offset + i, mask=push & working, other=0.0).to(tl.float64) + lam64 * (i + 1)
        total = tl.where(push, following, tl.where(merge, total + top, total))
        size = tl.where(push, 1, tl.where(merge, size + top_size, size))

    # Lanes read back what they stored themselves.
    block = tl.full([ROWS], -1, tl.int32)
    left = tl.zeros([ROWS], tl.int32)
    value = tl.zeros([ROWS], tl.float64)
    highest = tl.zeros([ROWS], tl.float64)
    j = 0
    while j < tl.max(length, 0):
        here = j < length
        enter = here & (left == 0)
        block = tl.where(enter, block + 1, block)
        entered = tl.load(size_ptr + offset + block, mask=enter, other=1)
        value = tl.where(enter, tl.load(sum_ptr + offset + block, mask=enter, other=0.0) / entered, value)
        left = tl.where(enter, entered, left) - 1
        highest = tl.where(j == 0, value, highest)
        # Less the row's largest, which changes nothing in a projection and keeps float32's digits.
        tl.store(y_ptr + offset + j, (value - highest).to(tl.float32), mask=here)
        tl.store(id_ptr + offset + j, block, mask=here)
        j += 1
