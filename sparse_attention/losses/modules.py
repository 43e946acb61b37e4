"""The losses as modules, constructed with their options and called with scores and target."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..registry import Mapping
from ..rows.slope import REDUCTION
from .fenchel_young import ENTMAX, FUSEDMAX, SMOOTHING, _built, fenchel_young, softmax_loss
from .hinge import HOURGLASS, SPARSEGEN, sparsegen_hinge, sparsehourglass_hinge


class FenchelYoungLoss(nn.Module):
    """Module version of :func:`fenchel_young`: ``FenchelYoungLoss("entmax", alpha=1.5)(scores, target, mask=None)``.

    Args:
        mapping, params: either a module, or a mapping's name with its parameters. A tensor is moved together with the
            loss, and the value "learned" creates a trainable parameter.
        dim, reduction, weight, ignore_index, label_smoothing: as in the function.
    """

    def __init__(
        self,
        mapping: str | Mapping,
        dim: int = -1,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        **params: Any,
    ) -> None:
        super().__init__()
        self.dim, self.reduction, self.ignore_index = dim, REDUCTION.check(reduction), ignore_index
        self.label_smoothing = SMOOTHING.check(label_smoothing)
        self.register_buffer("weight", weight)
        self.mapping = _built(mapping, params)[0]

    @property
    def options(self) -> dict[str, Any]:
        kept = ("dim", "reduction", "weight", "ignore_index", "label_smoothing")
        return {name: getattr(self, name) for name in kept}

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"

    def forward(self, scores: Tensor, target: Tensor, mask: Tensor | None = None, **inputs: Any) -> Tensor:
        return fenchel_young(scores, target, self.mapping, mask=mask, **self.options, **inputs)


class SparsemaxLoss(FenchelYoungLoss):
    """Module version of :func:`sparsemax_loss`; takes the same options as :class:`FenchelYoungLoss`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("sparsemax", **options)


class EntmaxLoss(FenchelYoungLoss):
    """Module version of :func:`entmax_loss`; takes the same options as :class:`FenchelYoungLoss`."""

    def __init__(self, alpha: float | Tensor | str = ENTMAX["alpha"], **options: Any) -> None:
        super().__init__("entmax", alpha=alpha, **options)


class FusedmaxLoss(FenchelYoungLoss):
    """Module version of :func:`fusedmax_loss`; takes the same options as :class:`FenchelYoungLoss`."""

    def __init__(
        self, lam: float | Tensor = FUSEDMAX["lam"], gamma: float | Tensor = FUSEDMAX["gamma"], **options: Any
    ) -> None:
        super().__init__("fusedmax", lam=lam, gamma=gamma, **options)


class SoftmaxLoss(FenchelYoungLoss):
    """Module version of :func:`softmax_loss`; takes the same options as :class:`FenchelYoungLoss`."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__("softmax", *given, **options)

    def forward(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return softmax_loss(scores, target, mask=mask, **self.options)


class _Hinge(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options


class SparsegenHinge(_Hinge):
    """Module version of :func:`sparsegen_hinge`; the options are dim, half_pairs, corrected and reduction."""

    def __init__(self, lam: float = SPARSEGEN["lam"], **options: Any) -> None:
        super().__init__(lam=lam, **options)

    def forward(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        return sparsegen_hinge(scores, target, mask=mask, **self.options)


class SparsehourglassHinge(_Hinge):
    """Module version of :func:`sparsehourglass_hinge`; takes the same options as :class:`SparsegenHinge`."""

    def __init__(self, q: float = HOURGLASS["q"], **options: Any) -> None:
        super().__init__(q=q, **options)

    def forward(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        return sparsehourglass_hinge(scores, target, mask=mask, **self.options)
