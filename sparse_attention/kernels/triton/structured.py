"""fusedmax and oscarmax on the GPU: one kernel forward and one backward; a row is solved by one warp.

The forward saves one int8 per position, `marks`: 1 for the first position of a group, 0 for its other positions, -1 off
the support, and -2 in a row with NaN. For fusedmax, the marks are in the order of the positions. For oscarmax, they are
in the order of the scores, which is saved as well (int16 [R, n]).

Scores that are certainly off the support are left out first, which takes most of a long row. ``work`` is memory for
passing values between the threads of a program: after a barrier, a thread can read what another one has stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import SIZES, most, scores_of, some, standing, tile, total, totals

# Of a position in a piece: 0 inside it, else its neighbour beyond the border: 1 lower, 2 none, 3 higher. A code has
# this for its left, in SIDE, and for its right, times 4; three flags; and its place in the row, times PLACE.
SIDE, UP, OPEN, LOW, PLACE = tl.constexpr(3), tl.constexpr(16), tl.constexpr(32), tl.constexpr(64), tl.constexpr(128)
FAR, LONGEST = tl.constexpr(1 << 30), tl.constexpr(1 << 14)


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
def _clip(x, low, high):
    """By selections: they take a third of the instructions of minima and maxima in float64."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def _clipped(low, high, low2, high2):
    """Clipping to [low, high] and then to [low2, high2] is clipping to one interval."""
    return _clip(low, low2, high2), _clip(high, low2, high2)


@triton.jit
def _most(a, b):
    return tl.maximum(a, b)


@triton.jit
def _two(a, before, b, before2):
    """The two largest numbers."""
    return tl.maximum(a, b), tl.maximum(tl.minimum(a, b), tl.maximum(before, before2))


@triton.jit
def _moved(count, begin, whole, count2, begin2, whole2):
    """Numbers of positions, 4 times the last one that begins a piece, and sums."""
    return count + count2, tl.maximum(begin, 4 * count + begin2), whole + whole2


@triton.jit
def _record(words, at, real, after, ORDERED: tl.constexpr):
    """What `grouped_forward` keeps of a score, and what increases along the row; ``after`` where not ``real``."""
    low = 0x7FFFFFFF - tl.load(words + 2 * at, mask=real, other=0)
    bits = tl.load(words + 2 * at + 1, mask=real, other=0)
    score = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    return low % LONGEST, score, tl.where(real, -score if ORDERED else (low // LONGEST).to(tl.float32), after)


@triton.jit
def _project(values, codes, p_row, marks, count, ORDERED: tl.constexpr, FEW: tl.constexpr):
    """The projection of ``count`` values, of which the highest is 0, onto the simplex; see `simplex_threshold`."""
    place = tl.arange(0, FEW)[None, :]
    longest = tl.max(tl.max(count, 1), 0)
    tau, size = -1.0 + 0.0 * count, 0.0 * count
    moving = count > 0
    while some(moving) == 1:
        mass, now = 0.0 * (count + place), 0.0 * (count + place)
        for j in range(0, longest, FEW):
            d = tl.maximum(tl.load(values + j + place, mask=j + place < count, other=-1e9) - tau, 0.0)
            mass, now = mass + d, now + tl.where(d > 0, 1.0, 0.0)
        mass, now = totals(mass, now)
        tau = tl.where(moving, tau + (mass - 1.0) / now, tau)
        # The support shrinks until it is correct. If it grows again, this is rounding, so stop.
        moving = moving & ((size == 0.0) | (now < size))
        size = now
    for j in range(0, longest, FEW):
        at = j + place
        p = tl.maximum(tl.load(values + at, mask=at < count, other=-1e9) - tau, 0.0)
        code = tl.load(codes + at, mask=at < count, other=0)
        mark = tl.where(p > 0, tl.where(code & SIDE != 0, 1, 0), -1).to(tl.int8)
        tl.store(p_row + code // PLACE, p, mask=at < count)
        tl.store(marks + (at if ORDERED else code // PLACE), mark, mask=at < count)


@triton.jit
def _piece(sums, starts, codes, at, real, behind, edge):
    """From right to left, positions' codes, pieces from begin to end, neighbours (-1 lower, 1 higher), 1 / size, means."""
    code = tl.load(codes + at, mask=real, other=0)
    first = tl.load(starts + at, mask=real, other=0)
    last = tl.where(code // 4 & SIDE != 0, 4 * at + 4 + (code // 4 & SIDE), FAR)
    last = -tl.maximum(tl.associative_scan(-last, 1, _most), -behind)
    begin, end, left, right = first // 4, last // 4, (first & SIDE) - 2, (last & SIDE) - 2
    share = _inverse(end - begin)
    mean = (_sum(sums, begin, end, real) + edge * (left + right)) * share
    return code, begin, end, left, right, share, mean, -most(-last)


@triton.jit
def _cut(sums, starts, codes, count, edge, floor, ceiling, low, slack, moving, FEW: tl.constexpr):
    """Cut the pieces of rows that are ``moving``, until each is a group or off the support; returns how many positions are left.

    sums: of what is before each position. starts: 4 times the first position of its piece, plus the code of that for its left.
    A piece between two borders, behind which the values are known to be higher or lower, has the mean
    t = (sum of z + edge (higher - lower neighbours)) / size. The positions with values above t solve a problem of two labels,
    whose messages from the right are m' = clip(m + z - t, floor, ceiling). If there are none, the piece is constant, else it
    falls into pieces above t and pieces up to t. All pieces are cut at once. The threshold of the projection is at least
    ``low``, which grows to mean - 1 / size: t is at least that, and pieces up to it are left out. Less the sum of z - t, a
    message is only clipped, so a scan of intervals computes all of them without rounding. Positions that their messages do
    not decide are as the one before; the first one is always decided.
    """
    place = tl.arange(0, FEW)[None, :]
    while some(moving) == 1:
        longest = tl.max(tl.max(tl.where(moving, count, 0), 1), 0)
        message, behind, reach = 0.0 * low, 0 * count + FAR, low + 0.0 * place
        for j in range(0, longest, FEW):
            at = count - 1 - j - place
            real = moving & (at >= 0)
            code, begin, end, left, right, share, mean, behind = _piece(sums, starts, codes, at, real, behind, edge)
            reach = tl.where(real & (mean - share - 1e4 * slack > reach), mean - share - 1e4 * slack, reach)
            t = tl.where(mean + slack > low, mean + slack, low)
            beyond = _sum(sums, at + 1, end, real) - (end - 1 - at).to(tl.float64) * t
            lower = tl.where(at + 1 == end, edge * right, floor - beyond)
            upper = tl.where(at + 1 == end, edge * right, ceiling - beyond)
            lower, upper = tl.associative_scan((lower, upper), 1, _clipped)
            lower = _clip(message, lower, upper)
            message = total(tl.where(place == FEW - 1, lower, 0.0))
            s = lower + _sum(sums, at, end, real) - (end - at).to(tl.float64) * t
            s = tl.where(at == begin, s + edge * left, s)
            decided = (at == begin) | (s > ceiling) | (s <= floor)
            code = code & ~(UP | OPEN | LOW) | tl.where(mean + slack <= low, LOW, 0)
            tl.store(codes + at, code | tl.where(decided, tl.where(s > 0, UP, 0), OPEN), mask=real)
        low = most(reach)
        tl.debug_barrier()
        front, since, label, before = 0 * count, 0 * count, 0 * count - 1, 0.0 * low
        seen = 0 * (count + place)
        for j in range(0, longest, FEW):
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
        count = tl.where(moving, front, count)
        moving = moving & (most(seen & 1) + most(seen & 2) == 3)  # pieces were cut, and one has two positions
    return count


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
        step, following = size - 1, size // 4
        while step > 0:
            for j in range(0, longest, FEW):
                at = j + place
                partner = at ^ step
                both = (at < count) & (partner < count)
                key = tl.load(keys + here + at, mask=at < count, other=0)
                other = tl.load(keys + here + partner, mask=both, other=0)
                key = tl.where(both & ((partner > at) == (other > key)), other, key)
                tl.store(keys + (apart - here) + at, key, mask=at < count)
            here = apart - here
            tl.debug_barrier()
            step, following = following, following // 2
        size = size * 2
    return here


@triton.jit(do_not_specialize=SIZES)
def grouped_forward(
    x_ptr, mask_ptr, p_ptr, marks_ptr, order_ptr, work_ptr, rows, n, scale, lam, size1, size2, s0, s1, s2, s3,
    ORDERED: tl.constexpr, MASKED: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p, its marks and, if ORDERED, the order of the scores for ROWS rows. work: float64 [2, R, n + 1]; each row has its own.

    Scores that can be in the support move to the front of the memory, and are cut into groups, FEW at a time.

    fusedmax: the values of total variation differ from their scores by at most 2 lam, so the threshold of the projection
    is at least t = -1 - 2 lam, and scores below t - 2 lam have values below t. A piece between such gaps has lower neighbours.

    oscarmax: a score is pulled down by at most lam (c - 1), where c scores are left; those below -1 - lam (c - 1) are behind
    the support, and do not change it. With s in decreasing order, ``s_i + lam i`` is pooled until the result decreases
    (isotonic regression): this is cut in the same way, but nothing is paid between a higher and a lower value, and the
    reverse is excluded. Between scores that differ by lam (c - 1) there is a border. If all scores differ by less than
    lam c / 2, they are one group, since a part of c' scores exceeds the mean of all by at most lam (c - c') / 2.
    """
    row, place, _ = tile(rows, n, ROWS, BLOCK)
    PART: tl.constexpr = BLOCK if BLOCK < 256 else 256
    part, few = tl.arange(0, PART)[None, :], tl.arange(0, FEW)[None, :]
    order, marks, p_row = order_ptr + row * n, marks_ptr + row * n, p_ptr + row * n
    keys, apart = (work_ptr + row * (n + 1)).to(tl.pointer_type(tl.int64)), rows.to(tl.int64) * (n + 1)
    zero = tl.zeros([ROWS, 1], tl.int32)
    lam64 = lam + zero.to(tl.float64)
    top = zero.to(tl.float32) - float("inf")
    for j in range(0, n, BLOCK):
        inside = (row < rows) & (j + place < n)
        x = scores_of(x_ptr, mask_ptr, row, j + place, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
        top = tl.maximum(top, standing(x)[0])
    spoilt = top == float("inf")
    bound = -1.001 - 4.000002 * lam + 0.0 * zero
    if ORDERED:
        most_left = zero
        for j in range(0, n, BLOCK):
            inside = (row < rows) & (j + place < n)
            x = scores_of(x_ptr, mask_ptr, row, j + place, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
            most_left += total(((x - top) * scale > -1.001 - lam * n).to(tl.int32))
        bound = -1.001 - lam * most_left
    count, gone, least = zero, zero, zero.to(tl.float32)
    for j in range(0, n, PART):
        at = j + part
        inside = (row < rows) & (at < n)
        x = scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
        z = (x - top) * scale + 0.0  # one zero
        kept = (x > -float("inf")) & ~spoilt
        up = kept & (z > bound)
        held = tl.cumsum(tl.where(up, LONGEST * 4, tl.where(kept, 1, 0)), 1)  # those above, and the others
        held, passed = count + held // (LONGEST * 4), gone + held % (LONGEST * 4)
        # The score's bits in the order of numbers, then the complement of how many were passed before it, and its place.
        bits = z.to(tl.int32, bitcast=True)
        bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        key = (bits.to(tl.int64) << 32) | (0x7FFFFFFF - passed * LONGEST - at).to(tl.int64)
        tl.store(keys + held - 1, key, mask=up)
        tl.store(p_row + at, tl.where(spoilt & inside, float("nan"), 0.0), mask=inside)
        tl.store(marks + at, tl.where(spoilt & inside, -2, -1).to(tl.int8), mask=inside)
        if ORDERED:
            tl.store(order + n - 1 - (at - held), (at + 0 * held).to(tl.int16), mask=inside & ~up)
            least = tl.minimum(least, -most(tl.where(up, -z, 0.0)))
        count, gone = most(held), most(passed)
    tl.debug_barrier()
    here, one = apart * 0, spoilt
    jump, edge, floor, ceiling, low, slack = 1.0, lam64, -lam64, lam64, -1.001 - 2 * lam64, 1e-10 + 1e-10 * lam64
    if ORDERED:
        one = least > -0.4999 * lam * count
        if some(~one) == 1:
            here = _sorted(keys, apart, count, FEW)
        jump, edge, floor, ceiling = lam * (count - 1), 0.0 * lam64, 0.0 * lam64, 0.0 * lam64 + float("inf")
        low, slack = lam64 - 1.001, 1e-10 + 1e-10 * lam64 * count
    sums, starts = keys + here, (keys + (apart - here)).to(tl.pointer_type(tl.int32))
    words, sums, codes = sums.to(tl.pointer_type(tl.int32)), sums.to(tl.pointer_type(tl.float64)), starts + n + 1
    longest = tl.max(tl.max(count, 1), 0)
    since, seen, whole, previous = zero, 0 * (few + zero), 0.0 * lam64, zero.to(tl.float32)
    for j in range(0, longest, FEW):
        at = j + few
        real = at < count
        source, score, height = _record(words, at, real, 0.0, ORDERED)
        before = _record(words, at - 1, real & (few > 0), previous, ORDERED)[2]
        after = _record(words, at + 1, at + 1 < count, gone.to(tl.float32), ORDERED)[2]
        left = tl.where((height - before >= jump) & ~one, 1, tl.where(at == 0, 2, 0))
        right = tl.where((after - height >= jump) & ~one, 1, tl.where(at + 1 == count, 2, 0))
        z = tl.where(real, score.to(tl.float64) + (lam64 * (at + 1) if ORDERED else 0.0), 0.0)
        first = tl.maximum(since, tl.associative_scan(tl.where(left != 0, 4 * at + left, 0), 1, _most))
        running = whole + tl.cumsum(z, 1)
        tl.debug_barrier()
        tl.store(codes + at, source * PLACE + left + 4 * right, mask=real)
        tl.store(starts + at, first, mask=real)
        tl.store(sums + at, running - z, mask=real)
        if ORDERED:
            tl.store(order + at, source.to(tl.int16), mask=real)
        tl.debug_barrier()
        since, previous, whole = most(first), most(height), whole + total(z)
        seen = seen | tl.where(real & (right == 0) & ~one, 1, 0)
    tl.store(sums + count, whole, mask=row < rows)
    tl.debug_barrier()
    count = _cut(sums, starts, codes, count, edge, floor, ceiling, low, slack, most(seen) == 1, FEW)
    longest = tl.max(tl.max(count, 1), 0)
    values, peak = starts.to(tl.pointer_type(tl.float32)), 0.0 * lam64 - float("inf")
    for turn in range(2):  # the highest value, then all values less the highest
        behind = zero + FAR
        for j in range(0, longest, FEW):
            at = count - 1 - j - few
            of = _piece(sums, starts, codes, at, at >= 0, behind, edge)
            mean, behind = of[6], of[7]
            peak = tl.maximum(peak, most(tl.where(at >= 0, mean, -float("inf"))))
            tl.store(values + at, (mean - peak).to(tl.float32), mask=(at >= 0) & (turn == 1))
    tl.debug_barrier()
    _project(values, codes, p_row, marks, count, ORDERED, FEW)


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
    running, counted, group = tl.cumsum(g, 1), tl.cumsum(on.to(tl.int32), 1), tl.cumsum((mark == 1).to(tl.int32), 1)
    whole, size = total(g), total(on.to(tl.int32))
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
