"""Gaussian radial basis functions psi_j(t) = N(t; mu_j, Sigma_j), the features on which values are regressed.

A basis is a constant. Bases are compared and hashed by value, so that ridge matrices can be cached per basis. A basis
stays in float64 whatever the dtype of the model, and its tensors are copied to a device on request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...rows.shape import constant, in_float64, kept


class _Basis:
    """A basis by its constants in float64, with one copy per device; bases are equal if their constants are."""

    def __init__(self, **constants: Tensor) -> None:
        given = constants.values()
        cpu = constant(lambda: [t.detach().to("cpu", torch.float64, copy=True).contiguous() for t in given])
        self._cpu = dict(zip(constants, cpu))
        self._key = tuple((name, tuple(t.shape), tuple(t.flatten().tolist())) for name, t in self._cpu.items())
        self._hash = hash(self._key)

    def _on(self, device: torch.device | str) -> dict[str, Tensor]:
        device = torch.device(device)
        return self._cpu if device.type == "cpu" else _copied(self, device)

    def tensors(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """The centres [N] or [N, 2], and the widths [N] or covariances [2, 2] or [N, 2, 2], float64, on `device`."""
        centres, spread, *_ = self._on(device).values()
        return centres, spread

    def __len__(self) -> int:
        return len(self._cpu["centres"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Basis) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


@kept(64)
def _copied(basis: _Basis, device: torch.device) -> dict[str, Tensor]:
    return {name: t.to(device) for name, t in basis._cpu.items()}


class GaussianBasis1d(_Basis):
    """N functions N(t; centres_j, widths_j^2) on the real line.

    Args: centres [N] and widths [N], the standard deviations. Raises ValueError if the lengths differ or a width is
    not positive.
    """

    dim = 1

    def __init__(self, centres: Tensor | Sequence[float], widths: Tensor | Sequence[float]) -> None:
        centres, widths = torch.as_tensor(centres), torch.as_tensor(widths)
        if centres.ndim != 1 or centres.shape != widths.shape or len(centres) == 0:
            raise ValueError(
                f"centres {tuple(centres.shape)} and widths {tuple(widths.shape)} must be two vectors of one length > 0"
            )
        if not bool(centres.isfinite().all() and widths.isfinite().all()):
            raise ValueError("centres and widths must be finite numbers")
        if not bool((widths > 0).all()):
            raise ValueError(f"basis widths must be positive standard deviations, got {widths.min().item()}")
        super().__init__(centres=centres, widths=widths)

    @classmethod
    def linspaced(cls, n: int, widths: Sequence[float] = (0.1, 0.5)) -> GaussianBasis1d:
        """For every width, n / len(widths) evenly spaced centres in [0, 1].

        The papers use widths .1, .5 for IMDB and .03, .1, .3 for NMT. Raises ValueError if n is not a multiple of len(widths).
        """
        per_width, rest = divmod(n, len(widths))
        if rest or per_width < 1:
            raise ValueError(
                f"n={n} basis functions cannot be divided equally among {len(widths)} widths; "
                f"use a positive multiple of {len(widths)}"
            )
        line = torch.linspace(0, 1, per_width, dtype=torch.float64)
        every_width = torch.tensor(widths, dtype=torch.float64).repeat_interleave(per_width)
        return cls(line.repeat(len(widths)), every_width)

    @in_float64
    def evaluate(self, t: Tensor) -> Tensor:
        """psi(t) [..., N] in float64 for t [...]."""
        centres, widths = self.tensors(t.device)
        z = (t.double().unsqueeze(-1) - centres) / widths
        return torch.exp(-0.5 * z.square()) / (widths * math.sqrt(2 * math.pi))

    def __repr__(self) -> str:
        widths = sorted({round(w, 6) for w in self.tensors()[1].tolist()})
        return f"GaussianBasis1d(n={len(self)}, widths={widths})"


class GaussianBasis2d(_Basis):
    """N functions N(t; centres_j, covariances_j) on the plane.

    Args: centres [N, 2]; covariances [2, 2] (shared) or [N, 2, 2], symmetric positive definite. Raises ValueError
    otherwise. `grid(...)` builds the basis of the VQA experiments. If the centres form a grid on the plane, row by row, and
    share one diagonal covariance, this is detected: psi is then separable, and attention is much cheaper.
    """

    dim = 2

    def __init__(self, centres: Tensor, covariances: Tensor) -> None:
        centres, covariances = torch.as_tensor(centres).double(), torch.as_tensor(covariances).double()
        if centres.ndim != 2 or centres.shape[1] != 2 or len(centres) == 0:
            raise ValueError(f"centres on the plane must have shape [N, 2] with N > 0, got {tuple(centres.shape)}")
        if covariances.shape not in ((2, 2), (len(centres), 2, 2)):
            raise ValueError(f"covariances must be [2, 2] or [{len(centres)}, 2, 2], got {tuple(covariances.shape)}")
        symmetric = torch.allclose(covariances, covariances.mT, rtol=1e-9, atol=0.0)
        if not symmetric or bool((torch.linalg.eigvalsh(covariances) <= 0).any()):
            raise ValueError("covariances must be symmetric positive definite; make them symmetric and add 1e-6 I")
        super().__init__(centres=centres, covariances=covariances, **_grid_of(centres.cpu(), covariances.cpu()))

    @classmethod
    def grid(
        cls,
        rows: int = 10,
        columns: int = 10,
        variance: float | tuple[float, float] = 0.001,
        low: float = 0.0,
        high: float = 1.0,
    ) -> GaussianBasis2d:
        """A grid of rows x columns evenly spaced centres in [low, high]^2; function j = row * columns + column.

        `variance` is one number for isotropic functions, or a pair (along rows, along columns). The first coordinate of
        t is the row, the second the column. The default is the paper's 10 x 10 basis with Sigma_j = .001 I.
        """
        if rows < 1 or columns < 1:
            raise ValueError(f"a grid needs at least one row and one column, got {rows} x {columns}")
        first, second = variance if isinstance(variance, tuple) else (variance, variance)
        if not (first > 0 and second > 0):
            raise ValueError(f"basis variances must be positive, got {variance}")
        lines = (torch.linspace(low, high, n, dtype=torch.float64) for n in (rows, columns))
        return cls(torch.cartesian_prod(*lines), torch.diag(torch.tensor([first, second], dtype=torch.float64)))

    @property
    def separable(self) -> bool:
        """True if psi is the outer product of a basis over rows and a basis over columns."""
        return "line1" in self._cpu

    def axes(self, device: torch.device | str = "cpu") -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The pairs (centres, widths) along rows and (centres, widths) along columns of a separable basis."""
        if not self.separable:
            raise ValueError(
                "this basis is not a grid with one diagonal covariance; build one with GaussianBasis2d.grid"
            )
        t = self._on(device)
        return (t["line1"], t["width1"]), (t["line2"], t["width2"])

    @in_float64
    def evaluate(self, t: Tensor) -> Tensor:
        """psi(t) [..., N] in float64 for t [..., 2]."""
        centres, covariances = self.tensors(t.device)
        precision = torch.linalg.inv(covariances).expand(len(centres), 2, 2)
        d = t.double().unsqueeze(-2) - centres  # [..., N, 2]
        energy = torch.einsum("...ni,nij,...nj->...n", d, precision, d)
        return torch.exp(-0.5 * energy) * torch.linalg.det(precision).sqrt() / (2 * math.pi)

    def __repr__(self) -> str:
        return f"GaussianBasis2d(n={len(self)}, separable={self.separable})"


def _grid_of(centres: Tensor, covariances: Tensor) -> dict[str, Tensor]:
    """The two lines whose product forms the centres, and their widths.

    Empty if the centres do not form a grid, row by row, or do not share a diagonal covariance.
    """
    if covariances.ndim != 2 or covariances[0, 1] != 0:
        return {}
    line1, line2 = (torch.unique(x) for x in centres.unbind(-1))
    if not torch.equal(torch.cartesian_prod(line1, line2), centres):
        return {}
    sd1, sd2 = covariances.diagonal().sqrt()
    return {"line1": line1, "line2": line2, "width1": sd1.expand(len(line1)), "width2": sd2.expand(len(line2))}
