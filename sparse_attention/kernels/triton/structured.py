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

from .rows import SIZES, most, scores_of, simplex_threshold, some, standing, tile, total, totals

# Of a position in a piece of fusedmax: 0 inside it, else its neighbour beyond the border: lower, none, or higher. A code
# has this for its left, in SIDE, and for its right, times 4; three flags; and its place in the row, times PLACE.
SIDE, UP, OPEN, LOW, PLACE = tl.constexpr(3), tl.constexpr(16), tl.constexpr(32), tl.constexpr(64), tl.constexpr(128)
FAR, FAR_PLACE = tl.constexpr(1 << 30), tl.constexpr(1 << 14)


@triton.jit
def _marks(first, p, spoilt):
    """The int8 marks of positions, from their probabilities ``p`` before rounding."""
    return tl.where(spoilt, -2, tl.where(p > 0, tl.where(first, 1, 0), -1)).to(tl.int8)


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
def _block(sums, starts, real):
    """The means of blocks and where they begin, by ``starts`` of the blocks and the next ones."""
    begin = tl.load(starts, mask=real, other=0).to(tl.int32)
    end = tl.load(starts + 1, mask=real, other=1).to(tl.int32)
    return _sum(sums, begin, end, real) * _inverse(end - begin), begin


@triton.jit
def _highest(x_ptr, mask_ptr, row, place, rows, n, size1, size2, s0, s1, s2, s3, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """The highest scores of rows, [ROWS, 1], as of `standing`."""
    top = (0 * row).to(tl.float32) - float("inf")
    for j in range(0, n, BLOCK):
        inside = (row < rows) & (j + place < n)
        x = scores_of(x_ptr, mask_ptr, row, j + place, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
        top = tl.maximum(top, standing(x)[0])
    return top


@triton.jit
def _clip(x, low, high):
    """By selections: they take a third of the instructions of minima and maxima in float64."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def _clipped(low, high, low2, high2):
    """Clipping to [low, high] and then to [low2, high2] is clipping to one interval."""
    return _clip(low, low2, high2), _clip(high, low2, high2)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@triton.jit
def _most(a, b):
    return tl.maximum(a, b)


@triton.jit
def _two(a, before, b, before2):
    """The two largest numbers."""
    return tl.maximum(a, b), tl.maximum(tl.minimum(a, b), tl.maximum(before, before2))


@triton.jit
def _since(first, whole, first2, whole2):
    return tl.maximum(first, first2), whole + whole2


@triton.jit
def _moved(count, begin, whole, count2, begin2, whole2):
    """Numbers of positions, 4 times the last one that begins a piece, and sums."""
    return count + count2, tl.maximum(begin, 4 * count + begin2), whole + whole2


@triton.jit
def _project(values, codes, p_row, marks, count, ORDERED: tl.constexpr, FEW: tl.constexpr):
    """The projection of ``count`` values, of which the highest is 0, onto the simplex, to their places; see `simplex_threshold`."""
    place = tl.arange(0, FEW)[None, :]
    longest = tl.max(tl.max(count, 1), 0)
    tau, size = -1.0 + 0.0 * count, 0.0 * count
    moving = count > 0
    while some(moving) == 1:
        mass, now = 0.0 * (count + place), 0.0 * (count + place)
        j = 0
        while j < longest:
            d = tl.maximum(tl.load(values + j + place, mask=j + place < count, other=-1e9) - tau, 0.0)
            mass, now = mass + d, now + tl.where(d > 0, 1.0, 0.0)
            j += FEW
        mass, now = totals(mass, now)
        tau = tl.where(moving, tau + (mass - 1.0) / now, tau)
        moving = moving & ((size == 0.0) | (now < size))
        size = now
    j = 0
    while j < longest:
        real = j + place < count
        p = tl.maximum(tl.load(values + j + place, mask=real, other=-1e9) - tau, 0.0)
        code = tl.load(codes + j + place, mask=real, other=0)
        tl.store(p_row + code // PLACE, p, mask=real)
        tl.store(marks + (j + place if ORDERED else code // PLACE), _marks(code & SIDE != 0, p, count < 0), mask=real)
        j += FEW


@triton.jit
def _piece(sums, starts, codes, at, real, behind, lam):
    """Of positions from right to left, what `_cut` uses of their pieces. ``behind``: 4 times an end, see there."""
    code = tl.load(codes + at, mask=real, other=0)
    first = tl.load(starts + at, mask=real, other=0)
    last = tl.where(code // 4 & SIDE != 0, 4 * at + 4 + (code // 4 & SIDE), FAR)
    last = tl.minimum(tl.associative_scan(last, 1, _least), behind)
    begin, end, left, right = first // 4, last // 4, (first & 3) - 2, (last & 3) - 2
    share = _inverse(end - begin)
    return code, begin, end, left, right, share, (_sum(sums, begin, end, real) + lam * (left + right)) * share, -most(-last)


@triton.jit
def _cut(sums, starts, codes, count, lam, low, moving, FEW: tl.constexpr):
    """Cut the pieces of rows that are ``moving``, until each is a group or known to be off the support; returns their length.

    sums: before each position. starts: 4 times the first position of its piece, plus the first one's code. A piece
    between two borders, behind which the values are known to be higher or lower, has the mean
    (sum of z + lam (higher - lower neighbours)) / size. The positions with values above t solve a problem of two labels,
    whose messages are m' = clip(m + z - t, -lam, lam). With the mean as t, a piece without such positions is constant, else
    it falls into pieces above t and pieces up to t. All pieces are cut at once. ``low`` is a bound of the projection's
    threshold, which is at least mean - 1 / size: t is not less, and pieces below it are left out. Less the sum of z - t, a
    message is only clipped, so a scan of intervals computes all of them without rounding. Messages come from the right.
    Positions that they do not decide are as the one before; the first one is always decided.
    """
    place = tl.arange(0, FEW)[None, :]
    slack = 1e-10 + 1e-10 * lam  # above what is lost by rounding
    while some(moving) == 1:
        longest = tl.max(tl.max(tl.where(moving, count, 0), 1), 0)
        message = 0.0 * lam
        behind = 0 * count + FAR
        reach = low + 0.0 * place
        j = 0
        while j < longest:
            at = count - 1 - j - place
            real = moving & (at >= 0)
            code, begin, end, left, right, share, mean, behind = _piece(sums, starts, codes, at, real, behind, lam)
            reach = tl.where(real, tl.maximum(reach, mean - share - 1e4 * slack), reach)
            t = tl.maximum(mean + slack, low)
            beyond = _sum(sums, at + 1, end, real) - (end - 1 - at).to(tl.float64) * t
            lower = tl.where(at + 1 == end, lam * right, -lam - beyond)
            upper = tl.where(at + 1 == end, lam * right, lam - beyond)
            lower, upper = tl.associative_scan((lower, upper), 1, _clipped)
            lower = _clip(message, lower, upper)
            message = total(tl.where(place == FEW - 1, lower, 0.0))
            s = lower + _sum(sums, at, end, real) - (end - at).to(tl.float64) * t
            s = tl.where(at == begin, s + lam * left, s)
            decided = (at == begin) | (s > lam) | (s <= -lam)
            code = code & ~(UP | OPEN | LOW) | tl.where(mean + slack <= low, LOW, 0)
            tl.store(codes + at, code | tl.where(decided, tl.where(s > 0, UP, 0), OPEN), mask=real)
            j += FEW
        low = tl.max(reach, 1, keep_dims=True)
        tl.debug_barrier()
        front, since, label = 0 * count, 0 * count, 0 * count - 1
        before = 0.0 * lam
        seen = 0 * place + 0 * count
        j = 0
        while j < longest:
            at = j + place
            real = moving & (at < count)
            code = tl.load(codes + at, mask=real, other=OPEN)
            after = tl.load(codes + at + 1, mask=moving & (at + 1 < count), other=OPEN)
            z = _sum(sums, at, at + 1, real)
            own = tl.where(code & OPEN != 0, -1, 2 * at + (code // UP & 1))
            now, prior = tl.associative_scan((own, 0 * own - 1), 1, _two)
            now, prior = tl.maximum(now, label), tl.maximum(prior, label)
            label = most(now)
            left = real & (code & (OPEN | SIDE) == 0) & ((prior ^ now) & 1 != 0)
            right = real & (code // 4 & SIDE == 0) & (after & OPEN == 0) & ((after // UP ^ now) & 1 != 0)
            code = code + tl.where(left, 1 + 2 * (prior & 1), 0) + tl.where(right, 4 + 8 * (after // UP & 1), 0)
            keep = real & ((now & 1 != 0) | (code & LOW == 0))
            first = tl.where(keep & (code & SIDE != 0), code & SIDE, -FAR)
            z = tl.where(keep, z, 0.0)
            held, first, running = tl.associative_scan((keep.to(tl.int32), first, z), 1, _moved)
            first = tl.maximum(since, 4 * front + first)
            tl.debug_barrier()
            tl.store(codes + front + held - 1, code, mask=keep)
            tl.store(starts + front + held - 1, first, mask=keep)
            tl.store(sums + front + held, before + running, mask=keep)
            tl.debug_barrier()
            seen = seen | tl.where(left | right, 1, 0) | tl.where(keep & (code // 4 & SIDE == 0), 2, 0)
            front, since, before = front + most(held), most(first), before + total(z)
            j += FEW
        count = tl.where(moving, front, count)
        moving = moving & (most(seen & 1) + most(seen & 2) == 3)  # pieces were cut, and some have two positions
    return count


@triton.jit(do_not_specialize=SIZES)
def fusedmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, work_ptr, rows, n, scale, lam, size1, size2, s0, s1, s2, s3,
    MASKED: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p and its marks for ROWS rows of contiguous [R, n], BLOCK scores at a time. work: float64 [2, R, n + 1].

    The values of total variation differ from their scores by at most 2 lam, so the threshold of the projection is at
    least t = -1 - 2 lam, and scores below t - 2 lam have values below t. These are gaps. The rest moves to the front of
    the memory, where a piece between gaps has lower neighbours, and is cut FEW at a time.
    """
    row, place, _ = tile(rows, n, ROWS, BLOCK)
    apart = rows.to(tl.int64) * (n + 1)
    starts = (work_ptr + apart).to(tl.pointer_type(tl.int32)) + row * (n + 1)  # behind the sums of all rows
    sums, codes, p_row, marks = work_ptr + row * (n + 1), starts + apart, p_ptr + row * n, marks_ptr + row * n
    zero = tl.zeros([ROWS, 1], tl.int32)
    lam64 = zero.to(tl.float64) + lam
    low = -1.001 - 2.001 * lam64
    top = _highest(x_ptr, mask_ptr, row, place, rows, n, size1, size2, s0, s1, s2, s3, MASKED, BLOCK)
    spoilt = top == float("inf")
    count, gone = zero, zero
    PART: tl.constexpr = BLOCK if BLOCK < 256 else 256
    part = tl.arange(0, PART)[None, :]
    for j in range(0, n, PART):
        at = j + part
        inside = (row < rows) & (at < n)
        x = scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
        tl.store(p_row + at, tl.where(spoilt & inside, float("nan"), 0.0), mask=inside)
        tl.store(marks + at, tl.where(spoilt & inside, -2, -1).to(tl.int8), mask=inside)
        keep = (x > -float("inf")) & ~spoilt
        z = (x - top) * scale
        up = keep & (z > -1.001 - 4.002 * lam)
        held = tl.cumsum(tl.where(up, 1 << 16, tl.where(keep, 1, 0)), 1)  # those above, and the others
        # With z its place and how many were left out before it: positions with the same number of these are neighbours.
        record = (gone + (held & 0xFFFF)) * FAR_PLACE + at
        record = (z.to(tl.int32, bitcast=True).to(tl.int64) << 32) | record.to(tl.int64)
        tl.store(sums.to(tl.pointer_type(tl.int64)) + count + (held >> 16) - 1, record, mask=up)
        held = most(held)
        count, gone = count + (held >> 16), gone + (held & 0xFFFF)
    tl.debug_barrier()
    few = tl.arange(0, FEW)[None, :]
    longest = tl.max(tl.max(count, 1), 0)
    records, scores = sums.to(tl.pointer_type(tl.int32)), sums.to(tl.pointer_type(tl.float32))
    since, number, seen, whole = zero, zero, 0 * few + zero, 0.0 * lam64
    j = 0
    while j < longest:
        at = j + few
        real = at < count
        own = tl.load(records + 2 * at, mask=real, other=0)
        before = tl.load(records + 2 * at - 2, mask=real & (few > 0), other=0) // FAR_PLACE
        before = tl.where(few > 0, before, number)
        after = tl.load(records + 2 * at + 2, mask=at + 1 < count, other=0) // FAR_PLACE
        after = tl.where(at + 1 < count, after, gone)
        z = tl.load(scores + 2 * at + 1, mask=real, other=0.0).to(tl.float64)
        mine = own // FAR_PLACE
        left = tl.where(mine != before, 1, tl.where(at == 0, 2, 0))
        right = tl.where(mine != after, 1, tl.where(at + 1 == count, 2, 0))
        first, running = tl.associative_scan((tl.where(left != 0, 4 * at + left, 0), z), 1, _since)
        first = tl.maximum(since, first)
        tl.debug_barrier()
        tl.store(codes + at, own % FAR_PLACE * PLACE + left + 4 * right, mask=real)
        tl.store(starts + at, first, mask=real)
        tl.store(sums + at, whole + running - z, mask=real)
        tl.debug_barrier()
        since, number, whole = most(first), most(mine), whole + total(z)
        seen = seen | tl.where(real & (right == 0), 1, 0)
        j += FEW
    tl.store(sums + count, whole, mask=row < rows)
    tl.debug_barrier()
    count = _cut(sums, starts, codes, count, lam64, low, most(seen) == 1, FEW)
    longest = tl.max(tl.max(count, 1), 0)
    peak = 0.0 * lam64 - float("inf")
    values = starts.to(tl.pointer_type(tl.float32))
    for turn in range(2):  # the highest value, then all values less the highest
        behind = zero + FAR
        j = 0
        while j < longest:
            at = count - 1 - j - few
            real = at >= 0
            of = _piece(sums, starts, codes, at, real, behind, lam64)
            mean, behind = of[6], of[7]
            peak = tl.maximum(peak, most(tl.where(real, mean, -float("inf"))))
            tl.store(values + at, (mean - peak).to(tl.float32), mask=real & (turn == 1))
            j += FEW
    tl.debug_barrier()
    _project(values, codes, p_row, marks, count, False, FEW)


@triton.jit
def _sorted(keys, apart, count, FEW: tl.constexpr):
    """Sort ``count`` keys in decreasing order, by a bitonic network; returns 0 or ``apart``: keys + that are sorted.

    It compares in one direction only, so that what is behind ``count`` needs no memory; its steps read and write keys and
    keys + apart in turn.
    """
    place = tl.arange(0, FEW)[None, :]
    longest = tl.max(tl.max(count, 1), 0)
    here = apart * 0
    size = 2
    while size < 2 * longest:
        step = size - 1
        following = size // 4
        while step > 0:
            j = 0
            while j < longest:
                at = j + place
                partner = at ^ step
                both = (at < count) & (partner < count)
                key = tl.load(keys + here + at, mask=at < count, other=0)
                other = tl.load(keys + here + partner, mask=both, other=0)
                key = tl.where(both & ((partner > at) == (other > key)), other, key)
                tl.store(keys + (apart - here) + at, key, mask=at < count)
                j += FEW
            here = apart - here
            tl.debug_barrier()
            step = following
            following = following // 2
        size = size * 2
    return here


@triton.jit(do_not_specialize=SIZES)
def oscarmax_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, order_ptr, work_ptr, rows, n, scale, lam, size1, size2, s0, s1, s2, s3,
    MASKED: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p, its marks and the order of the scores for ROWS rows. work: float64 [2, R, n + 1], of which a program uses its rows alone.

    A score is pulled down by at most lam (c - 1), where c scores are left. So only those above top - 1 - lam (c - 1) can be
    in the support, and the others, which are behind them, do not change them. With s in decreasing order, ``s_i + lam i``
    is pooled until the result decreases (isotonic regression). All violations are pooled at once, since two adjacent blocks
    in the wrong order always end up in one block. If all scores are above top - lam c / 2, they are one block, in any order.
    """
    row, place, _ = tile(rows, n, ROWS, BLOCK)
    PART: tl.constexpr = BLOCK if BLOCK < 256 else 256
    part, few = tl.arange(0, PART)[None, :], tl.arange(0, FEW)[None, :]
    apart = rows.to(tl.int64) * (n + 1)
    keys = (work_ptr + row * (n + 1)).to(tl.pointer_type(tl.int64))
    order, marks, p_row = order_ptr + row * n, marks_ptr + row * n, p_ptr + row * n
    zero = tl.zeros([ROWS, 1], tl.int32)
    lam64 = zero.to(tl.float64) + lam
    top = _highest(x_ptr, mask_ptr, row, place, rows, n, size1, size2, s0, s1, s2, s3, MASKED, BLOCK)
    spoilt = top == float("inf")
    left = zero
    for j in range(0, n, BLOCK):
        inside = (row < rows) & (j + place < n) & ~spoilt
        x = scores_of(x_ptr, mask_ptr, row, j + place, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
        left += total(((x - top) * scale > -1.001 - lam * n).to(tl.int32))
    count, least = zero, zero.to(tl.float32)
    for j in range(0, n, PART):
        at = j + part
        inside = (row < rows) & (at < n)
        x = scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
        tl.store(p_row + at, tl.where(spoilt & inside, float("nan"), 0.0), mask=inside)
        tl.store(marks + at, tl.where(spoilt & inside, -2, -1).to(tl.int8), mask=inside)
        z = (x - top) * scale
        keep = (z > -1.001 - lam * left) & ~spoilt
        upto = count + tl.cumsum(keep.to(tl.int32), 1)
        bits = (z + 0.0).to(tl.int32, bitcast=True)  # one zero
        bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        tl.store(keys + upto - 1, (bits.to(tl.int64) << 32) | (0x7FFFFFFF - at).to(tl.int64), mask=keep)
        tl.store(order + n - 1 - (at - upto), (at + 0 * upto).to(tl.int16), mask=inside & ~keep)
        count = most(upto)
        least = tl.minimum(least, -most(tl.where(keep, -z, 0.0)))
    tl.debug_barrier()
    one = least > -0.4999 * lam * count
    here = apart * 0
    if some(~one) == 1:
        here = _sorted(keys, apart, count, FEW)
    sums = (keys + (apart - here)).to(tl.pointer_type(tl.float64))
    codes = (keys + here).to(tl.pointer_type(tl.int32))
    starts = (codes + n + 1).to(tl.pointer_type(tl.int16))  # of blocks, two lists in turn
    longest = tl.max(tl.max(count, 1), 0)
    whole = 0.0 * lam64
    j = 0
    while j < longest:
        at = j + few
        key = tl.load(keys + here + at, mask=at < count, other=0)
        bits = (key >> 32).to(tl.int32)
        score = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True).to(tl.float64)
        lifted = tl.where(at < count, score + lam64 * (at + 1), 0.0)
        tl.store(sums + at, whole + tl.cumsum(lifted, 1) - lifted, mask=at < count)
        tl.store(order + at, (0x7FFFFFFF - (key & 0x7FFFFFFF)).to(tl.int16), mask=at < count)
        whole += total(lifted)
        j += FEW
    tl.store(sums + count, whole, mask=row < rows)
    tl.debug_barrier()
    j = 0
    while j < longest:
        at = j + few
        tl.store(codes + at, tl.load(order + at, mask=at < count, other=0).to(tl.int32) * PLACE, mask=at < count)
        tl.store(starts + at, tl.where(one & (at > 0), count, at + 0 * count).to(tl.int16), mask=at < count)
        j += FEW
    tl.store(starts + count, count.to(tl.int16), mask=row < rows)
    blocks = tl.where(one & (count > 0), 1, count)
    using = 0 * n
    merged = 1
    while merged == 1:
        tl.debug_barrier()
        merged = 0
        most_blocks = tl.max(tl.max(blocks, 1), 0)
        front = zero
        j = 0
        while j < most_blocks:
            real = j + few < blocks
            mean, begin = _block(sums, starts + using + j + few, real)
            before, earlier = _block(sums, starts + using + j + few - 1, real & (j + few > 0))
            pooled = real & (j + few > 0) & (mean > before)
            held = front + tl.cumsum((real & ~pooled).to(tl.int32), 1)
            tl.store(starts + (n + 1 - using) + held - 1, begin.to(tl.int16), mask=real & ~pooled)
            front = most(held)
            merged = tl.maximum(merged, some(pooled))
            j += FEW
        tl.store(starts + (n + 1 - using) + front, count.to(tl.int16), mask=row < rows)
        using = n + 1 - using
        blocks = front
    tl.debug_barrier()
    peak, begin_of_first = _block(sums, starts + using, count > 0)
    values = sums.to(tl.pointer_type(tl.float32))
    most_blocks = tl.max(tl.max(blocks, 1), 0)
    j = 0
    while j < most_blocks:
        real = j + few < blocks
        mean, begin = _block(sums, starts + using + j + few, real)
        code = tl.load(codes + begin, mask=real, other=0)
        tl.debug_barrier()
        tl.store(values + begin, (mean - peak).to(tl.float32), mask=real)
        tl.store(codes + begin, code + 1, mask=real)
        tl.debug_barrier()
        j += FEW
    since = zero
    j = 0
    while j < longest:
        at = j + few
        code = tl.load(codes + at, mask=at < count, other=0)
        begin = tl.maximum(tl.associative_scan(tl.where(code & SIDE != 0, at + 0 * code, 0), 1, _most), since)
        value = tl.load(values + begin, mask=at < count, other=0.0)
        since = most(begin)
        tl.debug_barrier()
        tl.store(values + at, value, mask=at < count)
        tl.debug_barrier()
        j += FEW
    _project(values, codes, p_row, marks, count, True, FEW)


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
