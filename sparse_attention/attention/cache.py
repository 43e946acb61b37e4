"""Decoding: attention of one query at a time over a long, growing cache of keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..kernels.native import attention as native
from ..kernels.native import decoding
from ..kernels.native.memory import dense
from ..rows.shape import foreign, transformed
from . import forms
from .attention import Attends, plan, sparse_attention
from .call import Call, checked, made, mapped, on_gpu
from .choice import Plan
from .reading import read as product


class KeyCache:
    """The keys and values of earlier positions, with attention to them using any mapping.

        cache = sa.KeyCache("sparsemax")
        cache.append(k, v)          # k [..., G, t, d], v [..., G, t, e]: first the prompt, then one position at a time
        out = cache.attend(q)       # q [..., H, n, d]: the last n positions -> [..., H, n, e]

    Results are exact: they equal ``sa.sparse_attention(q, cache.keys, cache.values, ..., causal=True)``. The cache is
    for inference only; no gradients are recorded. Memory grows by doubling, so each position is copied at most twice.

    A single query with sparsemax or entmax 1.5, with float32, bfloat16 or float16 keys on a CPU, uses a native kernel. The
    kernel keeps a second copy of the keys, rounded to 8 bits and grouped in panels with certified bounds (d + 0.5 bytes
    per key). It computes float32 scores only for the keys that may be in the support. In all other cases, all scores are
    computed. ``plan`` returns the path that is used.

    Args:
        mapping: as in ``sparse_attention``.
        scale: factor for the scores; by default ``d ** -0.5``. Also a tensor ``[H]``, one factor per head.
        slopes, window, sink: as in ``sparse_attention``; the native kernel supports them.
        params: parameters of a mapping given by name.
    Raises:
        ValueError, TypeError: as in ``sparse_attention``.
    """

    def __init__(
        self, mapping: Attends = "sparsemax", scale: float | Tensor | None = None, *, slopes: Tensor | None = None,
        window: forms.Window | None = None, sink: Tensor | None = None, **params: Any,
    ):  # fmt: skip
        self._mapping, self._params = made(mapping, params)
        self._alpha = mapped(self._mapping, self._params)[1].alpha
        self._scale = 1.0 if isinstance(scale, Tensor) else scale
        self._scales = scale if isinstance(scale, Tensor) else None
        self._asked: Any = scale
        forms.spans_of(1, 1, window, None, None)  # raises an error for an invalid window
        given = {"slopes": slopes, "window": window, "sink": sink}
        self._forms: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
        self._held: list[Tensor] = []  # keys and values, with free memory at the end
        self._length = 0
        self._panels: decoding.KeyPanels | None = None  # 8-bit copy of the keys, made at the first query that uses it
        self._ready: decoding.Step | None = None  # with it, the next query of this kind skips the checks

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}  # a copy's `_ready` would still read this cache's memory

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> Tensor:
        """A view of the m cached keys, ``[..., G, m, d]``."""
        return self._part(0)

    @property
    def values(self) -> Tensor:
        """A view of the m cached values, ``[..., G, m, e]``."""
        return self._part(1)

    def _part(self, which: int) -> Tensor:
        if not self._held:
            raise ValueError("the cache is empty: call append(k, v) first")
        return self._held[which].narrow(-2, 0, self._length)

    @torch.no_grad()
    def append(self, k: Tensor, v: Tensor) -> KeyCache:
        """Append t positions: k ``[..., G, t, d]``, v ``[..., G, t, e]``.

        Raises:
            ValueError: the shapes of k and v do not match each other, or do not match the cache (only t may differ).
            TypeError: the dtype or device differs from the cache.
        """
        if k.ndim < 2 or k.shape[:-1] != v.shape[:-1]:
            raise ValueError(
                f"k {tuple(k.shape)} and v {tuple(v.shape)} must have the same shape except for the last dimension: k [..., G, t, d], v [..., G, t, e]"
            )
        for name, x, held in zip("kv", (k, v), self._held):
            if x.shape[:-2] != held.shape[:-2] or x.shape[-1] != held.shape[-1]:
                raise ValueError(
                    f"{name} {tuple(x.shape)} does not fit the cache: it needs shape {(*held.shape[:-2], 't', held.shape[-1])}, with any t"
                )
            if x.dtype != held.dtype or x.device != held.device:
                raise TypeError(
                    f"{name} is {x.dtype} on {x.device}, but the cache holds {held.dtype} on {held.device}; convert {name}"
                )
        end = self._length + k.shape[-2]
        if self._ready is not None:
            self._ready.m = end
        if self._panels is not None and self._panels.due(end):
            self._ready = None
        if not self._held or end > self._held[0].shape[-2]:
            self._ready = None
            room = max(end, 2 * self._length)
            with torch.inference_mode(False):  # memory that may be written to in every mode
                grown = [x.new_empty(*x.shape[:-2], room, x.shape[-1]) for x in (k, v)]
            for new, old in zip(grown, self._held):
                new[..., : self._length, :] = old[..., : self._length, :]
            self._held = grown
        for held, x in zip(self._held, (k, v)):
            held[..., self._length : end, :] = x
        self._length = end
        return self

    def attend(
        self, q: Tensor, mask: Tensor | None = None, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Attend with the queries of the last n positions; each query sees the keys up to its own position.

        Args:
            q: ``[..., H, n, d]`` with H a multiple of G.
            mask, lengths, bias: as in ``sparse_attention``, for the m positions in the cache. The native kernel
                supports lengths and bias.
        Returns:
            ``[..., H, n, e]`` in q's dtype.
        Raises:
            ValueError: the cache is empty, or there are more queries than positions; otherwise as in
                ``sparse_attention``.
        """
        ready = self._ready
        if (
            ready is not None
            and mask is None
            and lengths is None
            and bias is None
            and q.shape == ready.queries
            and q.dtype is ready.out.dtype
            and q.is_cpu
            and q.is_contiguous()
            and not foreign(q)
            and not transformed()
            and kernels.active() != "reference"
        ):
            return ready(q, torch.empty_like(ready.out))
        with torch.no_grad():
            return self._attended(q, mask, lengths, bias)

    def _attended(self, q: Tensor, mask: Tensor | None, lengths: Tensor | None, bias: Tensor | None) -> Tensor:
        k, v = self.keys, self.values
        if q.ndim > 1 and q.shape[-2] > len(self):
            raise ValueError(f"{q.shape[-2]} queries, but {len(self)} cached positions; append their k and v first")
        call = self._single(q, mask, lengths, bias)
        if call is not None and self._against_panels(call) is None:
            return self._decoded(call, bias)
        given: Any = {"mask": mask, "lengths": lengths, **self._params}
        if call is None or self._scales is not None or self._forms or bias is not None:
            given |= {"scale": self._asked, "bias": bias, **self._forms}
            return sparse_attention(q, k, v, self._mapping, causal=True, **given)
        given, wide = {**given, "scale": self._scale}, torch.promote_types(q.dtype, torch.float32)
        _, p = sparse_attention(q.to(wide), k.to(wide), k[..., :0].to(wide), self._mapping, need_weights=True, **given)
        return at_support(p, v).to(q.dtype)

    def plan(
        self, q: Tensor, mask: Tensor | None = None, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Plan:
        """The path that `attend` takes for these arguments, and why; "decode" is the native kernel on 8-bit panels."""
        call = self._single(q, mask, lengths, bias)
        if call is None:
            given: Any = {"lengths": lengths, "scale": self._asked, "bias": bias, **self._forms, **self._params}
            return plan(q, self.keys, self.values, self._mapping, mask, causal=True, **given)
        why = self._against_panels(call)
        return Plan("composition", why) if why else Plan("decode", "one query per head on 8 bit panels of the keys")

    def _single(self, q: Tensor, mask: Tensor | None, lengths: Tensor | None, bias: Tensor | None) -> Call | None:
        """The checked call of a single query, without the forms and the bias; None for several queries, softmax or a GPU."""
        if q.ndim < 2 or q.shape[-2] != 1 or self._alpha == 1.0 or on_gpu(q):
            return None
        given = q, self.keys, self.values, self._mapping, mask, False, lengths, self._scale
        call = checked(*given, bias=bias, **self._params)
        call.bias = None
        return call

    def _against_panels(self, call: Call) -> str | None:
        """The reason why the native kernel cannot process this single query, or None if it can."""
        if call.alpha is None:
            return call.why or "this mapping has no fused kernel for one query"
        if call.mask is not None:
            return "a mask of any form needs the scores; right padding is lengths="
        if kernels.active() == "reference":
            return "kernels.use('reference') is active"
        if transformed() or call.foreign:
            return "torch.func and torch.compile see the composition"
        if call.k.shape[:-2] != self._held[0].shape[:-2]:
            return "the queries' first dimensions are not those of the keys"
        if not (call.q.is_cpu and call.q.numel() and call.v.numel()):
            return f"the native kernel decodes on a CPU, q is {tuple(call.q.shape)} on {call.q.device}"
        q, k, v = (x.detach().reshape(-1, *x.shape[-2:]) for x in (call.q, call.k[..., :1, :], call.v[..., :1, :]))
        return native.refusal(q, k, v, call.alpha, decoding=True)

    def _decoded(self, call: Call, bias: Tensor | None) -> Tensor:
        k, v = (x.unsqueeze(0) if x.ndim == 2 else x.flatten(0, -3) for x in (call.k, call.v))  # [... G, m, .], views
        if self._panels is None:
            self._panels = decoding.KeyPanels(k.shape[0], k.shape[2])
        self._panels.append(k)
        lengths, heads, m = call.lengths, call.q.shape[:-1].numel(), k.shape[1]
        lengths = None if lengths is None else dense(lengths.reshape(-1))  # one per head, in its own memory
        given = {"scale": self._scales, "slopes": self._forms.get("slopes"), "sink": self._forms.get("sink")}
        scales, slopes, sinks = (
            None if x is None else dense(forms.per_head(name, x, call.q).reshape(-1)) for name, x in given.items()
        )
        left = self._forms.get("window", (None, None))[0]
        assert call.alpha is not None
        window, factor = None if left is None else left + 1, mapped(self._mapping, self._params)[1].factor
        numbers: dict[str, Any] = {"alpha": call.alpha, "scale": call.scale, "window": window, "factor": factor}
        arrays: dict[str, Any] = {"lengths": lengths, "scales": scales, "slopes": slopes, "sinks": sinks}
        step = decoding.step(heads, k, v, self._panels, **numbers, **arrays)
        out = call.q.new_empty(*call.q.shape[:-1], v.shape[-1])
        if bias is not None:
            rows = bias.float().expand(*bias.shape[:-1], m)
            alone = rows.numel() == m
            rows = rows.reshape(1, m) if alone else rows.expand(*call.q.shape[:-1], m).reshape(-1, m)
            return step(call.q.contiguous(), out, dense(rows))
        if lengths is None and isinstance(self._mapping, str):  # not for a module, whose parameters may change
            step.queries, step.out, self._ready = call.q.shape, out, step
        return step(call.q.contiguous(), torch.empty_like(out))

    def reorder(self, index: Tensor) -> KeyCache:
        """Keep the entries ``index`` of the first dimension, in that order, as a beam search does."""
        if self._panels is not None:
            lead = self._held[0].shape[:-2]
            groups = torch.arange(lead.numel()).view(lead)[index.cpu()]
            self._panels.reorder(groups.reshape(-1))
        with torch.inference_mode(False), torch.no_grad():
            self._held, self._ready = [x.index_select(0, index) for x in self._held], None
        return self

    def crop(self, length: int) -> KeyCache:
        """Drop everything after the first ``length`` positions. Raises ValueError if there are fewer."""
        if not 0 <= length <= len(self):
            raise ValueError(f"length={length} is out of range: 0 <= length <= {len(self)}, the cached positions")
        self._length, self._ready = length, None
        if self._panels is not None:
            self._panels.crop(length)
        return self


def at_support(p: Tensor, v: Tensor) -> Tensor:
    """``p [..., H, 1, m] @ v [..., G, m, e]``, reading only the values where p is not 0.

    If more than a quarter of p is nonzero, all values are read.
    """
    rows = p.reshape(-1, p.shape[-1])  # [... H, m]
    row, column = rows.nonzero(as_tuple=True)
    if 4 * len(row) > rows.numel():
        return product(p, v.to(p.dtype))
    groups = v.unsqueeze(0) if v.ndim == 2 else v.flatten(0, -3)  # [... G, m, e]
    read = groups[row // (len(rows) // len(groups)), column].to(p.dtype) * rows[row, column].unsqueeze(-1)
    return p.new_zeros(len(rows), v.shape[-1]).index_add_(0, row, read).view(*p.shape[:-1], v.shape[-1])
