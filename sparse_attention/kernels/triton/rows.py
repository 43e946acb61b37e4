"""The first steps of every GPU kernel on a row, and the threshold of the projection onto the simplex."""

from __future__ import annotations

import triton
import triton.language as tl

# Changing these numbers does not recompile a kernel. n is not among them: rows of a multiple of 16 are read faster.
SIZES = ["rows", "size1", "size2", "s0", "s1", "s2"]


@triton.jit
def power(base, exponent):
    """base^exponent, or 0 where base is 0."""
    safe = tl.where(base > 0, base, 1.0)
    return tl.where(base > 0, tl.exp2(exponent * tl.log2(safe)), 0.0)


@triton.jit
def scores_of(x_ptr, mask_ptr, row, rows, n, at, size1, size2, s0, s1, s2, s3, MASKED: tl.constexpr):
    """Row ``row`` of x [rows, n] in float32, with -inf at excluded positions and after the end of the row.

    The mask applies to rows of shape [rows / (size1 size2), size1, size2]. It has the strides s0, s1 and s2 in these
    dimensions, and s3 along n. A stride is 0 if the mask is the same along a dimension, so the mask is never expanded
    in memory.
    """
    inside = at < tl.where(row < rows, n, 0)
    x = tl.load(x_ptr + row * n + at, mask=inside, other=-float("inf")).to(tl.float32)
    if MASKED:
        start = row // (size1 * size2) * s0 + row // size2 % size1 * s1 + row % size2 * s2
        kept = tl.load(mask_ptr + start + at.to(tl.int64) * s3, mask=inside, other=0)
        x = tl.where(kept != 0, x, -float("inf"))
    return x


@triton.jit
def standing(x):
    """The maximum of the row (ignoring NaN), a flag for a row without positions, and a flag for NaN or +inf."""
    spoilt = tl.max(tl.where(x != x, 1, 0), 0)
    top = tl.max(tl.where(x != x, -float("inf"), x), 0)
    return top, (top == -float("inf")) & (spoilt == 0), (top == float("inf")) | (spoilt == 1)


@triton.jit
def simplex_threshold(b):
    """tau with sum (b - tau)_+ = 1 (Michelot's algorithm); b must be far below its maximum at excluded positions."""
    tau = tl.max(b, 0) - 1.0  # the threshold of only the largest entry, which is at most the threshold
    size = 0.0 * tau
    moving = 1
    while moving == 1:
        d = tl.maximum(b - tau, 0.0)
        now = tl.sum(tl.where(d > 0, 1.0, 0.0), 0)
        tau += (tl.sum(d, 0) - 1.0) / now
        # The support shrinks until it is correct. If it grows again, this is rounding, so stop.
        moving = tl.where((size == 0.0) | (now < size), 1, 0)
        size = now
    return tau
