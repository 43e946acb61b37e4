"""fusedmax and oscarmax on the GPU: each has its own forward kernel, and they share the backward kernel.

The forward saves one int8 per position, `marks`: 1 for the first position of a group, 0 for its other positions, -1 off
the support, and -2 in a row with NaN. For fusedmax, the marks are in the order of the positions. For oscarmax, they are
in the order of the scores, which is saved as well (int16 [R, n]).

Scores that are certainly off the support are left out first, which takes most of a long row. ``work`` is memory for
passing values between the threads of a program: after a barrier, a thread can read what another one has stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import SIZES, most, scores_of, simplex_threshold, some, standing, tile, total

# The code of a position: its border to the one before it, if it is above a cut, if that is open, and 16 times its place.
BORDER, RISES, FALLS, GAP = tl.constexpr(3), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
UP, OPEN, FAR = tl.constexpr(4), tl.constexpr(8), tl.constexpr(1 << 30)


@triton.jit
def _marks(first, p, spoilt):
    """The int8 marks of positions, from their probabilities ``p`` before rounding."""
    return tl.where(spoilt, -2, tl.where(p > 0, tl.where(first, 1, 0), -1)).to(tl.int8)


@triton.jit
def _apart(at):
    """Keep loads of wide rows apart, since registers do not hold them all at once."""
    if at.shape[1] > 4096:
        tl.debug_barrier()


@triton.jit
def _inverse(count):
    """1 / count in float64, by a float32 division and a Newton step, since float64 divisions take ten times as long."""
    guess = (1.0 / count.to(tl.float32)).to(tl.float64)
    return guess * (2.0 - guess * count)


@triton.jit
def _sum(sums, begin, end, real):
    """The sum from ``begin`` to ``end``, by running sums."""
    return tl.load(sums + end, mask=real, other=0.0) - tl.load(sums + begin, mask=real, other=0.0)


@triton.jit
def _groups(begins, starts, count, real, at):
    """The first position and the end of each position's group, and the number of the group, by ``starts`` in memory."""
    number = tl.cumsum(begins.to(tl.int32), 1)
    tl.debug_barrier()
    tl.store(starts + number - 1, at + 0 * number, mask=begins)
    tl.store(starts + number, count + 0 * number, mask=at == count - 1)
    tl.debug_barrier()
    return tl.load(starts + number - 1, mask=real, other=0), tl.load(starts + number, mask=real, other=FAR), number


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
def _most(a, b):
    return tl.maximum(a, b)


@triton.jit
def _nearest(x, carry):
    """The minimum of x from each position on, and of ``carry``; and that of the row."""
    x = tl.minimum(tl.associative_scan(x, 1, _least, reverse=True), carry)
    return x, -most(-x)


@triton.jit
def _first(codes, at, real, since):
    """The first position of each position's piece; ``since`` where it began before these positions."""
    begins = real & (tl.load(codes + at, mask=real, other=0) & BORDER != 0)
    return tl.maximum(tl.associative_scan(tl.where(begins, at, 0), 1, _most), since)


@triton.jit
def _mean(sums, codes, begin, end, lam, real):
    """Of pieces, (the sum of z + lam (higher - lower neighbours)) / size, and the neighbours: -1 is lower, 1 higher."""
    before = tl.load(codes + begin, mask=real, other=0) & BORDER
    behind = tl.load(codes + end, mask=real, other=0) & BORDER
    left = tl.where(before == 0, 0, tl.where(before == FALLS, 1, -1))
    right = tl.where(behind == 0, 0, tl.where(behind == RISES, 1, -1))
    return (_sum(sums, begin, end, real) + lam * (left + right)) * _inverse(end - begin), left, right


@triton.jit
def _cut(sums, stops, codes, count, lam, slack, FEW: tl.constexpr):
    """Mark in ``codes`` where the groups of ``count`` values begin, FEW at a time; ``stops`` gets where they end.

    A piece between two borders, behind which the values are known to be higher or lower, has the mean t of `_mean`.
    The positions with values above t solve a problem of two labels, whose messages are m' = clip(m + z - t, -lam, lam).
    If there are none, the piece is constant, else it falls into pieces above t and pieces up to t. All pieces are cut
    at once. Less the sum of z - t before it, a message is only clipped, so a scan of intervals computes all of them
    without rounding. Positions that their messages do not decide are as the next one; the last one is always decided.
    """
    place = tl.arange(0, FEW)[None, :]
    longest = tl.max(tl.max(count, 1), 0)
    looking = 1  # the first round cuts nothing, and finds the ends
    cuts = 1
    while cuts == 1:
        cuts = looking
        looking = 0
        key_behind = 0 * count + FAR
        stop_behind = count
        j = (longest - 1) // FEW * FEW
        while j >= 0:
            at = j + place
            real = at < count
            code = tl.load(codes + at, mask=real, other=OPEN)
            key, key_behind = _nearest(tl.where(code & OPEN != 0, FAR, 2 * at + (code // UP & 1)), key_behind)
            code = (code & ~(UP | OPEN)) | (key & 1) * UP
            tl.debug_barrier()
            tl.store(codes + at, code, mask=real)
            tl.debug_barrier()
            following = tl.load(codes + at + 1, mask=at + 1 < count, other=GAP)
            joined = real & (following & BORDER == 0)
            cut = joined & ((following ^ code) & UP != 0)
            tl.store(codes + at + 1, following + tl.where(following & UP != 0, RISES, FALLS), mask=cut)
            stop, stop_behind = _nearest(tl.where(joined & ~cut, FAR, at + 1), stop_behind)
            tl.store(stops + at, stop, mask=real)
            cuts = tl.maximum(cuts, some(cut))
            j -= FEW
        tl.debug_barrier()
        since = 0 * count
        message = 0 * lam
        j = 0
        while (j < longest) & (cuts == 1):
            at = j + place
            real = at < count
            begin = _first(codes, at, real, since)
            since = most(begin)
            end = tl.load(stops + at, mask=real, other=FAR)
            mean, left, right = _mean(sums, codes, begin, end, lam, real)
            t = mean + slack
            lower = _sum(sums, begin, at, real) - (at - begin).to(tl.float64) * t
            low = tl.where(at == begin, lam * left, -lam - lower)
            high = tl.where(at == begin, lam * left, lam - lower)
            low, high = tl.associative_scan((low, high), 1, _clipped)
            low = tl.minimum(tl.maximum(message, low), high)
            message = total(tl.where(place == FEW - 1, low, 0.0))
            s = low + _sum(sums, begin, at + 1, real) - (at + 1 - begin).to(tl.float64) * t
            s = tl.where(at + 1 == end, s + lam * right, s)
            decided = (at + 1 == end) | (s > lam) | (s <= -lam)
            code = tl.load(codes + at, mask=real, other=0) & ~(UP | OPEN)
            tl.store(codes + at, code | tl.where(decided, tl.where(s > 0, UP, 0), OPEN), mask=real)
            j += FEW
        tl.debug_barrier()


@triton.jit(do_not_specialize=SIZES)
def fusedmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, work_ptr, rows, n, scale, lam, size1, size2, s0, s1, s2, s3,
    MASKED: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p and its marks for ROWS rows of contiguous [R, n]. work: float64 [2, R, n + 1]. BLOCK: a power of two, at least n.

    The values of total variation differ from their scores by at most 2 lam, so the threshold of the projection is at
    least t = -1 - 2 lam, and scores below t - 2 lam have values below t. These are gaps. The rest moves to the front of
    the memory, where a piece between gaps has lower neighbours, and is cut until each piece is constant.
    """
    row, at, inside = tile(rows, n, ROWS, BLOCK)
    apart = rows.to(tl.int64) * (n + 1)
    starts = (work_ptr + apart).to(tl.pointer_type(tl.int32)) + row * (n + 1)  # behind the sums of all rows
    sums = work_ptr + row * (n + 1)
    codes = starts + apart
    p_row = p_ptr + row * n
    marks = marks_ptr + row * n
    x = scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
    top, _, spoilt = standing(x)
    keep = (x > -float("inf")) & ~spoilt
    z = (x - top) * scale
    up = keep & (z > -1.001 - 4.001 * lam)
    tl.store(p_row + at, tl.where(spoilt & inside, float("nan"), 0.0), mask=inside)
    tl.store(marks + at, _marks(up, tl.where(up, 0.0, 0.0), spoilt), mask=inside)
    lam64 = tl.zeros([ROWS, 1], tl.float64) + lam
    _apart(at)
    place = tl.cumsum(up.to(tl.int32), 1) - 1
    count = total(up.to(tl.int32))
    tl.store(sums, 0.0 * lam64, mask=row < rows)
    tl.store(sums + place + 1, tl.cumsum(tl.where(up, z, 0.0).to(tl.float64), 1), mask=up)
    gone = tl.cumsum(keep.to(tl.int32), 1) - place  # by how many kept positions more than the one before it
    tl.store(starts + place, gone, mask=up)
    tl.debug_barrier()
    gap = gone != tl.load(starts + place - 1, mask=up & (place > 0), other=1)
    tl.store(codes + place, 16 * at + tl.where(gap, GAP, 0), mask=up)
    more = total(keep.to(tl.int32)) - count >= gone
    tl.store(codes + place + 1, tl.where(more, GAP, 0), mask=up & (place == count - 1))
    slack = 1e-10 + 1e-10 * lam64  # above what is lost by rounding
    tl.debug_barrier()
    WHOLE: tl.constexpr = BLOCK if BLOCK <= 1024 else FEW  # wider rows would spill registers
    if WHOLE > FEW:
        if some(count > FEW) == 1:
            _cut(sums, starts, codes, count, lam64, slack, WHOLE)
        else:
            _cut(sums, starts, codes, count, lam64, slack, FEW)
    else:
        _cut(sums, starts, codes, count, lam64, slack, FEW)
    real = at < count
    begin = _first(codes, at, real, 0 * count)
    end = tl.load(starts + at, mask=real, other=FAR)
    p = _projected(_mean(sums, codes, begin, end, lam64, real)[0], real)
    source = tl.load(codes + at, mask=real, other=0) // 16
    tl.store(p_row + source, p, mask=real)
    tl.store(marks + source, _marks(at == begin, p, count < 0), mask=real)


@triton.jit
def _pooled(sums, starts, keys, apart, p_row, order, marks, count, lam, LANES: tl.constexpr):
    """The rest of `oscarmax_forward` for ``count`` scores, of which LANES is at least as many.

    keys: int64, the score's bits in the order of numbers, then the complement of its place. A bitonic network sorts
    them. It compares in one direction only, so that what is behind ``count`` needs no memory; its steps read and write
    keys and keys + apart in turn.
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
    tl.store(order + at, source.to(tl.int16), mask=real)
    begins = real
    merged = 1
    while merged == 1:
        begin, end, number = _groups(begins, starts, count, real, at)
        previous = tl.load(starts + number - 2, mask=real & (number > 1), other=0)
        mean = _sum(sums, begin, end, real) * _inverse(end - begin)
        _apart(at)
        before = _sum(sums, previous, begin, real) * _inverse(tl.maximum(begin - previous, 1))
        pooled = begins & (number > 1) & (mean > before)
        begins = begins & ~pooled
        merged = some(pooled)
    begin, end, _ = _groups(begins, starts, count, real, at)
    p = _projected(_sum(sums, begin, end, real) * _inverse(end - begin), real)
    tl.store(marks + at, _marks(begins, p, count < 0), mask=real)
    tl.store(p_row + tl.load(order + at, mask=real, other=0), p, mask=real)


@triton.jit(do_not_specialize=SIZES)
def oscarmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, order_ptr, work_ptr, rows, n, scale, lam, size1, size2, s0, s1, s2, s3,
    MASKED: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p, its marks and the order of the scores for ROWS rows. work: float64 [2, R, n + 1], of which a program uses its rows alone.

    A score is pulled down by at most lam (n - 1), so only those above top - 1 - lam (n - 1) can be in the support, and
    the others, which are behind them, do not change them. With s in decreasing order, ``s_i + lam i`` is pooled until
    the result decreases (isotonic regression). All violations are pooled at once, since two adjacent blocks in the
    wrong order always end up in one block. Up to FEW scores are handled by fewer threads.
    """
    row, at, inside = tile(rows, n, ROWS, BLOCK)
    apart = rows.to(tl.int64) * (n + 1)
    sums = work_ptr + row * (n + 1)
    starts = (sums + apart).to(tl.pointer_type(tl.int32))  # where the row's own keys were
    order = order_ptr + row * n
    marks = marks_ptr + row * n
    p_row = p_ptr + row * n
    x = scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
    top, _, spoilt = standing(x)
    z = tl.where((x > -float("inf")) & ~spoilt, (x - top) * scale, -float("inf"))
    keep = z > -1.001 - lam * n
    count = total(keep.to(tl.int32))
    upto = tl.cumsum(keep.to(tl.int32), 1)
    _apart(at)
    bits = (z + 0.0).to(tl.int32, bitcast=True)  # one zero
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = sums.to(tl.pointer_type(tl.int64))
    tl.store(keys + upto - 1, (bits.to(tl.int64) << 32) | (0x7FFFFFFF - at).to(tl.int64), mask=keep)
    tl.store(order + count + (at - upto), (at + 0 * upto).to(tl.int16), mask=inside & ~keep)
    tl.store(marks + at, _marks(keep, tl.where(keep, 0.0, 0.0), spoilt), mask=inside)
    tl.store(p_row + at, tl.where(spoilt & inside, float("nan"), 0.0), mask=inside)
    tl.debug_barrier()
    lam64 = tl.zeros([ROWS, 1], tl.float64) + lam
    if (FEW == BLOCK) | (some(count > FEW) == 0):
        _pooled(sums, starts, keys, apart, p_row, order, marks, count, lam64, FEW)
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
    row, at, inside = tile(rows, n, ROWS, BLOCK)
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
