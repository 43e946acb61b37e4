"""GPU kernels of mappings with one threshold or scale per row: softmax, sparsemax, entmax, pnormmax, sparsecone, sparsehourglass.

Each program keeps its rows in registers and finds the thresholds by Newton's method. The mathematics and
names are those of ``kernels/native/src/thresholds.h``: with b = scale (x - max x), the threshold tau lies in [-1, 0).
The root finder works on sums of d = (b - tau)_+. Loads convert to float32, all computation is in float32, and the store
rounds once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import SIZES, most, power, scores_of, simplex_threshold, some, standing, tile, total, totals

SPARSEMAX, ENTMAX15, ENTMAX, PNORMMAX = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
SOFTMAX, CONE, HOURGLASS = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


@triton.jit
def _cone_scale(x, q, MIRRORED: tl.constexpr):
    """Returns alpha = (1 + K q) / (|sum x| + K q) over the K kept entries, its denominator, and the sign of the sum."""
    keep = x > -float("inf")
    kept, amount = totals(tl.where(keep, 1.0, 0.0), tl.where(keep, x, 0.0))
    offset = kept * q
    sign = 0.0 * amount + 1.0
    if MIRRORED:
        sign = tl.where(amount > 0, 1.0, tl.where(amount < 0, -1.0, 0.0))
        amount = tl.abs(amount)
    below = amount + offset
    return (1.0 + offset) / below, below, sign


@triton.jit(do_not_specialize=SIZES)
def simplex_forward(
    x_ptr, mask_ptr, p_ptr, rows, n, scale, r, size1, size2, s0, s1, s2, s3,
    RULE: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p = mapping(x) for ROWS rows of contiguous [R, n] arrays; BLOCK is a power of two and at least n.

    ``r`` is 1/(alpha - 1) for ENTMAX, q = p/(p - 1) for PNORMMAX, and q for CONE and HOURGLASS; otherwise it is unused.
    """
    row, at, inside = tile(rows, n, ROWS, BLOCK)
    x = scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
    top, empty, infinite = standing(x)
    keep = x > -float("inf")
    if (RULE == CONE) | (RULE == HOURGLASS):
        x = tl.where(infinite, 0.0, x)
        alpha, _, _ = _cone_scale(x, r, RULE == HOURGLASS)
        infinite = infinite | ((tl.abs(alpha) == float("inf")) & (top > -float("inf")))
        x = tl.where(keep, alpha * x, -float("inf"))
        top = most(x)
    b = tl.where(keep, tl.maximum((x - top) * scale, -1e9), -1e9)
    # Rows that are empty or contain NaN or +inf are computed with zeros.
    b = tl.where(infinite | empty, tl.where(at < n, 0.0, -1e9), b)

    if RULE == SOFTMAX:
        d = tl.where(b > -1e9, tl.exp2(b * 1.4426950408889634), 0.0)
        p = d / total(d)
    elif (RULE == PNORMMAX) | (RULE == ENTMAX15) | (RULE == ENTMAX):
        tau = most(b) - 1.0  # the threshold of only the largest entry, which is at most the threshold
        lo = tau
        hi = 0.0 * tau
        moving = tau == tau
        passes = 0
        while (some(moving) == 1) & (passes < 60):
            d = tl.maximum(b - tau, 0.0)
            if RULE == PNORMMAX:
                w = power(d, r - 2.0)
                # power gives 0 where d is 0, so d^0 counts the support if q = 2
                v = w * d
                s0_ = total(w)
                s1_, s2_ = totals(v, v * d)
                norm = tl.exp2((r - 2.0) / r * tl.log2(s2_))
                value = s1_ / norm - 1.0
                slope = ((r - 2.0) * s1_ * s1_ / s2_ - (r - 1.0) * s0_) / norm
                lo = tl.where(value > 0, tau, lo)
                hi = tl.where(value > 0, hi, tau)
                step = tl.where(moving, -value / slope, 0.0)
                following = tau + step
                following = tl.where((following > lo) & (following < hi), following, 0.5 * (lo + hi))
                # The last step is taken without the bracket.
                moving = moving & (tl.abs(step) > -4e-6 * tau)
                tau = tl.where(moving, following, tau + step)
            else:  # Newton's method on the r-norm of d, which is convex: tau increases to the root and never passes it
                if RULE == ENTMAX15:
                    f, slope = totals(d * d, d)
                    step = (f - tl.sqrt(f)) / slope
                else:
                    q = power(d, r - 1.0)
                    f, slope = totals(q * d, q)
                    step = (f - tl.exp2((1.0 - 1.0 / r) * tl.log2(f))) / slope
                tau = tl.where(moving, tau + step, tau)
                moving = moving & (tl.abs(step) > -4e-6 * tau)
            passes += 1
        d = tl.maximum(b - tau, 0.0)
        if RULE == PNORMMAX:
            p = power(d, r - 1.0)
            p = p / total(p)
        elif RULE == ENTMAX15:
            p = d * d
        else:
            p = power(d, r)
    else:
        p = tl.maximum(b - simplex_threshold(b), 0.0)
    p = tl.where(empty, 0.0, p)
    p = tl.where(infinite, float("nan"), p)
    tl.store(p_ptr + row * n + at, p, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def weighted_backward(g_ptr, p_ptr, dx_ptr, rows, n, scale, exponent, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """dx = scale (s g - s (sum s g) / (sum s)), with s = p^exponent on the support.

    The exponent is 0 for sparsemax, 2 - alpha for entmax, and 1 for softmax.
    """
    row, at, inside = tile(rows, n, ROWS, BLOCK)
    p = tl.load(p_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.where(p == p, power(p, exponent), p)
    mass, along = totals(s, s * g)
    mean = along / tl.where(mass == 0, 1.0, mass)
    tl.store(dx_ptr + row * n + at, scale * s * (g - mean), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def pnormmax_backward(g_ptr, p_ptr, dx_ptr, rows, n, norm, gamma, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """dx = H^-1 (g - m 1) on the support, H the Hessian (diagonal plus rank one); see native/src/simplex_mappings.h."""
    PART: tl.constexpr = BLOCK if BLOCK < 8192 else 8192  # the registers do not hold three arrays of a longer row
    row, place, _ = tile(rows, n, ROWS, PART)
    start = row * n
    rest = tl.where(row < rows, n, 0)
    whole = tl.zeros([ROWS, 1], tl.float32)
    along, mass, weighted = whole, whole, whole
    for j in range(0, n, PART):
        at = j + place
        y = tl.load(p_ptr + start + at, mask=at < rest, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + start + at, mask=at < rest, other=0.0).to(tl.float32)
        w = tl.where(y == y, power(y, 2.0 - norm), y)
        one, two = totals(power(y, norm), y * g)
        three, four = totals(w, w * g)
        whole, along, mass, weighted = whole + one, along + two, mass + three, weighted + four
    empty = whole == 0
    log_total = tl.log2(tl.where(empty, 1.0, whole))
    front = 1.0 / (gamma * (norm - 1.0))
    diagonal = front * tl.exp2((norm - 2.0) / norm * log_total)
    rank = front * (2.0 - norm) * tl.exp2(-2.0 / norm * log_total)
    mean = (diagonal * weighted - rank * along) / tl.where(empty, 1.0, diagonal * mass - rank)
    for j in range(0, n, PART):
        at = j + place
        y = tl.load(p_ptr + start + at, mask=at < rest, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + start + at, mask=at < rest, other=0.0).to(tl.float32)
        w = tl.where(y == y, power(y, 2.0 - norm), y)
        tl.store(dx_ptr + start + at, diagonal * w * (g - mean) - rank * (along - mean) * y, mask=at < rest)


@triton.jit(do_not_specialize=SIZES)
def cone_backward(
    g_ptr, p_ptr, x_ptr, mask_ptr, dx_ptr, rows, n, q, size1, size2, s0, s1, s2, s3,
    MIRRORED: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For p = sparsemax(alpha z), dz = alpha u - (sum z u) alpha sgn / (|sum z| + K q) at kept entries; u = J g."""
    row, at, inside = tile(rows, n, ROWS, BLOCK)
    p = tl.load(p_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    spoilt = most(tl.where(p != p, 1, 0)) == 1
    s = tl.where(p > 0, 1.0, 0.0)
    size, mass = totals(s, s * g)
    u = s * (g - mass / tl.maximum(size, 1.0))
    # the registers of a long row do not hold the scores before this
    x = scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED)
    keep = x > -float("inf")
    x = tl.where(spoilt, 0.0, x)
    alpha, below, sign = _cone_scale(x, q, MIRRORED)
    along = total(tl.where(keep, x, 0.0) * u)
    dx = tl.where(keep, alpha * (u - along * sign / below), 0.0)
    tl.store(dx_ptr + row * n + at, tl.where(spoilt, float("nan"), dx), mask=inside)
