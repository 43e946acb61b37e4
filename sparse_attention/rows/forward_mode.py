"""Forward mode inside forward mode: derivatives that an autograd.Function loses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import _functorch

_forward_ad = torch.autograd.forward_ad
# Of Gauss and Legendre on [0, 1]: m points integrate polynomials up to degree 2 m - 1.
_POINTS = (
    ((0.5, 1.0),),
    ((0.5 - 3**-0.5 / 2, 0.5), (0.5 + 3**-0.5 / 2, 0.5)),
    ((0.5 - 0.6**0.5 / 2, 5 / 18), (0.5, 4 / 9), (0.5 + 0.6**0.5 / 2, 5 / 18)),
)


def forward_levels() -> int:
    """How many forward modes of torch.func (jvp, jacfwd) are inside each other.

    In two or more, torch loses the derivatives of what the jvp of an autograd.Function returns (pytorch issue 197867).
    The caller then passes the function scores without tangents, see `split`, and adds the tangents by `expand`.
    """
    stack = (torch._C._is_fwd_grad_enabled() and _functorch.get_interpreter_stack()) or ()
    return sum(level.key() == _functorch.TransformType.Jvp for level in stack)


def split(*inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs without their tangents, and what has only the tangents: zeros, which are added to the former."""
    with _forward_ad._set_fwd_grad_enabled(False):
        bare = [x.clone() for x in inputs]
    return bare, [torch.where(x0.isfinite(), x - x0, 0.0) for x, x0 in zip(inputs, bare)]


def expand(p: Tensor, order: int, product: Callable[[Tensor, float], Tensor]) -> Tensor:
    """The attention with all derivatives up to ``order``, from the attention ``p`` at the inputs without tangents.

    With h the difference of the inputs, p(x + h) is p(x) plus the integral of J(p(x + s h)) h over s from 0 to 1. The
    expansion to order k in h follows from that to order k - 1 under the integral, by as many points as make it exact.

    Args:
        product: ``f(p, s)``, the product of the Jacobian at the attention ``p`` with ``s h``, in torch.
    Raises:
        NotImplementedError: as in `integral`.
    """

    def at(s: float, k: int) -> Tensor:
        return p + integral(lambda t: product(at(s * t, k - 1), s), k) if k else p

    return at(1.0, order)


def integral(f: Callable[[float], Tensor], order: int) -> Tensor:
    """The integral over s from 0 to 1 of ``f(s)``, a polynomial of a degree below ``order`` in s.

    Raises:
        NotImplementedError: the order is above 6.
    """
    if order > 2 * len(_POINTS):
        raise NotImplementedError(f"forward mode is nested {order} times; the mappings have derivatives up to order 6")
    first, *others = (w * f(s) for s, w in _POINTS[(order - 1) // 2])
    return sum(others, start=first)
