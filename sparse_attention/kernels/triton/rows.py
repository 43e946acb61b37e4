"""What every GPU kernel does with a row first, and the threshold of the projection on the simplex."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def power(base, exponent):
    """base^exponent, 0 where base is 0."""
    safe = tl.where(base > 0, base, 1.0)
    return tl.where(base > 0, tl.exp2(exponent * tl.log2(safe)), 0.0)


@triton.jit
def scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED: tl.constexpr):
    """Row ``row`` of x [rows, n] in float32, -inf where it is excluded or ends.

    The mask belongs to rows of a shape [rows / (size1 size2), size1, size2] and has the strides s0, s1, s2, and s3
    along n: 0 where it is the same for all, so that nothing is expanded in memory.
    """
    inside = at < tl.where(row < rows, n, 0)
    x = tl.load(x_ptr + row * n + at, mask=inside, other=-float("inf")).to(tl.float32)
    if MASKED:
        start = row // (size1 * size2) * s0 + row // size2 % size1 * s1 + row % size2 * s2
        kept = tl.load(mask_ptr + start + at * s3, mask=inside, other=0)
        x = tl.where(kept != 0, x, -float("inf"))
    return x


@triton.jit
def standing(x):
    """Maximum of the row (of what is not NaN), whether the row has no position, whether it has NaN or +inf."""
    spoilt = tl.max(tl.where(x != x, 1, 0), 0)
    top = tl.max(tl.where(x != x, -float("inf"), x), 0)
    return top, (top == -float("inf")) & (spoilt == 0), (top == float("inf")) | (spoilt == 1)


@triton.jit
def simplex_threshold(b):
    """tau with sum (b - tau)_+ = 1 (Michelot's algorithm), for b far below its maximum where excluded."""
    tau = tl.max(b, 0) - 1.0  # the largest entry alone: at most the threshold
    size = 0.0 * tau
    moving = 1
    while moving == 1:
        d = tl.maximum(b - tau, 0.0)
        now = tl.sum(tl.where(d > 0, 1.0, 0.0), 0)
        tau += (tl.sum(d, 0) - 1.0) / now
        # Supports shrink until they are right; a later growth by rounding is no progress.
        moving = tl.where((size == 0.0) | (now < size), 1, 0)
        size = now
    return tau
