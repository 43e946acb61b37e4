"""GPU kernels of mappings with one threshold or scale per row.

These are softmax, sparsemax, entmax, pnormmax, sparsecone and sparsehourglass.

Each program handles one row, keeps it in registers, and finds the threshold by Newton's method. The mathematics and
names are those of ``kernels/native/src/thresholds.h``: with b = scale (x - max x), the threshold tau lies in [-1, 0).
The root finder works on sums of d = (b - tau)_+. Loads convert to float32, all computation is in float32, and the store
rounds once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import SIZES, power, scores_of, simplex_threshold, standing

SPARSEMAX, ENTMAX15, ENTMAX, PNORMMAX = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
SOFTMAX, CONE, HOURGLASS = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


@triton.jit
def _cone_scale(x, q, MIRRORED: tl.constexpr):
    """Returns alpha = (1 + K q) / (|sum x| + K q) over the K kept entries, its denominator, and the sign of the sum."""
    keep = x > -float("inf")
    offset = tl.sum(tl.where(keep, 1.0, 0.0), 0) * q
    total = tl.sum(tl.where(keep, x, 0.0), 0)
    sign = 0.0 * total + 1.0
    if MIRRORED:
        sign = tl.where(total > 0, 1.0, tl.where(total < 0, -1.0, 0.0))
        total = tl.abs(total)
    below = total + offset
    return (1.0 + offset) / below, below, sign


@triton.jit(do_not_specialize=SIZES)
def simplex_forward(
    x_ptr, mask_ptr, p_ptr, rows, n, size1, size2, s0, s1, s2, s3, scale, r,
    RULE: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p = mapping(x) for row ``program_id(0)`` of contiguous [R, n] arrays; BLOCK is a power of two and at least n.

    ``r`` is 1/(alpha - 1) for ENTMAX, q = p/(p - 1) for PNORMMAX, and q for CONE and HOURGLASS; otherwise it is unused.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    x = scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED)
    top, empty, infinite = standing(x)
    keep = inside & (x > -float("inf"))
    if (RULE == CONE) | (RULE == HOURGLASS):
        x = tl.where(infinite, 0.0, x)
        alpha, _, _ = _cone_scale(x, r, RULE == HOURGLASS)
        infinite = infinite | ((tl.abs(alpha) == float("inf")) & (top > -float("inf")))
        x = tl.where(keep, alpha * x, -float("inf"))
        top = tl.max(x, 0)
    b = tl.where(keep, tl.maximum((x - top) * scale, -1e9), -1e9)
    # Rows that are empty or contain NaN or +inf are computed with zeros.
    b = tl.where(infinite | empty, tl.where(inside, 0.0, -1e9), b)

    if RULE == SOFTMAX:
        d = tl.where(b > -1e9, tl.exp2(b * 1.4426950408889634), 0.0)
        p = d / tl.sum(d, 0)
    elif RULE == PNORMMAX:
        tau = tl.max(b, 0) - 1.0  # the threshold of only the largest entry, which is at most the threshold
        lo = tau
        hi = 0.0 * tau
        step = 0.0 * tau + 1.0
        passes = 0
        while (tl.abs(step) > -4e-6 * tau) & (passes < 60):
            d = tl.maximum(b - tau, 0.0)
            w = power(d, r - 2.0)
            # power gives 0 where d is 0, so d^0 counts the support if q = 2
            v = w * d
            s0_ = tl.sum(w, 0)
            s1_ = tl.sum(v, 0)
            s2_ = tl.sum(v * d, 0)
            norm = tl.exp2((r - 2.0) / r * tl.log2(s2_))
            value = s1_ / norm - 1.0
            slope = ((r - 2.0) * s1_ * s1_ / s2_ - (r - 1.0) * s0_) / norm
            lo = tl.where(value > 0, tau, lo)
            hi = tl.where(value > 0, hi, tau)
            step = -value / slope
            following = tau + step
            following = tl.where((following > lo) & (following < hi), following, 0.5 * (lo + hi))
            # The last step is taken without the bracket.
            tau = tl.where(tl.abs(step) > -4e-6 * tau, following, tau + step)
            passes += 1
        p = power(tl.maximum(b - tau, 0.0), r - 1.0)
        p = p / tl.sum(p, 0)
    elif (RULE == ENTMAX15) | (RULE == ENTMAX):
        # Newton's method on the r-norm of d, which is convex: tau increases to the root and never passes it.
        tau = tl.max(b, 0) - 1.0
        step = 0.0 * tau + 1.0
        passes = 0
        while (tl.abs(step) > -4e-6 * tau) & (passes < 60):
            d = tl.maximum(b - tau, 0.0)
            if RULE == ENTMAX15:
                f = tl.sum(d * d, 0)
                step = (f - tl.sqrt(f)) / tl.sum(d, 0)
            else:
                q = power(d, r - 1.0)
                f = tl.sum(q * d, 0)
                step = (f - tl.exp2((1.0 - 1.0 / r) * tl.log2(f))) / tl.sum(q, 0)
            tau += step
            passes += 1
        d = tl.maximum(b - tau, 0.0)
        if RULE == ENTMAX15:
            p = d * d
        else:
            p = power(d, r)
    else:
        p = tl.maximum(b - simplex_threshold(b), 0.0)
    p = tl.where(empty, 0.0, p)
    p = tl.where(infinite, float("nan"), p)
    tl.store(p_ptr + row * n + at, p, mask=inside)


@triton.jit
def weighted_backward(g_ptr, p_ptr, dx_ptr, n, scale, exponent, BLOCK: tl.constexpr):
    """dx = scale (s g - s (sum s g) / (sum s)), with s = p^exponent on the support.

    The exponent is 0 for sparsemax, 2 - alpha for entmax, and 1 for softmax.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    p = tl.load(p_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.where(p == p, power(p, exponent), p)
    mass = tl.sum(s, 0)
    mean = tl.sum(s * g, 0) / tl.where(mass == 0, 1.0, mass)
    tl.store(dx_ptr + row * n + at, scale * s * (g - mean), mask=inside)


@triton.jit
def pnormmax_backward(g_ptr, p_ptr, dx_ptr, n, norm, gamma, BLOCK: tl.constexpr):
    """dx = H^-1 (g - m 1) on the support, H the Hessian (diagonal plus rank one); see native/src/simplex_mappings.h."""
    start = tl.program_id(0).to(tl.int64) * n
    PART: tl.constexpr = BLOCK if BLOCK < 8192 else 8192  # the registers do not hold three arrays of a longer row
    total, along, mass, weighted = 0.0, 0.0, 0.0, 0.0
    for j in range(0, n, PART):
        at = j + tl.arange(0, PART)
        y = tl.load(p_ptr + start + at, mask=at < n, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + start + at, mask=at < n, other=0.0).to(tl.float32)
        w = tl.where(y == y, power(y, 2.0 - norm), y)
        total += tl.sum(power(y, norm), 0)
        along += tl.sum(y * g, 0)
        mass += tl.sum(w, 0)
        weighted += tl.sum(w * g, 0)
    empty = total == 0
    log_total = tl.log2(tl.where(empty, 1.0, total))
    front = 1.0 / (gamma * (norm - 1.0))
    diagonal = front * tl.exp2((norm - 2.0) / norm * log_total)
    rank = front * (2.0 - norm) * tl.exp2(-2.0 / norm * log_total)
    mean = (diagonal * weighted - rank * along) / tl.where(empty, 1.0, diagonal * mass - rank)
    for j in range(0, n, PART):
        at = j + tl.arange(0, PART)
        y = tl.load(p_ptr + start + at, mask=at < n, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + start + at, mask=at < n, other=0.0).to(tl.float32)
        w = tl.where(y == y, power(y, 2.0 - norm), y)
        tl.store(dx_ptr + start + at, diagonal * w * (g - mean) - rank * (along - mean) * y, mask=at < n)


@triton.jit(do_not_specialize=SIZES)
def cone_backward(
    g_ptr, p_ptr, x_ptr, mask_ptr, dx_ptr, rows, n, size1, size2, s0, s1, s2, s3, q,
    MIRRORED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For p = sparsemax(alpha z), dz = alpha u - (sum z u) alpha sgn / (|sum z| + K q) at kept entries; u = J g."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    x = scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED)
    p = tl.load(p_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    spoilt = tl.max(tl.where(p != p, 1, 0), 0) == 1
    keep = inside & (x > -float("inf"))
    x = tl.where(spoilt, 0.0, x)
    alpha, below, sign = _cone_scale(x, q, MIRRORED)
    s = tl.where(p > 0, 1.0, 0.0)
    u = s * (g - tl.sum(s * g, 0) / tl.maximum(tl.sum(s, 0), 1.0))
    along = tl.sum(tl.where(keep, x, 0.0) * u, 0)
    dx = tl.where(keep, alpha * (u - along * sign / below), 0.0)
    tl.store(dx_ptr + row * n + at, tl.where(spoilt, float("nan"), dx), mask=inside)
