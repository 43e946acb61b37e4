"""fusedmax and oscarmax on the GPU: each has its own forward kernel, and they share the backward kernel.

The forward saves one int8 per position, `marks`: 1 for the first position of a group, 0 for its other positions, -1 off
the support, and -2 in a row with NaN. For fusedmax, the marks are in the order of the positions. For oscarmax, they are
in the order of the scores, which is saved as well (int16 [R, n]).

Scores that are certainly off the support are left out first, which takes most of a long row; up to FEW of the others are
handled by fewer threads. ``work`` is memory for passing values between the threads of a program: after a barrier, a thread can
read what another one has stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import SIZES, most, scores_of, simplex_threshold, some, standing, tile, total

FIRST, MEMBER, OFF, SPOILT = tl.constexpr(1), tl.constexpr(0), tl.constexpr(-1), tl.constexpr(-2)
RISES, FALLS, GAP = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def _marks(first, p, spoilt):
    """The int8 marks of positions, from their probabilities ``p`` before rounding."""
    return tl.where(spoilt, SPOILT, tl.where(p > 0, tl.where(first, FIRST, MEMBER), OFF)).to(tl.int8)


@triton.jit
def _memory(work_ptr, row, rows, n):
    """Of each row, float64 [n + 1], and behind those of all rows, int32 [n + 1]."""
    behind = (work_ptr + rows.to(tl.int64) * (n + 1)).to(tl.pointer_type(tl.int32))
    return work_ptr + row * (n + 1), behind + row * (n + 1)


@triton.jit
def _groups(begins, starts, count, real, at):
    """The first position and the end of each position's group, and the number of the group, by ``starts`` in memory."""
    number = tl.cumsum(begins.to(tl.int32), 1)
    tl.debug_barrier()
    tl.store(starts + number - 1, at + 0 * number, mask=begins)
    tl.store(starts + number, count + 0 * number, mask=at == count - 1)
    tl.debug_barrier()
    return tl.load(starts + number - 1, mask=real, other=0), tl.load(starts + number, mask=real, other=1), number


@triton.jit
def _projected(value, real):
    """The projection of a row's values onto the simplex; 0 elsewhere. Rows without a value are computed with zeros."""
    y = tl.where(real, (value - most(tl.where(real, value, -float("inf")))).to(tl.float32), -1e9)
    y = tl.where(most(real.to(tl.int32)) == 1, y, 0.0)
    return tl.where(real, tl.maximum(y - simplex_threshold(y), 0.0), 0.0)


@triton.jit
def _clipped(low, high, low2, high2):
    """Clipping to [low, high] and then to [low2, high2] is clipping to one interval."""
    return tl.minimum(tl.maximum(low, low2), high2), tl.minimum(tl.maximum(high, low2), high2)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@triton.jit
def _above(low, high, sums, ends, kept, lam, at):
    """Where the solution of total variation is above a number t.

    These positions solve a problem of two labels. Its messages are m' = clip(m + z - t, -lam, lam). With ``sums``, those of z - t
    up to a position, m - (the sum before it) is only clipped, to [low, high], so a scan computes all of them without rounding. Then a position that
    the messages do not decide is as the next one that they do; they decide the ends.
    """
    low, high = tl.associative_scan((low, high), 1, _clipped)
    s = tl.minimum(tl.maximum(low, 0.0), high) + sums
    decided = ends | (kept & ((s > lam) | (s <= -lam)))
    key = tl.where(decided, 2 * at + (s > 0).to(tl.int32), 1 << 30)
    return kept & ((tl.associative_scan(key, 1, _least, reverse=True) & 1) == 1)


@triton.jit
def _cut(sums, starts, codes, count, n, lam, slack, LANES: tl.constexpr):
    """Replace the sums of ``count`` scores by their probabilities, and the codes of their borders by 1 where a group begins.

    A piece between two borders, behind which the values are known to be higher or lower, has the mean t = (sum of z + lam (higher -
    lower neighbours)) / size. If none of its values is above t, it is constant. Otherwise it falls into pieces above t and
    pieces up to t. All pieces are cut at once.
    """
    at = tl.arange(0, LANES)[None, :]
    real = at < count
    begins = real & ((at == 0) | (tl.load(codes + at, mask=real, other=0) != 0))
    mean = real.to(tl.float64)
    cuts = 1
    while cuts == 1:
        begin, end, _ = _groups(begins, starts, count, real, at)
        before = tl.load(codes + begin, mask=real, other=0)
        behind = tl.load(codes + end, mask=real & (end < n), other=0)
        left = tl.where(before == 0, 0.0, tl.where(before == FALLS, lam, -lam)).to(tl.float64)
        right = tl.where(behind == 0, 0.0, tl.where(behind == RISES, lam, -lam)).to(tl.float64)
        origin = tl.load(sums + begin, mask=real, other=0.0)
        mean = (tl.load(sums + end, mask=real, other=0.0) - origin + left + right) / (end - begin).to(tl.float64)
        place = (at - begin).to(tl.float64)
        t = mean + slack
        lower = tl.load(sums + at, mask=real, other=0.0) - origin - place * t
        upto = tl.load(sums + at + 1, mask=real, other=0.0) - origin - (place + 1.0) * t
        start = at == begin
        low = tl.where(start, left, -lam - lower)
        high = tl.where(start, left, lam - lower)
        ends = at + 1 == end
        up = _above(low, high, tl.where(ends, upto + right, upto), ends, real, lam, at).to(tl.int32)
        tl.debug_barrier()
        tl.store(starts + at, up, mask=real)
        tl.debug_barrier()
        cut = real & ~start & (up != tl.load(starts + at - 1, mask=real & ~start, other=0))
        tl.store(codes + at, tl.where(up == 1, RISES, FALLS).to(tl.int8), mask=cut)
        begins = begins | cut
        cuts = some(cut)
    p = _projected(mean, real)
    tl.debug_barrier()
    tl.store(sums + at, p.to(tl.float64), mask=real)
    tl.store(codes + at, begins.to(tl.int8), mask=real)


@triton.jit(do_not_specialize=SIZES)
def fusedmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, work_ptr, rows, n, size1, size2, s0, s1, s2, s3, scale, lam,
    MASKED: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p and its marks for ROWS rows of contiguous [R, n]. work: see `_memory`. BLOCK: a power of two, at least n.

    The values of total variation differ from their scores by at most 2 lam, so none up to -1 - 2 lam is in the support: the first cut
    is there, a bit lower. What is above moves to the front of the memory, and is cut until each piece is constant.
    """
    row, at = tile(ROWS, BLOCK)
    inside = (at < n) & (row < rows)
    sums, starts = _memory(work_ptr, row, rows, n)
    marks = marks_ptr + row * n
    x = scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED)
    top, _empty, spoilt = standing(x)
    keep = (x > -float("inf")) & ~spoilt
    t = -1.001 - 2.01 * lam
    z = tl.where(keep, tl.maximum((x - top) * scale, t - 1.0 - 2.0 * lam), t).to(tl.float64)
    lam64 = tl.zeros([ROWS, 1], tl.float64) + lam
    upto = tl.cumsum(z - t, 1)
    lower = upto - (z - t)
    up = _above(-lam64 - lower, lam64 - lower, upto, at == BLOCK - 1, keep, lam64, at)
    place = tl.cumsum(up.to(tl.int32), 1) - 1
    count = total(up.to(tl.int32))
    left_out = tl.cumsum(keep.to(tl.int32), 1) - place - 1  # kept positions in front of this one that are not up
    tl.store(sums, 0.0 * lam64, mask=row < rows)
    tl.store(sums + place + 1, tl.cumsum(tl.where(up, z, 0.0), 1), mask=up)
    tl.store(starts + place, left_out, mask=up)
    tl.debug_barrier()
    fewer = tl.load(starts + place - 1, mask=up & (place > 0), other=0)
    tl.store(marks + place, tl.where(left_out != fewer, GAP, 0).to(tl.int8), mask=up)
    more = total(keep.to(tl.int32)) - count > left_out
    tl.store(marks + place + 1, tl.where(more, GAP, 0).to(tl.int8), mask=up & (place == count - 1) & (count < n))
    slack = 1e-10 + 1e-10 * lam64  # above what is lost by rounding
    tl.debug_barrier()
    if FEW < BLOCK:
        if some(count > FEW) == 0:
            _cut(sums, starts, marks, count, n, lam64, slack, FEW)
        else:
            _cut(sums, starts, marks, count, n, lam64, slack, BLOCK)
    else:
        _cut(sums, starts, marks, count, n, lam64, slack, BLOCK)
    tl.debug_barrier()
    p = tl.load(sums + place, mask=up, other=0.0).to(tl.float32)
    first = tl.load(marks + place, mask=up, other=0) == 1
    tl.debug_barrier()
    tl.store(marks + at, _marks(first, p, spoilt), mask=inside)
    tl.store(p_ptr + row * n + at, tl.where(spoilt, float("nan"), p), mask=inside)


@triton.jit
def _pooled(sums, starts, keys, apart, p_row, order, marks, count, lam, LANES: tl.constexpr):
    """The rest of `oscarmax_forward` for ``count`` scores, of which LANES is at least as many.

    keys: int64, the score's bits in the order of numbers, then the complement of its place. A bitonic network that compares in
    one direction only, so that what is behind ``count`` needs no memory, sorts them; the steps read and write keys and keys + apart in turn.
    """
    at = tl.arange(0, LANES)[None, :]
    real = at < count
    key = tl.load(keys + at, mask=real, other=0)
    longest = tl.max(tl.max(count, 1), 0)
    here = apart * 0
    size = 2
    while size < 2 * longest:
        step = size - 1
        following = size // 4
        while step > 0:
            partner = at ^ step
            both = real & (partner < count)
            other = tl.load(keys + here + partner, mask=both, other=0)
            key = tl.where(both & ((partner > at) == (other > key)), other, key)
            here = apart - here
            tl.store(keys + here + at, key, mask=real)
            tl.debug_barrier()
            step = following
            following = following // 2
        size = size * 2
    bits = (key >> 32).to(tl.int32)
    score = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True).to(tl.float64)
    source = 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
    lifted = tl.where(real, score + lam * (at + 1), 0.0)
    tl.debug_barrier()
    tl.store(sums, 0.0 * lam, mask=count > 0)
    tl.store(sums + 1 + at, tl.cumsum(lifted, 1), mask=real)
    begins = real
    mean = lifted
    merged = 1
    while merged == 1:
        begin, end, number = _groups(begins, starts, count, real, at)
        previous = tl.load(starts + number - 2, mask=real & (number > 1), other=0)
        below = tl.load(sums + begin, mask=real, other=0.0)
        mean = (tl.load(sums + end, mask=real, other=0.0) - below) / (end - begin).to(tl.float64)
        before = (below - tl.load(sums + previous, mask=real, other=0.0)) / tl.maximum(begin - previous, 1).to(
            tl.float64
        )
        pooled = begins & (number > 1) & (mean > before)
        begins = begins & ~pooled
        merged = some(pooled)
    p = _projected(mean, real)
    tl.store(marks + at, _marks(begins, p, count < 0), mask=real)
    tl.store(order + at, source.to(tl.int16), mask=real)
    tl.store(p_row + source, p, mask=real)


@triton.jit(do_not_specialize=SIZES)
def oscarmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, order_ptr, work_ptr, rows, n, size1, size2, s0, s1, s2, s3, scale, lam,
    MASKED: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p, its marks and the order of the scores for ROWS rows. work: float64 [2, R, n + 1], see `_memory`.

    A score is pulled down by at most lam (n - 1), so only those above top - 1 - lam (n - 1) can be in the support, and the others,
    which are behind them, do not change them. With s in decreasing order, ``s_i + lam i`` is pooled until the result decreases (isotonic regression).
    All violations are pooled at once, since two adjacent blocks in the wrong order always end up in one block.
    """
    row, at = tile(ROWS, BLOCK)
    inside = (at < n) & (row < rows)
    sums, starts = _memory(work_ptr, row, rows, n)
    order = order_ptr + row * n
    marks = marks_ptr + row * n
    p_row = p_ptr + row * n
    x = scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED)
    top, _empty, spoilt = standing(x)
    z = tl.where((x > -float("inf")) & ~spoilt, (x - top) * scale, -float("inf"))
    keep = z > -1.001 - lam * n
    count = total(keep.to(tl.int32))
    upto = tl.cumsum(keep.to(tl.int32), 1)
    bits = (z + 0.0).to(tl.int32, bitcast=True)  # one zero
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = sums.to(tl.pointer_type(tl.int64))
    tl.store(keys + upto - 1, (bits.to(tl.int64) << 32) | (0x7FFFFFFF - at).to(tl.int64), mask=keep)
    tl.store(order + count + (at - upto), (at + 0 * upto).to(tl.int16), mask=inside & ~keep)
    tl.store(marks + at, _marks(keep, tl.where(keep, 0.0, 0.0), spoilt), mask=inside)
    tl.store(p_row + at, tl.where(spoilt & inside, float("nan"), 0.0), mask=inside)
    tl.debug_barrier()
    lam64 = tl.zeros([ROWS, 1], tl.float64) + lam
    apart = rows.to(tl.int64) * (n + 1)
    if FEW < BLOCK:
        if some(count > FEW) == 0:
            _pooled(sums, starts, keys, apart, p_row, order, marks, count, lam64, FEW)
        else:
            _pooled(sums, starts, keys, apart, p_row, order, marks, count, lam64, BLOCK)
    else:
        _pooled(sums, starts, keys, apart, p_row, order, marks, count, lam64, BLOCK)


@triton.jit(do_not_specialize=["rows"])
def grouped_backward(
    g_ptr, marks_ptr, order_ptr, dx_ptr, work_ptr, rows, n, scale,
    ORDERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = scale (mean of g over the group - mean of g over the support). work: float64 [R, 2, n + 1].

    The means are computed from differences of running sums, since the groups are contiguous (in the order of the
    scores, if ORDERED).
    """
    row, at = tile(ROWS, BLOCK)
    inside = (at < n) & (row < rows)
    mark = tl.load(marks_ptr + row * n + at, mask=inside, other=-1).to(tl.int32)
    on = mark >= 0
    source = at + 0 * mark
    if ORDERED:
        source = tl.load(order_ptr + row * n + at, mask=inside, other=0).to(tl.int32)
    g = tl.load(g_ptr + row * n + source, mask=inside & on, other=0.0).to(tl.float64)
    sums = work_ptr + row * 2 * (n + 1)
    sizes = sums + n + 1
    running = tl.cumsum(g, 1)
    counted = tl.cumsum(on.to(tl.int32), 1)
    group = tl.cumsum((mark == 1).to(tl.int32), 1)
    whole = total(g)
    size = total(on.to(tl.int32))
    tl.store(sums + group - 1, running - g, mask=mark == 1)
    tl.store(sizes + group - 1, (counted - 1).to(tl.float64), mask=mark == 1)
    groups = total((mark == 1).to(tl.int32))
    tl.store(sums + groups, whole, mask=row < rows)
    tl.store(sizes + groups, size.to(tl.float64), mask=row < rows)
    tl.debug_barrier()
    members = tl.load(sizes + group, mask=on, other=1.0) - tl.load(sizes + group - 1, mask=on, other=0.0)
    own = tl.load(sums + group, mask=on, other=0.0) - tl.load(sums + group - 1, mask=on, other=0.0)
    dx = tl.where(on, own / members - whole / tl.maximum(size, 1), 0.0) * scale
    dx = tl.where(mark == -2, float("nan"), dx)
    tl.store(dx_ptr + row * n + source, dx.to(tl.float32), mask=inside)
