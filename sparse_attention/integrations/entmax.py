r"""The functions and classes of the entmax package 1.3: ``from sparse_attention.integrations import entmax``.

Names and signatures are those of the package, and the results are the same. They are computed by this library's exact
kernels and follow its contract: any ``dim``, -inf counts as masked, half precision computed in float32, twice
differentiable, vmap, torch.compile. ``entmax.activations``, ``entmax.losses`` and ``entmax.root_finding`` all refer to
this module. ``return_support_size`` exists in later versions of the package.

docs/start/coming_from.md lists what differs, and why. This module also takes ``k`` with a negative ``dim``, and a negative
``ignore_index``, where the package fails; normmax is differentiable in alpha and budget in the budget.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..losses.fenchel_young import fenchel_young
from ..losses.regularisers import Slope
from ..mappings.constrained import constrained_sparsemax
from ..mappings.entmax import entmax as _entmax
from ..mappings.normalization import hardmax
from ..mappings.sparsemax import sparsemax as _sparsemax
from ..registry import Param, make
from ..rows.ragged import along
from ..rows.shape import last, scaled

__version__ = "1.3"
_ALPHA = Param("alpha", low=0.0, meaning="order of the norm")
_REDUCTION = Param("reduction", choices=("elementwise_mean", "mean", "sum", "none"))
_BUDGET = Param("budget", low=0.0, closed_low=True, meaning="sum of the result")


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> Any:
    """Euclidean projection on the simplex.

    Args:
        X: any shape.
        k: has no effect.
        return_support_size: also return the number of positions with nonzero weight, int64, with size 1 along ``dim``.
    """
    return _with_size(_sparsemax(X, dim), dim, return_support_size)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> Any:
    """Entmax with alpha = 1.5; the arguments are those of :func:`sparsemax`."""
    return _with_size(_entmax(X, dim, 1.5), dim, return_support_size)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """The same as :func:`sparsemax`; ``n_iter`` and ``ensure_sum_one`` have no effect."""
    return _sparsemax(X, dim)


def entmax_bisect(
    X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Entmax with any alpha > 0, differentiable in X and alpha.

    Args:
        X: any shape.
        alpha: a number, or a tensor that expands to X and has size 1 along ``dim``, such as ``[H, 1, 1]`` for
            ``[B, H, T, n]``.
        n_iter, ensure_sum_one: have no effect.
    """
    return _entmax(X, dim, _for_rows(alpha, X, dim, "alpha"))


def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """``argmax_{p in simplex} p.X - ||p||_alpha``; the arguments are those of :func:`entmax_bisect`."""
    return along(_normmax_rows, X, dim, None, alpha=_ALPHA.take(_for_rows(alpha, X, dim, "alpha")))


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """``argmin_p ||p - X||^2`` over ``0 <= p <= 1``, ``sum p = budget``.

    If the budget is larger than the number of positions, all positions get 1.

    Args:
        X: any shape.
        budget: >= 0; a number, or a tensor that expands to X and has size 1 along ``dim``.
        n_iter: has no effect.
    """
    return along(_budget_rows, X, dim, None, budget=_BUDGET.take(_for_rows(budget, X, dim, "budget")))


def _normmax_rows(x: Tensor, alpha: float | Tensor) -> Tensor:
    r"""Normmax of rows ``x [..., n]``; alpha is a number or ``[..., 1]``.

    With :math:`q = \alpha/(\alpha-1)`, the threshold solves :math:`\sum_i (x_i - \tau)_+^q = 1`, as that of entmax with
    parameter :math:`2 - 1/\alpha` at the scores :math:`q x`, and :math:`p \propto (x - \tau)_+^{q-1}`. For alpha <= 1,
    ``||p||_alpha >= 1`` with equality at the vertices, so the solution is hardmax.
    """
    if not isinstance(alpha, Tensor):
        return hardmax(x) if alpha <= 1.0 else _above_one(x, alpha)
    vertex = alpha <= 1.0
    return torch.where(vertex, hardmax(x.detach()), _above_one(x, torch.where(vertex, 2.0, alpha)))


def _above_one(x: Tensor, alpha: float | Tensor) -> Tensor:
    y = _entmax(scaled(x, 1.0 - 1.0 / alpha), alpha=2.0 - 1.0 / alpha)
    inside = y > 0
    p = torch.where(inside, torch.where(inside, y, 1.0).pow(1.0 / alpha), y)
    total = p.sum(-1, keepdim=True)
    return p / total.masked_fill(total == 0, 1.0)


def _budget_rows(x: Tensor, budget: float | Tensor) -> Tensor:
    """Constrained sparsemax of ``x / b`` with upper bounds ``1 / b``, multiplied by b."""
    count = (x.detach() != -torch.inf).sum(-1, keepdim=True).to(x.dtype)
    b = torch.minimum(torch.as_tensor(budget, dtype=x.dtype, device=x.device), count)
    some = b > 0
    safe = torch.where(some, b, 1.0)
    p = safe * constrained_sparsemax(x / safe, (1.0 / safe).expand(x.shape))
    return torch.where(some | b.isnan() | x.isnan().any(-1, keepdim=True), p.clamp(max=1.0) + 0.0 * b, 0.0)


def _for_rows(value: Any, X: Tensor, dim: int, name: str) -> Any:
    """Reshape a tensor to as many dimensions as X, so that it expands to X; numbers are returned unchanged."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    if value.ndim <= X.ndim:
        value = value.reshape(*[1] * (X.ndim - value.ndim), *value.shape)
    if value.ndim != X.ndim or value.shape[dim] != 1:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} must expand to X {tuple(X.shape)} and have size 1 at dim={dim}"
        )
    return value


def _with_size(p: Tensor, dim: int, wanted: bool) -> Any:
    return (p, (p > 0).sum(dim, keepdim=True)) if wanted else p


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False) -> Any:
    """Fenchel-Young loss of sparsemax, one value per row.

    Args:
        X: scores ``[..., classes]``.
        target: index of the target class ``[...]``, int64.
        k: has no effect.
        return_support_size: also return the number of classes with nonzero weight, ``[..., 1]``.
    """
    return _loss(X, target, make("sparsemax"), return_support_size)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False) -> Any:
    """Fenchel-Young loss of entmax 1.5; the arguments are those of :func:`sparsemax_loss`."""
    return _loss(X, target, make("entmax", alpha=1.5), return_support_size)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """The same as :func:`sparsemax_loss`; ``n_iter`` has no effect."""
    return sparsemax_loss(X, target)


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50) -> Tensor:
    """Fenchel-Young loss of entmax, differentiable in X and alpha.

    alpha is a number or a tensor with one value or of shape ``[..., 1]``.
    """
    return _loss(X, target, make("entmax", alpha=_for_rows(alpha, X, -1, "alpha")), False)


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int = 50) -> Tensor:
    """Fenchel-Young loss of normmax; the arguments are those of :func:`entmax_bisect_loss`."""
    x, _ = last(X, -1, None)
    p = normmax_bisect(x, alpha)
    t = nn.functional.one_hot(target, X.shape[-1]).to(x.dtype)
    top = x.detach().amax(-1, keepdim=True)
    x = x - torch.where(top.isfinite(), top, 0.0)
    order = _for_rows(alpha, X, -1, "alpha")
    y = p.detach()
    power = torch.where(y > 0, torch.where(y > 0, y, 1.0).pow(order), 0.0).sum(-1, keepdim=True)
    norm = torch.where(power > 0, power, 1.0).pow(1.0 / order).squeeze(-1)
    return (Slope.apply(x, p, t, None) + 1.0 - norm).to(X.dtype)


def _loss(X: Tensor, target: Tensor, mapping: Any, wanted: bool) -> Any:
    value = fenchel_young(X, target, mapping, reduction="none").to(X.dtype)
    return (value, (mapping(X.detach()) > 0).sum(-1, keepdim=True)) if wanted else value


class _Module(nn.Module):
    """Stores its arguments as attributes and calls ``function`` with them.

    A tensor becomes a buffer, which moves with the module; an ``nn.Parameter`` becomes a learned parameter.
    """

    function: ClassVar[Callable[..., Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        given = inspect.signature(type(self)).bind(*args, **kwargs)
        given.apply_defaults()
        self._names = tuple(given.arguments)
        for name, value in given.arguments.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def forward(self, X: Tensor) -> Any:
        return type(self).function(X, **self._given())


class _Loss(_Module):
    """Base class of the losses. Rows whose target is ``ignore_index`` have loss 0 and are left out of the mean.

    Args:
        reduction: "elementwise_mean" (also called "mean"), "sum" or "none".
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _REDUCTION.check(self.reduction)

    def forward(self, X: Tensor, target: Tensor) -> Any:  # type: ignore[override]
        given = self._given()
        counted, reduction = target != given.pop("ignore_index"), given.pop("reduction")
        found = type(self).function(X, target.masked_fill(~counted, 0), **given)
        value = (found[0] if isinstance(found, tuple) else found).masked_fill(~counted, 0.0)
        if reduction != "none":
            value = value.sum() if reduction == "sum" else value.sum() / counted.sum()
        return (value, found[1]) if isinstance(found, tuple) else value


def _module(function: Callable[..., Any], **defaults: Any) -> type[_Module]:
    """Create the module class that the package has for a function, with the package's arguments and defaults."""
    name = "".join(part.capitalize() for part in function.__name__.split("_"))
    given = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=d) for n, d in defaults.items()]
    members = {
        "__doc__": f"Module of :func:`{function.__name__}`.", "__module__": __name__,
        "__signature__": inspect.Signature(given), "function": staticmethod(function),
    }  # fmt: skip
    return type(name, (_Loss if "reduction" in defaults else _Module,), members)


_MEAN: dict[str, Any] = {"ignore_index": -100, "reduction": "elementwise_mean"}
Sparsemax = _module(sparsemax, dim=-1, k=None, return_support_size=False)
Entmax15 = _module(entmax15, dim=-1, k=None, return_support_size=False)
SparsemaxBisect = _module(sparsemax_bisect, dim=-1, n_iter=None)
EntmaxBisect = _module(entmax_bisect, alpha=1.5, dim=-1, n_iter=50)
NormmaxBisect = _module(normmax_bisect, alpha=2, dim=-1, n_iter=50)
BudgetBisect = _module(budget_bisect, budget=2, dim=-1, n_iter=50)
SparsemaxLoss = _module(sparsemax_loss, k=None, **_MEAN, return_support_size=False)
Entmax15Loss = _module(entmax15_loss, k=100, **_MEAN, return_support_size=False)
SparsemaxBisectLoss = _module(sparsemax_bisect_loss, n_iter=50, **_MEAN)
EntmaxBisectLoss = _module(entmax_bisect_loss, alpha=1.5, n_iter=50, **_MEAN)
NormmaxBisectLoss = _module(normmax_bisect_loss, alpha=2, n_iter=50, **_MEAN)

activations = losses = root_finding = sys.modules[__name__]
__all__ = [
    *("sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect", "normmax_bisect", "budget_bisect"),
    *("Sparsemax", "Entmax15", "SparsemaxBisect", "EntmaxBisect", "NormmaxBisect", "BudgetBisect"),
    *("sparsemax_loss", "entmax15_loss", "sparsemax_bisect_loss", "entmax_bisect_loss", "normmax_bisect_loss"),
    *("SparsemaxLoss", "Entmax15Loss", "SparsemaxBisectLoss", "EntmaxBisectLoss", "NormmaxBisectLoss"),
]
