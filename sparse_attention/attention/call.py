"""A checked call of `sparse_attention`: tensors, the mapping as a function of scores and mask, and the visible keys."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels, registry
from ..describe import Param, Spec
from ..kernels.native.attention_shape import ALPHAS
from ..modules import Mapping
from ..rows.shape import AnyFunction, autocasts, broadcasts, certain, foreign, lengths_of, not_boolean, tensor
from . import forms
from .composition import visible

TORCH = {"attn_mask": "mask", "dropout_p": "dropout", "is_causal": "causal", "key_padding_mask": "mask"}
TORCH["cu_seqlens_q"] = "cu_seqlens"  # of flash-attn
DROPOUT = Param("dropout", low=0.0, high=1.0, closed_low=True, tensor=False)
SOFTCAP = Param("softcap", low=0.0, tensor=False)


@dataclass
class Call:
    """The checked arguments. `expand` folds learned scales, slopes and sinks into q, k and v, unless that is already done.

    The leading shapes of q and k agree, except for their last entry, the number of heads.

    alpha: a number if the mapping is entmax of the scores times ``scale`` (1: softmax, 2: sparsemax). alphas: one for
    each head instead. lam: a number if it is a fusedmax. All None: no kernel; ``why`` says why. map: ``f(scores, mask)
    -> weights``, applied to the scores times ``plain_scale`` plus the bias.
    """

    q: Tensor  # [..., H, n, d]
    k: Tensor  # [..., G, m, d], H a multiple of G
    v: Tensor  # [..., G, m, e]
    map: Callable[[Tensor, Tensor | None], Tensor]
    plain_scale: float
    alpha: float | None
    alphas: Tensor | None  # [..., H], and alpha is None
    lam: float | None  # and alpha and alphas are None
    factor: float
    scale: float  # plain_scale times factor
    why: str
    mask: Tensor | None  # bool, broadcastable to [..., H, n, m]
    # int64, broadcastable to [..., H, n, 2]: the first key seen, the first no longer seen; including the sink
    spans: Tensor | None
    bias: Tensor | None  # [..., H, n, m] or broadcastable to it
    scales: Tensor | None  # broadcastable to [..., H, n, 1]
    slopes: Tensor | None  # [H, 1, 1]
    sinks: Tensor | None  # [H, 1, 1]
    later: bool  # some query sees later keys
    dtype: torch.dtype  # of the output
    lengths: Tensor | None  # int64 [..., H]
    causal: bool
    dropout: float
    need_weights: bool
    softcap: float | None = None
    sink: bool = False  # the first key is the sink
    foreign: bool = False  # only torch's dispatcher can read q, k and v, see `rows.shape.foreign`
    short: bool = False  # the composition runs as one step, see `short`
    arguments: Any = None  # those of the fused kernel, once computed

    def weigh(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """The weights of scores ``x [..., H, n, m]``, which are capped (a sink is not) and to which the bias is added."""
        if self.softcap is not None:
            x = torch.cat([x[..., : self.sink], self.softcap * torch.tanh(x[..., self.sink :] / self.softcap)], -1)
        return self.map(x if self.bias is None else x + self.bias.to(x.dtype), keep)

    def expand(self) -> None:
        """Put the scales into q, and slopes and sinks into channels of q and k, or into the bias; see `forms`."""
        scales, slopes, sinks = self.scales, self.slopes, self.sinks
        entmax = self.alpha is not None or self.alphas is not None
        self.scales = self.slopes = self.sinks = None
        if scales is None and slopes is None and sinks is None:
            return
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q, k, v = (x.to(wide) for x in (self.q, self.k, self.v))
        q = q if scales is None else q * scales
        back = forms.places(q.shape[-2], q)  # of the queries
        logits = seen = None
        if sinks is not None:
            logits, seen = forms.present(sinks, entmax)
        if slopes is not None and (self.later or not (entmax or self.lam)):
            far = slopes * -(forms.places(k.shape[-2], k).mT - back).abs()
            self.bias = far if self.bias is None else self.bias + far
        elif slopes is not None:
            q, k = forms.with_slopes(q, k, slopes, self.plain_scale)
            logits = None if logits is None else logits + slopes * back  # as in the row's keys, which lack this term
        if logits is not None:
            self.sink, self.spans = True, None if self.spans is None else self.spans + 1
            q, k, v = forms.with_sink(q, k, v, logits, self.plain_scale)
            mask, bias, m = self.mask, self.bias, k.shape[-2] - 1
            mask = None if mask is None else F.pad(mask.expand(*mask.shape[:-1], m), (1, 0), value=True)
            if seen is not None:
                seen = F.pad(seen, (0, m), value=True)
                mask = seen if mask is None else mask & seen
            self.mask, self.bias = mask, None if bias is None else F.pad(bias.expand(*bias.shape[:-1], m), (1, 0))
            self.lengths = None if self.lengths is None else self.lengths + 1
        self.q, self.k, self.v = q, k, v

    def keep(self) -> Tensor | None:
        """The mask of keys that each query sees, broadcastable to ``[..., H, n, m]``; None means all keys."""
        kept = visible(
            self.q.shape[-2], self.k.shape[-2], self.lengths, self.causal, self.q.device, self.spans, self.sink
        )
        if kept is None or self.mask is None:
            return self.mask if kept is None else kept
        return kept & self.mask


class Known(NamedTuple):
    """A mapping that is entmax with alpha or alphas, or fusedmax with lam, of the scores times factor; or why it has no fast path."""

    alpha: float | None = None
    lam: float | None = None
    factor: float = 1.0
    why: str = ""
    alphas: Tensor | None = None  # [..., H], one for each head


def made(mapping: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The mapping and its parameters; as a module, if one of them is called like an argument of attention."""
    if not ("q" in params or "k" in params or "bias" in params):
        return mapping, params
    name = mapping if isinstance(mapping, str) else getattr(mapping, "__name__", "")
    return (registry.make(name, **params), {}) if name in registry.names() else (mapping, params)


def with_old_keywords(attend: AnyFunction) -> AnyFunction:
    """Until 0.4, let ``attend(q, k, v, mapping, ...)`` take k of top_k, q of sparsehourglass and bias of sigmoid as keywords."""

    @functools.wraps(attend)
    def call(*args: Any, **given: Any) -> Any:
        if "q" in given or "k" in given or "bias" in given:
            old = {name: given[name] for name in ("q", "k")[: len(args)] if name in given}
            old |= {"bias": given["bias"]} if isinstance(given.get("bias"), (int, float)) else {}
            at = args[3] if len(args) > 3 else given.get("mapping", "sparsemax")
            module = made(at, old)[0]
            if module is not at:
                instead = f"pass mapping=sa.make({module.spec.name!r}, {next(iter(old))}=...)"
                warnings.warn(
                    f"{', '.join(old)}: no keyword of attention from 0.4 on; {instead}", DeprecationWarning, 2
                )
                given = {name: x for name, x in given.items() if name not in (*old, "mapping")}
                args, given = (
                    ((*args[:3], module, *args[4:]), given) if len(args) > 3 else (args, {**given, "mapping": module})
                )
        return attend(*args, **given)

    return call  # type: ignore[return-value]


def checked(
    q: Tensor, k: Tensor, v: Tensor, mapping: Any = "sparsemax", mask: Tensor | None = None, causal: bool = False,
    lengths: Tensor | None = None, scale: float | Tensor | None = None, dropout: float = 0.0, need_weights: bool = False,
    *, bias: Tensor | None = None, slopes: Tensor | None = None, window: forms.Window | None = None,
    cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None, sink: Tensor | None = None,
    softcap: float | None = None, **params: Any,
) -> Call:  # fmt: skip
    """Check the arguments of `sparse_attention` and return them as a `Call`.

    Raises:
        TypeError: the tensors are not floating point or have different dtypes, the mask is not boolean, or the lengths
            are not integers.
        ValueError: the shapes do not match, a number is out of range, or the mapping does not map score vectors.
    """
    for name in TORCH.keys() & params.keys():
        keeps = ", where True keeps a key" if TORCH[name] == "mask" else ""
        raise TypeError(f"unexpected argument {name!r}; this function calls it {TORCH[name]!r}{keeps}")
    if "return_lse" in params:
        raise TypeError("there is no return_lse: one number cannot join sparse weights; pass all keys in one call")
    q, k, v = _tensors(q, k, v)
    lead = q.shape[:-2]
    if dropout:
        DROPOUT.check(dropout)
    scales = None
    if isinstance(scale, Tensor):
        scales, scale = forms.per_query("scale", scale, q), 1.0
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale={scale!r} is not a finite number")
    plain = float(scale) if scale is not None else max(q.shape[-1], 1) ** -0.5
    if mask is not None:
        _fits(mask, (*lead, q.shape[-2], k.shape[-2]), q)
    function, (alpha, lam, factor, why, alphas) = mapped(mapping, params, q)
    if softcap is not None:
        softcap, alpha, alphas, lam, why = SOFTCAP.check(softcap), None, None, None, "softcap has no fused kernel"
    entmax = alpha is not None or alphas is not None
    visible_keys = None if lengths is None else forms.lengths_of_heads(lengths, lead, k)
    if cu_seqlens_k is not None:
        if slopes is not None:
            raise ValueError("slopes cannot be used with cu_seqlens_k; use nested tensors")
        if causal:  # within each sequence
            window, causal = (None if window is None else window[0], 0), False
    spans = forms.spans_of(q.shape[-2], k.shape[-2], window, cu_seqlens, q.device, cu_seqlens_k)
    if bias is not None:
        _fits(bias, (*lead, q.shape[-2], k.shape[-2]), q, "bias")
    slopes = None if slopes is None else forms.per_head("slopes", slopes, q)
    sink = None if sink is None else forms.per_head("sink", sink, q)
    alone = certain(q.shape[-2] == 1)  # a single query sees all keys
    later = not (causal or alone) and (window is None or window[1] != 0)
    shown = mask, spans, bias, scales, slopes, sink, later
    rest = q.dtype, visible_keys, causal and not alone, float(dropout), need_weights, softcap
    call = Call(q, k, v, function, plain, alpha, alphas, lam, factor, plain * factor, why, *shown, *rest)
    call.foreign = foreign(q)
    as_they_are = on_gpu(q) and entmax and alpha != 1.0 and q.dtype != torch.float64
    if not as_they_are or (call.foreign and slopes is not None and later):
        call.expand()
    if (entmax or lam) and call.mask is not None and (padded := _as_lengths(call.mask, lead, call.k)) is not None:
        call.mask, call.lengths = None, padded if call.lengths is None else padded.minimum(call.lengths)
    return call


def on_gpu(q: Tensor) -> bool:
    """Whether Triton's kernels handle such tensors; after ``kernels.use("triton")``, on CPU tensors too, in its interpreter."""
    return q.is_cuda or kernels.active() == "triton"


def _tensors(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        tensor(x, name)
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.dtype.is_floating_point:
            raise TypeError(f"{name} has dtype {x.dtype}; attention needs floating point, convert with {name}.float()")
        forms.same_device(name, x, q)
    if not q.dtype == k.dtype == v.dtype and not autocasts(q):
        raise TypeError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; convert them to one dtype")
    if q.ndim < 2 or not q.ndim == k.ndim == v.ndim:
        raise ValueError(
            f"{shapes}: they need the same number of dimensions, at least 2: q [..., n, d], k [..., m, d], v [..., m, e]"
        )
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{shapes}: q [..., n, d] and k [..., m, d] must share d; k and v [..., m, e] must share m")
    if q.ndim == 2:
        return q, k, v
    heads, groups = q.shape[-3], k.shape[-3]
    if v.shape[-3] != groups or (groups == 0) != (heads == 0) or (groups and heads % groups):
        raise ValueError(
            f"{shapes}: q has {heads} heads (dimension -3), k has {groups} and v {v.shape[-3]}; k and v need the same number, and q's number must be a multiple of it"
        )
    if q.shape[:-3] == k.shape[:-3] == v.shape[:-3]:
        return q, k, v
    try:
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    except RuntimeError:
        raise ValueError(f"{shapes}: the dimensions before the heads (dimension -3) must broadcast") from None
    return tuple(x if x.shape[:-3] == lead else x.expand(*lead, *x.shape[-3:]) for x in (q, k, v))  # type: ignore[return-value]


def _fits(mask: Tensor, shape: tuple[int, ...], q: Tensor, name: str = "mask") -> None:
    if name == "bias" and not (isinstance(mask, Tensor) and mask.dtype.is_floating_point):
        raise TypeError(f"bias is {getattr(mask, 'dtype', type(mask).__name__)}; it must be a floating-point tensor")
    tensor(mask, name)
    if name == "mask" and mask.dtype != torch.bool:
        raise not_boolean(mask)
    if mask.ndim:
        forms.same_device(name, mask, q)
    if not broadcasts(mask.shape, shape):
        raise ValueError(
            f"{name} of shape {tuple(mask.shape)} does not broadcast to the scores {tuple(shape)}; "
            f"pass a {name} [B, m] of keys as {name}[:, None, None], and a {name} [B, n, m] as {name}[:, None]"
        )


def _as_lengths(mask: Tensor, lead: tuple[int, ...], k: Tensor) -> Tensor | None:
    """The lengths ``[..., H]`` for a key mask ``[..., 1, m]`` that only hides right padding; None for other masks."""
    m = k.shape[-2]
    lengths = lengths_of(mask[..., 0, :]) if mask.ndim >= 2 and mask.shape[-2:] == (1, m) else None
    return None if lengths is None else lengths.expand(lead)


def mapped(mapping: Any, params: dict[str, Any], q: Tensor | None = None) -> tuple[Callable[..., Tensor], Known]:
    """Resolve a mapping given by name, as a module or as a function.

    Parameters that are tensors with one number per head are reshaped for the scores of q ``[..., H, n, d]``.

    Returns ``f(scores, mask)`` and what is known about it.
    """
    spec: Spec | None = None
    if isinstance(mapping, str):
        spec = registry.spec(mapping)
    elif isinstance(mapping, Mapping):
        if params:
            raise ValueError(
                f"{mapping.spec.name} is given as a module, which has its own parameters; set {', '.join(params)} in the module, or pass the mapping's name"
            )
        spec = mapping.spec
    elif isinstance(mapping, nn.Module) or callable(mapping):
        name = getattr(mapping, "__name__", "")
        spec = registry.spec(name) if name in registry.names() and registry.spec(name).function is mapping else None
        if spec is None:
            registry.checked(mapping)
            why = f"{name or type(mapping).__name__} is not a mapping of this library"
            return lambda x, keep: mapping(x, mask=keep, **params), Known(why=why)
    elif isinstance(mapping, Tensor):
        raise TypeError(f"mapping is a tensor of shape {tuple(mapping.shape)}; if it is the mask, write mask=...")
    else:
        return mapped(registry.checked(mapping), params, q)  # which raises
    over_rows(spec)
    if isinstance(mapping, Mapping):
        values = mapping.params
        known = _known(spec.name, values, q)
        shaped = {name: forms.of_heads(name, x, q) for name, x in values.items()}
        if all(shaped[name] is x for name, x in values.items()):
            return lambda x, keep: mapping(x, mask=keep, dim=-1), known
        own: Any = spec.function
        return lambda x, keep: own(x, mask=keep, **shaped), known
    each = (*spec.inputs, *(param.name for param in spec.params if param.each))
    inputs = {name: params[name] for name in each if name in params}
    values = spec.check({name: value for name, value in params.items() if name not in inputs})
    if spec.function is None:
        made = spec.module(**values)
        return lambda x, keep: made(x, mask=keep, **inputs), Known(why=f"{spec.name} has no fused kernel")
    if words := [name for name, value in values.items() if isinstance(value, str) and value == "learned"]:
        raise ValueError(
            f"{words[0]}='learned' needs a module that holds the parameter: pass mapping=sa.make({spec.name!r}, {words[0]}='learned')"
        )
    function: Any = spec.function
    values = {name: forms.of_heads(name, x, q) for name, x in values.items()}
    return lambda x, keep: function(x, mask=keep, **values, **inputs), _known(spec.name, values, q)


def over_rows(spec: Spec) -> None:
    """Raise ValueError unless the mapping maps score vectors and has no state."""
    if spec.over != "row" or spec.stateful or spec.kind == "continuous":
        usable = ", ".join(name for name in registry.names("simplex") if registry.spec(name).over == "row")
        what = "remembers earlier steps" if spec.stateful else f"works over a {spec.over}"
        raise ValueError(f"{spec.name} {what}; attention needs a mapping of score vectors, such as {usable}")


def _known(name: str, values: dict[str, Any], q: Tensor | None) -> Known:
    given = {"alpha": 2.0, "gamma": 1.0, "lam": 0.0, **values}
    for key, value in values.items():
        if isinstance(value, Tensor):
            of_heads = _alphas(value, q) if name == "entmax" and q is not None else None
            return Known(why=f"{key} of {name} is a tensor", alphas=of_heads)
    if name == "fusedmax" and given["lam"] > 0:
        return Known(None, float(given["lam"]), 1.0 / given["gamma"])
    alphas = {"softmax": 1.0, "fusedmax": 2.0, "sparsemax": 2.0, "entmax": given["alpha"], "sparsegen_lin": 2.0}
    if (alpha := alphas.get(name)) is None:
        return Known(why=f"{name} has no fused kernel")
    if alpha != 1.0 and not ALPHAS[0] <= alpha <= ALPHAS[1]:
        return Known(why=f"entmax has a fused kernel for alpha {ALPHAS[0]} to {ALPHAS[1]:g}, not for {alpha:g}")
    return Known(float(alpha), None, 1.0 / (given["gamma"] * (1.0 - given["lam"])))


def _alphas(alpha: Tensor, q: Tensor) -> Tensor | None:
    """The alphas ``[..., H]`` of an entmax whose alpha has one number per head, or one for all; otherwise None."""
    alpha, lead = forms.of_heads("alpha", alpha, q), q.shape[:-2]
    if alpha.numel() == 1:
        return alpha.reshape(()).expand(lead)
    if alpha.ndim == q.ndim and alpha.shape[-2:] == (1, 1):
        alpha = alpha[..., 0]
    return alpha[..., 0].expand(lead) if 1 < alpha.ndim < q.ndim and alpha.shape[-1] == 1 else None
