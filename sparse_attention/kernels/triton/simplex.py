"""sparsemax, entmax and pnormmax on the GPU: one program per row, the row in registers, Newton for the threshold.

The mathematics and the names are those of ``kernels/native/src/thresholds.h``: with b = scale (x - max x) the threshold
tau lies in [-1, 0), d = (b - tau)_+, and the root finder works on sums of d. Loads convert to float32, everything
inside is float32, the store rounds once to the output's type.
"""

from __future__ import annotations

import triton
import triton.language as tl

SPARSEMAX, ENTMAX15, ENTMAX, PNORMMAX = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def _power(base, exponent):
    """base^exponent, 0 where base is 0."""
    safe = tl.where(base > 0, base, 1.0)
    return tl.where(base > 0, tl.exp2(exponent * tl.log2(safe)), 0.0)


@triton.jit
def simplex_forward(x_ptr, p_ptr, n, scale, r, RULE: tl.constexpr, BLOCK: tl.constexpr):
    """p = mapping(x) for row ``program_id(0)`` of contiguous [R, n] arrays; BLOCK a power of two, at least n.

    ``r``: unused for sparsemax and entmax 1.5; 1/(alpha - 1) for ENTMAX; q = p/(p - 1) for PNORMMAX.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + row * n + at, mask=inside, other=-float("inf")).to(tl.float32)
    spoilt = tl.max(tl.where(x != x, 1, 0), 0)
    top = tl.max(tl.where(x != x, -float("inf"), x), 0)
    infinite = (top == float("inf")) | (spoilt == 1)
    empty = (top == -float("inf")) & (spoilt == 0)
    # Rows without a mapping go through the motions with zeros.
    b = tl.where(infinite | empty, 0.0, (x - top) * scale)
    b = tl.where(inside & (x > -float("inf")), b, -1e9)
    b = tl.where(infinite | empty, tl.where(inside, 0.0, -1e9), b)

    tau = tl.max(b, 0) - 1.0  # the largest entry alone: at most the threshold
    if RULE == SPARSEMAX:
        size = 0.0 * tau
        moving = 1
        while moving == 1:
            d = tl.maximum(b - tau, 0.0)
            now = tl.sum(tl.where(d > 0, 1.0, 0.0), 0)
            tau += (tl.sum(d, 0) - 1.0) / now
            # Supports shrink until they are right; a later growth by rounding is no progress.
            moving = tl.where((size == 0.0) | (now < size), 1, 0)
            size = now
        p = tl.maximum(b - tau, 0.0)
    elif RULE == PNORMMAX:
        lo = tau
        hi = 0.0 * tau
        step = 0.0 * tau + 1.0
        passes = 0
        while (tl.abs(step) > -4e-6 * tau) & (passes < 60):
            d = tl.maximum(b - tau, 0.0)
            w = _power(d, r - 2.0)
            # power drops zeros, so d^0 counts the support when q = 2
            v = w * d
            s0 = tl.sum(w, 0)
            s1 = tl.sum(v, 0)
            s2 = tl.sum(v * d, 0)
            norm = tl.exp2((r - 2.0) / r * tl.log2(s2))
            value = s1 / norm - 1.0
            slope = ((r - 2.0) * s1 * s1 / s2 - (r - 1.0) * s0) / norm
            lo = tl.where(value > 0, tau, lo)
            hi = tl.where(value > 0, hi, tau)
            step = -value / slope
            following = tau + step
            following = tl.where((following > lo) & (following < hi), following, 0.5 * (lo + hi))
            # The last step is taken as it is.
            tau = tl.where(tl.abs(step) > -4e-6 * tau, following, tau + step)
            passes += 1
        p = _power(tl.maximum(b - tau, 0.0), r - 1.0)
        p = p / tl.sum(p, 0)
    else:
        # Newton on the r-norm of d, which is convex: it climbs to the root and never passes it.
        step = 0.0 * tau + 1.0
        passes = 0
        while (tl.abs(step) > -4e-6 * tau) & (passes < 60):
            d = tl.maximum(b - tau, 0.0)
            if RULE == ENTMAX15:
                f = tl.sum(d * d, 0)
                step = (f - tl.sqrt(f)) / tl.sum(d, 0)
            else:
                q = _power(d, r - 1.0)
                f = tl.sum(q * d, 0)
                step = (f - tl.exp2((1.0 - 1.0 / r) * tl.log2(f))) / tl.sum(q, 0)
            tau += step
            passes += 1
        d = tl.maximum(b - tau, 0.0)
        if RULE == ENTMAX15:
            p = d * d
        else:
            p = _power(d, r)
    p = tl.where(empty, 0.0, p)
    p = tl.where(infinite, float("nan"), p)
    tl.store(p_ptr + row * n + at, p, mask=inside)


@triton.jit
def weighted_backward(g_ptr, p_ptr, dx_ptr, n, scale, exponent, BLOCK: tl.constexpr):
    """dx = scale (s g - s (sum s g) / (sum s)), s = p^exponent on the support: 0 for sparsemax, 2 - alpha for entmax."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    p = tl.load(p_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.where(p == p, _power(p, exponent), p)
    mass = tl.sum(s, 0)
    mean = tl.sum(s * g, 0) / tl.where(mass == 0, 1.0, mass)
    tl.store(dx_ptr + row * n + at, scale * s * (g - mean), mask=inside)


@triton.jit
def pnormmax_backward(g_ptr, p_ptr, dx_ptr, n, norm, gamma, BLOCK: tl.constexpr):
    """dx = H^-1 (g - m 1) on the support, H the Hessian (diagonal plus rank one); see native/src/simplex_mappings.h."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    y = tl.load(p_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * n + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.where(y == y, _power(y, 2.0 - norm), y)
    total = tl.sum(_power(y, norm), 0)
    empty = total == 0
    log_total = tl.log2(tl.where(empty, 1.0, total))
    front = 1.0 / (gamma * (norm - 1.0))
    diagonal = front * tl.exp2((norm - 2.0) / norm * log_total)
    rank = front * (2.0 - norm) * tl.exp2(-2.0 / norm * log_total)
    along = tl.sum(y * g, 0)
    divisor = tl.where(empty, 1.0, diagonal * tl.sum(w, 0) - rank)
    mean = (diagonal * tl.sum(w * g, 0) - rank * along) / divisor
    tl.store(dx_ptr + row * n + at, diagonal * w * (g - mean) - rank * (along - mean) * y, mask=inside)
