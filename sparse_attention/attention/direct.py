"""The short way of a call on a GPU whose checks a few comparisons replace: entmax of q, k and v, with the forms.

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
from ..modules import Mapping
from ..rows.shape import PLAIN, STRIDED, autocasts, fits, foreign, transformed
from . import forms, operator
from .call import mapped
from .choice import by_factor
from .forms import Numbers

_forward_ad = torch.autograd.forward_ad
_KNOWN = 1000  # numbers of mappings, and of kinds of calls, that are remembered
_SCALES = (float, int, type(None))
_numbers: dict[tuple[Any, ...], Numbers] = {}  # by shapes, dtypes, devices and what else decides them
_known: dict[
    tuple[Any, ...], tuple[Any, float, float]
] = {}  # by mapping and parameters: its description, alpha and factor


def attend(
    q: Tensor, k: Tensor, v: Tensor, mapping: Any, mask: Tensor | None, causal: Any, lengths: Any, scale: Any,
    params: dict[str, Any], given: dict[str, Any],
) -> Tensor | None:  # fmt: skip
    """The output, or None: take the long way. q is a plain tensor on a GPU, see `call.on_gpu`. given: the forms."""
    if k.__class__ not in PLAIN or v.__class__ not in PLAIN or foreign(q) or transformed():
        return None
    if _forward_ad._current_level >= 0 or exporting() or kernels.active() == "reference" or "attention" in given_up:
        return None
    if not q.layout is k.layout is v.layout is STRIDED:
        return None
    found = _of(mapping, params)
    if found is None:
        return None
    number = 1.0 if scale.__class__ in PLAIN else scale
    if causal.__class__ is not bool or number.__class__ not in _SCALES:
        return None
    here = q.device, k.device, v.device
    key = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, here, causal, number, found[1:]
    numbers = _numbers.get(key)
    if numbers is None:
        numbers = _numbers_of(q, k, v, causal, number, *found[1:])
        if numbers is None:
            return None
        if len(_numbers) >= _KNOWN:
            _numbers.clear()
        _numbers[key] = numbers
    inputs: tuple[Tensor | None, ...] = ()
    if given or not (mask is lengths is None and scale.__class__ not in PLAIN):
        try:
            inputs = _inputs(q, k, mask, lengths, scale, found[2], given)
        except (TypeError, ValueError):  # the long way raises it, after what is wrong with the others
            return None
        if not inputs:
            return None
    if not autocasts(q):
        return operator.run(numbers, q, k, v, *inputs)
    with torch.autocast(q.device.type, enabled=False):
        return operator.run(numbers, q, k, v, *inputs)


def _inputs(
    q: Tensor, k: Tensor, mask: Any, lengths: Any, scale: Any, factor: float, given: dict[str, Any]
) -> tuple[Tensor | None, ...]:
    """`forms.Inputs` as `choice.arguments` makes them; () if the long way must look. Raises as `call.checked` does."""
    *lead, n, _ = sizes = q.shape
    m, device = k.shape[-2], q.device
    if mask is not None and not (mask.__class__ in PLAIN and mask.ndim and fits(mask, (*lead, n, m), device)):
        return ()
    if lengths is not None:
        if not isinstance(lengths, Tensor) or foreign(lengths):
            return ()
        lengths = forms.lengths_of(lengths, sizes[:-2], k)
        if lengths is not None and lengths.shape != sizes[: lengths.ndim]:  # not each for the same number of heads
            lengths = lengths[(..., *[None] * (len(lead) - lengths.ndim))].expand(lead)
        lengths = None if lengths is None else lengths.reshape(-1)
    learned = isinstance(scale, Tensor)
    if not (given or learned):
        return lengths, None, None, None, mask
    bias, slopes, sink, window, packed = map(given.get, ("bias", "slopes", "sink", "window", "cu_seqlens"))
    for x in (bias, slopes, sink, packed, scale if learned else None):
        if x is not None and (x.__class__ not in PLAIN or foreign(x)):
            return ()
    if bias is not None:
        if not (bias.ndim and bias.dtype.is_floating_point and fits(bias, (*lead, n, m), device, bias.dtype)):
            return ()
        bias = by_factor(bias, factor)
    spans = scales = None
    if window is not None or packed is not None:
        found = forms.spans_of(n, m, window, packed, device)
        spans = None if found is None else found[None]
    if learned:
        scales = forms.per_query("scale", scale, q).expand(*lead, n, 1).reshape(-1, n)
    each = (None if x is None else forms.per_head(name, x, q) for name, x in (("slopes", slopes), ("sink", sink)))
    slopes, sink = (None if x is None else (x.view(-1) * factor).expand(lead).reshape(-1) for x in each)
    return lengths, spans, None, bias, mask, scales, slopes, sink


def _numbers_of(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, alpha: float, factor: float
) -> Numbers | None:
    """The numbers of a call; None if q, k and v do not fit together, without broadcasting, or the long way must look."""
    a, b, c = q.shape, k.shape, v.shape
    many, (*lead, n, d) = len(a), a
    if many < 3 or len(b) != many or len(c) != many or d != b[-1] or b[:-1] != c[:-1] or a[:-3] != b[:-3]:
        return None
    if not (a.numel() and b.numel() and c.numel()) or a[-3] % b[-3] or max(d, c[-1]) > WIDEST:
        return None
    if q.dtype not in _DTYPES or not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        return None
    if not _load() or too_old(q.get_device()) or not (scale is None or math.isfinite(scale)):
        return None
    return Numbers(tuple(lead), alpha, factor * (d**-0.5 if scale is None else scale), causal and n > 1)


def _of(mapping: Any, params: dict[str, Any]) -> tuple[Any, float, float] | None:
    """The description, alpha and factor of an entmax with numbers as parameters, by name or as a module; None for anything else."""
    spec = None
    if mapping.__class__ is not str:
        if not isinstance(mapping, Mapping) or params or mapping._learned:
            return None
        spec, params = mapping.spec, mapping._numbers
        mapping = spec.name
    for x in params.values():
        if x.__class__ is not float:
            return None
    key = (mapping, *params.items())
    found = _known.get(key)
    if found is None or found[0] is not (spec or registry.spec(mapping)):
        try:
            _, known = mapped(mapping, params)
        except (TypeError, ValueError):  # the long way raises it, after what is wrong with the tensors
            return None
        if known.alpha is None or not ALPHAS[0] <= known.alpha <= ALPHAS[1]:
            return None
        if len(_known) >= _KNOWN:
            _known.clear()
        found = _known[key] = spec or registry.spec(mapping), known.alpha, known.factor
    return found
