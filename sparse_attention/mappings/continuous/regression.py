"""Ridge regression of values: from vectors at discrete positions to a value function V(t) = B psi(t).

    B = H F' (F F' + lambda I)^-1 = H G      (Martins et al. 2020, Eq. 16)

Here F [N, L] is the basis at the positions, and H [D, L] are the values. A context c = B r = H (G r) does not need B:
w = G r [L] are weights on the positions, and the context is their ordinary weighted sum of the values. The weights
may be negative and need not sum to one. F F' + lambda I has condition numbers up to 1e6, so G is computed in float64
and cached. Positions are the centres of L equal intervals of [0, 1]. With padding, the value function is also fitted to
zero on [-1/2, 0] and [1, 3/2].
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...describe import Param
from ...rows import shape as row_shapes
from .bases import GaussianBasis1d, GaussianBasis2d

PAD_POSITIONS = ("none", "correct", "legacy_even")
PADDING = Param("pad_positions", choices=PAD_POSITIONS)
RIDGE = Param("ridge", low=0.0, tensor=False, meaning="text and images .01, speech .1; F F' alone is singular")


def positions_1d(length: int) -> Tensor:
    """The centres (l - 1/2) / L of L intervals, [L], float64."""
    _check(1.0, "none", length)
    return (torch.arange(length, dtype=torch.float64) + 0.5) / length


def positions_2d(rows: int, columns: int) -> Tensor:
    """The centres [rows * columns, 2] of a grid on the unit square, row by row; the first coordinate is the row."""
    return torch.cartesian_prod(positions_1d(rows), positions_1d(columns))


def _padded_line(length: int, pad: str) -> tuple[Tensor, slice]:
    """Positions on [-1/2, 3/2] with spacing 1 / L, or the L real ones alone, and the slice of these among them."""
    if pad == "none":
        return positions_1d(length), slice(None)
    side = (length - 1) // 2 if length % 2 else length // 2
    if pad == "legacy_even" and length % 2 == 0:
        # The authors wrote `1. / 2 * L` instead of 1 / (2 L), so the line runs backwards, from L/2 - 1/2 to 3/2 - L/2.
        shift = length / 2
        return torch.linspace(-0.5 + shift, 1.5 - shift, 2 * length, dtype=torch.float64), slice(side, side + length)
    steps = torch.arange(-side, length + side, dtype=torch.float64)
    return (steps + 0.5) / length, slice(side, side + length)


@row_shapes.kept(1024)  # a corpus has thousands of lengths; of 400 words and 64 functions, 200 MB
def ridge_matrix_1d(length: int, basis: GaussianBasis1d, ridge: float = 0.01, pad_positions: str = "none") -> Tensor:
    """G [L, N] in float64, cached by (length, basis, ridge, pad_positions).

    pad_positions: "none"; "correct", which adds zero values on [-1/2, 3/2]; or "legacy_even", which does the same with
    the authors' bug for even L (L = 40 puts the words at 9.9 .. -8.9). Raises ValueError for length < 1, ridge <= 0 or
    an unknown padding.
    """
    _check(ridge, pad_positions, length)
    line, real = _padded_line(length, pad_positions)
    g = solve_ridge(basis.evaluate(line), ridge)
    return g if pad_positions == "none" else g[real].contiguous()


@row_shapes.kept(64)
def ridge_matrix_2d(
    rows: int,
    columns: int,
    basis: GaussianBasis2d,
    ridge: float = 0.01,
    pad_positions: str = "correct",
    device: torch.device | str = "cpu",
) -> Tensor:
    """G [rows * columns, N] in float64 for a grid of positions, cached.

    The paper's VQA model uses padding (14 x 14 inside 28 x 28).
    """
    _check(ridge, pad_positions, rows, columns)
    (line1, real1), (line2, real2) = _padded_line(rows, pad_positions), _padded_line(columns, pad_positions)
    g = solve_ridge(basis.evaluate(torch.cartesian_prod(line1, line2)), ridge)
    if pad_positions != "none":
        g = g.view(len(line1), len(line2), -1)[real1, real2].reshape(rows * columns, -1).contiguous()
    return g.to(device)


def solve_ridge(features: Tensor, ridge: float) -> Tensor:
    """G [L, N] = F' (F F' + ridge I)^-1 for features F' [L, N], from the smaller of the two equivalent systems."""
    length, n = features.shape
    if n <= length:
        gram = features.mT @ features + ridge * torch.eye(n, dtype=features.dtype)
        return torch.cholesky_solve(features.mT, torch.linalg.cholesky(gram)).mT
    gram = features @ features.mT + ridge * torch.eye(length, dtype=features.dtype)
    return torch.cholesky_solve(features, torch.linalg.cholesky(gram))


def position_weights(
    r: Tensor, mask: Tensor, basis: GaussianBasis1d, ridge: float = 0.01, pad_positions: str = "none"
) -> Tensor:
    """Weights w = G r [B, L] on the kept words of each document; 0 on masked words.

    r is [B, N] or, with T queries per document, [B, T, N]; mask is bool [B, L], True = keep. Every document uses the G
    of its own length, so the result does not depend on the rest of the batch. A fully masked row gives zeros. Returns
    [B, L] or [B, T, L], differentiable in r.
    """
    if r.ndim == 2:
        return position_weights(r.unsqueeze(1), mask, basis, ridge, pad_positions).squeeze(1)
    batch, width = mask.shape
    if width == 0 or batch == 0:
        return r.new_zeros(batch, r.shape[1], width)
    rank = mask.cumsum(-1) - 1  # [B, L] index of every kept word among the kept words
    if row_shapes.asynchronous(r) and pad_positions == "none":
        matrices = _ridge_matrices(rank[:, -1] + 1, width, basis, ridge).to(r.dtype)
    else:
        lengths, which = torch.unique(rank[:, -1] + 1, return_inverse=True)  # [U], [B]
        stacked = torch.zeros(len(lengths), width, r.shape[-1], dtype=r.dtype)
        for i, length in enumerate(lengths.tolist()):  # loop over distinct lengths, not over examples
            if length:
                stacked[i, :length] = ridge_matrix_1d(length, basis, ridge, pad_positions)
        matrices = stacked.to(r.device)[which]
    weights = r @ matrices.mT  # [B, T, L] by rank
    at = rank.clamp(min=0).unsqueeze(1).expand_as(weights)
    return weights.gather(-1, at).masked_fill(~mask.unsqueeze(1), 0.0)


def _ridge_matrices(lengths: Tensor, width: int, basis: GaussianBasis1d, ridge: float) -> Tensor:
    """G [B, width, N] in float64 for every document, without reading `lengths` [B] from the device; 0 after its end."""
    places = torch.arange(width, dtype=torch.float64, device=lengths.device)
    inside = (places < lengths.unsqueeze(-1)).unsqueeze(-1)
    features = basis.evaluate((places + 0.5) / lengths.clamp(min=1).unsqueeze(-1)).masked_fill(~inside, 0.0)
    gram = features.mT @ features + ridge * torch.eye(features.shape[-1], dtype=torch.float64, device=lengths.device)
    factor = torch.linalg.cholesky_ex(gram).L
    # Avoid torch.cholesky_solve: for batches on a CPU, it reads an error code.
    half = torch.linalg.solve_triangular(factor, features.mT, upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True).mT


def _check(ridge: float, pad_positions: str, *lengths: int) -> None:
    if (length := min(lengths)) < 1:
        raise ValueError(f"length={length}: ridge regression needs at least one position; leave empty documents out")
    RIDGE.check(ridge)
    PADDING.check(pad_positions)
