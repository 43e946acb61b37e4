"""The fused kernel as a differentiable function, and as an opaque operator for tensors whose memory must not be read.

The arguments are q ``[H, n, d]``, k ``[G, m, d]``, v ``[G, m, e]`` and those of `forms.Inputs` and `forms.Numbers`. The first gradient reads only the support. The second gradient is computed by the composition, which recomputes
the first. Under torch.compile, the operator's gradient repeats the forward pass, since the size of the support is not
known in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..kernels.native import attention as native
from ..kernels.triton import LaunchFailed, give_up
from ..kernels.triton import attention as gpu
from ..kernels.triton.attention import Saved
from ..rows.operators import LIBRARY, OPERATORS, define
from . import composition, short
from .call import on_gpu
from .choice import refusal
from .forms import Inputs, Numbers


def _kernel(q: Tensor) -> Any:
    """The module whose `forward` and `gradients` handle such tensors."""
    return gpu if on_gpu(q) else native


def run(numbers: Numbers, q: Tensor, k: Tensor, v: Tensor, *inputs: Tensor | None) -> Tensor:
    """The output ``[..., H, n, e]``. On a GPU q, k and v may have any dimensions before the heads, the same in all three."""
    if torch.is_grad_enabled():
        for x in (q, k, v, *inputs):
            if x is not None and x.requires_grad:
                return Fused.apply(numbers, q, k, v, *inputs)
    found = _started(_run, q, k, v, Inputs(*inputs) if inputs else _NONE, numbers, False)
    return found[0] if found else _composed(q, k, v, Inputs(*inputs), numbers)  # type: ignore[no-any-return]


def _flat(x: Tensor) -> Tensor:
    return x if x.ndim == 3 else x.reshape(-1, x.shape[-2], x.shape[-1])


class Fused(Function):
    """`forward` and `gradients` of the kernel; second derivatives come from the composition."""

    @staticmethod
    def forward(ctx: Any, numbers: Numbers, q: Tensor, k: Tensor, v: Tensor, *inputs: Tensor | None) -> Tensor:
        ctx.kernel, ctx.numbers, ctx.given = short if numbers.short else _kernel(q), numbers, len(inputs)
        found = _started(_run, q, k, v, Inputs(*inputs) if inputs else _NONE, numbers, True)
        out, saved = found or (_composed(q, k, v, Inputs(*inputs), numbers), None)
        if saved.__class__ is Saved:
            ctx.saved = saved.kind
            ctx.save_for_backward(q, k, v, *inputs, saved.state, *saved.forms)
        else:
            ctx.save_for_backward(q, k, v, *inputs)
            ctx.saved = saved
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *rest = ctx.saved_tensors
        many, saved, needs = ctx.given, ctx.saved, ctx.needs_input_grad[1:]
        inputs = Inputs(*rest[:many]) if many else _NONE
        if len(rest) > many:
            saved = Saved(rest[many], tuple(rest[many + 1 :]), saved)
        if not (saved is None or torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(g)):
            bias = inputs.bias if needs[6:7] == (True,) else None
            found = _started(ctx.kernel.gradients, g.contiguous(), q.contiguous(), k, v, saved, bias)
            if found is not None:
                if not many:
                    return None, *found[:3]
                names = Inputs._fields[:many]
                more = ((getattr(found, name, None), getattr(inputs, name)) for name in names)
                return None, *found[:3], *(None if dx is None else dx.to(x.dtype) for dx, x in more)
        with torch.enable_grad():  # the kernel did not start or gave NaN, create_graph, is_grads_batched
            out = _composed(q, k, v, inputs, ctx.numbers)
        given = (q, k, v, *rest[: ctx.given])
        wanted = [x for x, need in zip(given, needs) if need]
        each = iter(torch.autograd.grad(out, wanted, g, create_graph=torch.is_grad_enabled(), retain_graph=True))
        return None, *(next(each) if need else None for need in needs)


def _composed(q: Tensor, k: Tensor, v: Tensor, inputs: Inputs, numbers: Numbers) -> Tensor:
    if q.ndim != 3:
        out = _composed(_flat(q), _flat(k), _flat(v), inputs, numbers)
        return out.view(*q.shape[:-1], v.shape[-1])
    n, m, lead, lengths = q.shape[-2], k.shape[-2], numbers.lead, inputs.lengths
    if lengths is not None and len(lengths) < len(q):
        lengths = lengths.repeat_interleave(len(q) // len(lengths))
    keep = composition.visible(n, m, lengths, numbers.causal, q.device, inputs.spans, numbers.pinned)
    if inputs.mask is not None:
        mask = inputs.mask.expand(*lead, n, m).reshape(-1, n, m)
        keep = mask if keep is None else keep & mask
    mapping = composition.of_alpha(numbers.alpha, inputs.alphas, numbers.lam)
    dropout, seed = numbers.dropout, numbers.seed
    factors = native.dropout_factors((q.shape[0], n, m), dropout, seed) if dropout else 0.0
    mapping, dtype = composition.with_forms(mapping, inputs, lead), q.dtype
    q, k, v = (x.float() for x in (q, k, v))
    return composition.attend(q, k, v, numbers.scale, mapping, keep, factors)[0].to(dtype)


def _started(run: Callable[..., Any], *given: Any) -> Any:
    """The result of ``run(*given)``, or None if a Triton kernel in it does not start (`give_up`)."""
    try:
        return run(*given)
    except LaunchFailed as error:
        give_up("attention", error)


def _run(q: Tensor, k: Tensor, v: Tensor, inputs: Inputs, numbers: Numbers, save: bool) -> Any:
    if numbers.short:
        return short.forward(q, k, v, inputs, numbers, save)
    lead, alpha, scale, causal, *_ = numbers
    if on_gpu(q):
        if inputs is _NONE:
            return gpu.forward(q.contiguous(), k, v, alpha=alpha, scale=scale, causal=causal, save=save, lead=lead)
        given: dict[str, Any] = {name: x for name, x in zip(Inputs._fields, inputs) if x is not None}
        return gpu.forward(q.contiguous(), k, v, alpha=alpha, scale=scale, causal=causal, save=save, lead=lead, **given)
    given = {"lead": lead, "alpha": alpha, "scale": scale, "causal": causal}
    given |= {name: getattr(inputs, name) for name in ("lengths", "spans", "alphas", "bias", "mask")}
    given |= {name: getattr(numbers, name) for name in ("pinned", "dropout", "seed", "lam")}
    return native.forward(q, k, v, save=save, **given)


_NONE = Inputs()


def _split(given: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor, Inputs, Numbers]:
    """The arguments of the operators."""
    q, k, v, lengths, spans, scales, slopes, sinks, *numbers = given
    if not on_gpu(q):
        k, v = k.contiguous(), v.contiguous()
    inputs = Inputs(lengths, spans, scales=scales, slopes=slopes, sinks=sinks)
    alpha, scale, causal, pinned, lam = numbers
    return q.contiguous(), k, v, inputs, Numbers((q.shape[0],), alpha, scale, causal, pinned, lam=lam)


def _attention(*given: Any) -> Tensor:
    q, k, v, inputs, numbers = _split(given)
    fits = refusal(q, k, v, inputs, numbers) is None
    found = _started(_run, q, k, v, inputs, numbers, False) if fits else None
    return found[0] if found else _composed(q, k, v, inputs, numbers)


def _vjp(g: Tensor, *given: Any) -> tuple[Tensor, ...]:
    q, k, v, inputs, numbers = _split(given)
    g, given, found = g.contiguous(), (q, k, v, *inputs[5:]), None
    if refusal(q, k, v, inputs, numbers) is None:
        at = _started(lambda: _kernel(q).gradients(g, q, k, v, _run(q, k, v, inputs, numbers, True)[1]))
        found = at and (at.q, at.k, at.v, at.scales, at.slopes, at.sinks)
    if found is None:
        found = composition.gradients(g.float(), q.float(), k.float(), v.float(), inputs, numbers)
    return tuple(q.new_empty(0) if x is None else dx.to(x.dtype) for dx, x in zip(found, given))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.numbers = inputs[8:]


def _backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    dq, dk, dv, *rest = OPERATORS.attention_vjp(g, *ctx.saved_tensors, *ctx.numbers)
    rest = [None if x is None else dx for dx, x in zip(rest, ctx.saved_tensors[5:])]
    return dq, dk, dv, None, None, *rest, *[None] * len(ctx.numbers)


def _vjp_fake(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lengths: Any, spans: Any, *given: Any) -> tuple[Tensor, ...]:
    return tuple(q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (q, k, v, *given[:3]))


_GIVEN = (
    "Tensor q, Tensor k, Tensor v, Tensor? lengths, Tensor? spans, Tensor? scales, Tensor? slopes, Tensor? sinks, "
    "float alpha, float scale, bool causal, bool pinned, float? lam"
)
define(f"attention({_GIVEN}) -> Tensor", _attention, lambda q, k, v, *_: q.new_empty(*q.shape[:-1], v.shape[-1]))
define(f"attention_vjp(Tensor g, {_GIVEN}) -> ({', '.join(['Tensor'] * 6)})", _vjp, _vjp_fake)
torch.library.register_autograd("sparse_attention::attention", _backward, setup_context=_setup, lib=LIBRARY)


def opaque(numbers: Numbers, q: Tensor, k: Tensor, v: Tensor, *inputs: Tensor | None) -> Tensor:
    """`Fused` for torch.compile, tracing and modes, without alphas, bias, mask and dropout. Differentiating twice raises an error."""
    _, alpha, scale, causal, pinned, _, _, lam, *_ = numbers
    return OPERATORS.attention(q, k, v, *inputs[:2], *inputs[5:], alpha, scale, causal, pinned, lam)
