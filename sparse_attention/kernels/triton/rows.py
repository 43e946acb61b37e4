"""The first steps of every GPU kernel on rows, and the threshold of the projection onto the simplex.

A program takes a tile [ROWS, BLOCK]: several short rows, or one long row. What belongs to a row has the shape [ROWS, 1].
Loops run until the last row is done; rows that are done do not change any more, so no row depends on the others.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Changing these numbers does not recompile a kernel. n is not among them: rows of a multiple of 16 are read faster.
SIZES = ["rows", "size1", "size2", "s0", "s1", "s2"]


@triton.jit
def tile(rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The numbers of a program's rows, int64 [ROWS, 1], the positions in a row, int32 [1, BLOCK], and which are in the array."""
    row, at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    return row, at, (at < n) & (row < rows)


@triton.jit
def power(base, exponent):
    """base^exponent, or 0 where base is 0."""
    safe = tl.where(base > 0, base, 1.0)
    return tl.where(base > 0, tl.exp2(exponent * tl.log2(safe)), 0.0)


@triton.jit
def most(x):
    """The maximum of a row, [ROWS, 1]."""
    return tl.max(x, 1, keep_dims=True)


@triton.jit
def total(x):
    """The sum of a row, [ROWS, 1]."""
    return tl.sum(x, 1, keep_dims=True)


@triton.jit
def _plus(a, b, c, d):
    return a + c, b + d


@triton.jit
def totals(x, y):
    """The sums of two rows, by one reduction."""
    return tl.reduce((x, y), 1, _plus, keep_dims=True)


@triton.jit
def some(flag):
    """1 if a flag of the tile is set, else 0; a number for `while` and `if`."""
    return tl.max(tl.max(flag.to(tl.int32), 1), 0)


@triton.jit
def scores_of(x_ptr, mask_ptr, row, at, inside, n, size1, size2, s0, s1, s2, s3, MASKED: tl.constexpr):
    """Rows ``row`` of x [rows, n] in float32, with -inf at excluded positions and where not ``inside``, see `tile`.

    The mask applies to rows of shape [rows / (size1 size2), size1, size2]. It has the strides s0, s1 and s2 in these
    dimensions, and s3 along n. A stride is 0 if the mask is the same along a dimension, so the mask is never expanded
    in memory.
    """
    x = tl.load(x_ptr + row * n + at, mask=inside, other=-float("inf")).to(tl.float32)
    if MASKED:
        start = row // (size1 * size2) * s0 + row // size2 % size1 * s1 + row % size2 * s2
        kept = tl.load(mask_ptr + start + at.to(tl.int64) * s3, mask=inside, other=False)
        x = tl.where(kept, x, -float("inf"))
    return x


@triton.jit
def standing(x):
    """The maximum of a row, and flags for a row without positions and for one with NaN or +inf, whose maximum is +inf."""
    top = most(tl.where(x != x, float("inf"), x))
    return top, top == -float("inf"), top == float("inf")


@triton.jit
def simplex_threshold(b):
    """tau with sum (b - tau)_+ = 1 (Michelot's algorithm); b must be far below its maximum at excluded positions."""
    tau = most(b) - 1.0  # the threshold of only the largest entry, which is at most the threshold
    size = 0.0 * tau
    moving = size == 0.0
    while some(moving) == 1:
        d = tl.maximum(b - tau, 0.0)
        mass, now = totals(d, tl.where(d > 0, 1.0, 0.0))
        tau = tl.where(moving, tau + (mass - 1.0) / now, tau)
        # The support shrinks until it is correct. If it grows again, this is rounding, so stop.
        moving = moving & ((size == 0.0) | (now < size))
        size = now
    return tau
