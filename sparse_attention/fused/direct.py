"""The short way of a call on a GPU whose checks a few comparisons replace: entmax of q, k and v, with lengths and a mask.

Whatever does not look right here, or is not known yet, takes the long way (`checked` and `choose`), which raises the errors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import kernels, registry
from ..kernels.reference.graph import exporting
from ..kernels.triton import _DTYPES, _load, given_up, too_old
from ..kernels.triton.attention import ALPHAS, WIDEST
from ..rows.shape import PLAIN, STRIDED, autocasts, fits, foreign, transformed
from . import operator
from .call import lengths_of_heads, mapped
from .forms import Numbers

_forward_ad = torch.autograd.forward_ad
_KNOWN = 1000  # numbers of mappings that are remembered
_known: dict[
    tuple[Any, ...], tuple[Any, float, float]
] = {}  # by mapping and parameters: its description, alpha and factor


def attend(
    q: Tensor, k: Tensor, v: Tensor, mapping: Any, mask: Tensor | None, causal: Any, lengths: Any, scale: Any,
    params: dict[str, Any],
) -> Tensor | None:  # fmt: skip
    """The output, or None: take the long way. q is a plain tensor on a GPU, see `call.on_gpu`."""
    if k.__class__ not in PLAIN or v.__class__ not in PLAIN or causal.__class__ is not bool or foreign(q):
        return None
    sizes, d, dtype, device = q.shape, q.shape[-1] if q.ndim else 0, q.dtype, q.device
    if not _alike(q, k, v) or dtype not in _DTYPES or d > WIDEST or v.shape[-1] > WIDEST:
        return None
    if transformed() or _forward_ad._current_level >= 0 or exporting() or kernels.active() == "reference":
        return None
    if "attention" in given_up or not _load() or too_old(q) or k.is_neg() or v.is_neg():
        return None
    found = _of(mapping, params)
    if found is None or not (scale is None or (scale.__class__ is float and math.isfinite(scale))):
        return None
    lead, n, (_, alpha, factor) = sizes[:-2], sizes[-2], found
    scores = (*sizes[:-1], k.shape[-2])
    if mask is not None and not (mask.__class__ in PLAIN and mask.ndim and fits(mask, scores, device)):
        return None
    if lengths is not None:
        if not isinstance(lengths, Tensor) or foreign(lengths):
            return None
        lengths = lengths_of_heads(lengths, lead, k)
        lengths = None if lengths is None else lengths.reshape(-1)
    numbers = Numbers(tuple(lead), alpha, (d**-0.5 if scale is None else scale) * factor, causal and n > 1)
    inputs = () if mask is None and lengths is None else (lengths, None, None, None, mask)
    if not autocasts(q):
        return operator.run(numbers, q, k, v, *inputs)
    with torch.autocast(device.type, enabled=False):
        return operator.run(numbers, q, k, v, *inputs)


def _alike(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the shapes, dtypes and devices fit together, without broadcasting, and no dimension is empty."""
    a, b, c = q.shape, k.shape, v.shape
    many = len(a)
    if many < 3 or len(b) != many or len(c) != many or a[-1] != b[-1] or b[:-1] != c[:-1] or a[:-3] != b[:-3]:
        return False
    if not b[-3] or a[-3] % b[-3] or not (q.numel() and k.numel() and v.numel()):
        return False
    for x in (k, v):
        if x.dtype is not q.dtype or x.device != q.device or x.layout is not STRIDED or x.is_nested:
            return False
    return q.layout is STRIDED and not q.is_nested


def _of(mapping: Any, params: dict[str, Any]) -> tuple[Any, float, float] | None:
    """The description, alpha and factor of an entmax given by name with numbers as parameters; None for anything else."""
    if mapping.__class__ is not str:
        return None
    for x in params.values():
        if x.__class__ is not float:
            return None
    key = (mapping, *params.items())
    found = _known.get(key)
    if found is None or found[0] is not registry.spec(mapping):
        try:
            _, known = mapped(mapping, params)
        except (TypeError, ValueError):  # the long way raises it, after what is wrong with the tensors
            return None
        if known.alpha is None or not ALPHAS[0] <= known.alpha <= ALPHAS[1]:
            return None
        if len(_known) >= _KNOWN:
            _known.clear()
        found = _known[key] = registry.spec(mapping), known.alpha, known.factor
    return found
