"""The fused kernel as a differentiable function, and as an opaque operator for tensors whose memory must not be read.

The arguments are q ``[H, n, d]``, k ``[G, m, d]``, v ``[G, m, e]``, lengths ``[H]``, spans ``[1 or H, n, 2]``, alphas
``[H]`` or alpha, pinned: every query sees key 0, bias and mask, broadcastable to ``[*lead, n, m]`` with H heads in
``lead``, and dropout with its seed. The first gradient reads only the support. The second gradient is computed by the composition, which recomputes
the first. Under torch.compile, the operator's gradient repeats the forward pass, since the size of the support is not
known in advance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..kernels.native import attention as native
from ..kernels.triton import LaunchFailed, give_up
from ..kernels.triton import attention as gpu
from ..rows.masked import readable
from ..rows.shape import foreign
from . import composition

_LIBRARY = torch.library.Library("sparse_attention", "FRAGMENT")
_OPERATORS = torch.ops.sparse_attention


def _kernel(q: Tensor) -> Any:
    """The module whose `forward` and `backward` handle such tensors.

    After ``kernels.use("triton")``, the Triton kernels run on CPU tensors too, in Triton's interpreter.
    """
    return gpu if q.is_cuda or kernels.active() == "triton" else native


def refusal(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | None, spans: Tensor | None = None, alphas: Tensor | None = None,
    pinned: bool = False, bias: Tensor | None = None, mask: Tensor | None = None, lam: float | None = None,
) -> str | None:  # fmt: skip
    """The reason not to use the fused kernel for these tensors, or None if it should be used.

    Either the kernel cannot take the tensors, or it would be slower than the composition.

    The limits are the sizes at which both are equally fast (d = 64, one thread, AVX-512; docs/guides/attention.md). The kernel
    packs the keys and takes 60 microseconds per call; its advantage is larger in the gradient than in the forward pass.
    """
    if _kernel(q) is gpu:
        if lam:
            return "the Triton kernels take sparsemax and entmax"
        for name, x in (("bias", bias), ("mask", mask), ("alpha", alphas)):
            if x is not None and x.device != q.device:
                return f"the {name} is on {x.device} and q on {q.device}"
        why = gpu.refusal(q, k, v, 2.0 if alpha is None else alpha)
        return why or (None if alphas is None else _out_of_range(alphas, gpu.ALPHAS))
    n, m = q.shape[1], k.shape[1]
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, alphas, bias)):
        if m < 32:
            return f"{m} keys are too few: the composition is as fast below 32"
    elif m < 96 or n < 8:
        return f"{n} queries and {m} keys are too few: without gradients the composition is as fast below 8 and 96"
    for name, x in (("bias", bias), ("mask", mask)):
        if x is not None and not readable(x):
            return f"the values of the {name} must not be read"
    if alphas is not None:
        if not readable(alphas):
            return "the values of alpha must not be read"
        if why := _out_of_range(alphas, native.ALPHAS):
            return why
    return native.refusal(q, k, v, 2.0 if alpha is None or alphas is not None else alpha)


def _out_of_range(alphas: Tensor, fused: tuple[float, float]) -> str | None:
    """Why these alphas are not fused. Their range is read, for which a GPU is waited for once, but not in a CUDA graph."""
    if foreign(alphas) or (alphas.is_cuda and torch.cuda.is_current_stream_capturing()):
        return "the values of alpha must not be read"
    least, most = torch.stack(alphas.detach().aminmax()).tolist()
    if fused[0] <= least <= most <= fused[1]:
        return None
    return f"alpha ranges from {least:g} to {most:g}; fused are {fused[0]} to {fused[1]:g}"


class Fused(Function):
    """`forward` and `backward` of the kernel; second derivatives come from the composition."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, spans: Tensor | None, alphas: Tensor | None,
        bias: Tensor | None, mask: Tensor | None, lead: tuple[int, ...], alpha: float, scale: float, causal: bool, pinned: bool,
        dropout: float, seed: int, lam: float | None,
    ) -> Tensor:  # fmt: skip
        ctx.kernel, save = _kernel(q), any(ctx.needs_input_grad)
        kept: list[Tensor] = []
        given = q, k, v, lengths, spans, alphas, bias, mask
        ctx.rest = lead, alpha, scale, causal, pinned, dropout, seed, lam
        only = {"dropout": dropout, "seed": seed, "lam": lam} if ctx.kernel is native else {}
        try:
            out, ctx.saved = ctx.kernel.forward(
                q, k, v, alpha=alpha, scale=scale, causal=causal, lengths=lengths, spans=spans, alphas=alphas, pinned=pinned,
                bias=bias, mask=mask, lead=lead, save=save, **only,
            )  # fmt: skip
        except LaunchFailed as error:
            give_up("attention", error)
            out, ctx.saved = _composed(*given, *ctx.rest), None
        if ctx.saved is not None and ctx.kernel is gpu:
            kept, ctx.saved = gpu.apart(ctx.saved)
        ctx.save_for_backward(*given, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, lengths, spans, alphas, bias, mask, *kept = ctx.saved_tensors
        saved: Any = gpu.together(kept, ctx.saved) if kept else ctx.saved
        needs = [ctx.needs_input_grad[i] for i in (0, 1, 2, 5, 6)]
        if saved is None or torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(g):
            # the kernel did not start, create_graph, is_grads_batched
            with torch.enable_grad():
                out = _composed(q, k, v, lengths, spans, alphas, bias, mask, *ctx.rest)
            wanted = [x for x, need in zip((q, k, v, alphas, bias), needs) if need]
            found = iter(torch.autograd.grad(out, wanted, g, create_graph=torch.is_grad_enabled(), retain_graph=True))
            dq, dk, dv, dalphas, dbias = (next(found) if need else None for need in needs)
        elif alphas is None and bias is None:
            dq, dk, dv = ctx.kernel.backward(g.contiguous(), q, k, v, saved)
            dalphas = dbias = None
        elif ctx.kernel is gpu:
            dq, dk, dv, dbias, dalphas = gpu.gradients(g.contiguous(), q, k, v, saved, bias if needs[4] else None)
            dbias = None if dbias is None else dbias.to(bias.dtype)
            dalphas = None if dalphas is None else dalphas.to(alphas.dtype)
        else:
            at = native.gradients(g.contiguous(), q, k, v, saved, needs[4])
            dq, dk, dv = at.q, at.k, at.v
            dalphas = None if at.alphas is None else at.alphas.to(alphas.dtype)
            dbias = None if at.bias is None else at.bias.to(bias.dtype)
        return dq, dk, dv, None, None, dalphas, dbias, *[None] * 9


def _composed(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, spans: Tensor | None, alphas: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, lead: tuple[int, ...], alpha: float, scale: float, causal: bool, pinned: bool,
    dropout: float = 0.0, seed: int = 0, lam: float | None = None,
) -> Tensor:  # fmt: skip
    n, m = q.shape[-2], k.shape[-2]
    keep, mapping = (
        composition.visible(n, m, lengths, causal, q.device, spans, pinned),
        composition.of_alpha(alpha, alphas, lam),
    )
    if mask is not None:
        mask = mask.expand(*lead, n, m).reshape(-1, n, m)
        keep = mask if keep is None else keep & mask
    if bias is not None:
        added, plain = bias.float().expand(*lead, n, m).reshape(-1, n, m), mapping
        mapping = lambda x, keep: plain(x + added, keep)  # noqa: E731
    factors = native.dropout_factors((q.shape[0], n, m), dropout, seed) if dropout else 0.0
    return composition.attend(q.float(), k.float(), v.float(), scale, mapping, keep, factors)[0].to(q.dtype)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, spans: Tensor | None, alpha: float, scale: float, causal: bool,
    pinned: bool, lam: float | None = None,
) -> Tensor:  # fmt: skip
    q, k, v = (x.contiguous() for x in (q, k, v))
    if refusal(q, k, v, alpha, spans, pinned=pinned, lam=lam) is None:
        return _run(q, k, v, lengths, spans, alpha, scale, causal, pinned, lam, False)[0]
    return _composed(q, k, v, lengths, spans, None, None, None, (), alpha, scale, causal, pinned, lam=lam)


def _run(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, spans: Tensor | None, alpha: float, scale: float, causal: bool,
    pinned: bool, lam: float | None, save: bool,
) -> Any:  # fmt: skip
    only = {} if lam is None else {"lam": lam}
    return _kernel(q).forward(
        q, k, v, alpha=alpha, scale=scale, causal=causal, lengths=lengths, spans=spans, pinned=pinned, save=save, **only
    )


def _vjp(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, spans: Tensor | None, alpha: float, scale: float,
    causal: bool, pinned: bool, lam: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    g, q, k, v = (x.contiguous() for x in (g, q, k, v))
    if refusal(q, k, v, alpha, spans, pinned=pinned, lam=lam) is not None:
        found = composition.gradients(
            g.float(), q.float(), k.float(), v.float(), lengths, spans, alpha, scale, causal, pinned, lam
        )
        return tuple(x.to(q.dtype) for x in found)  # type: ignore[return-value]
    saved = _run(q, k, v, lengths, spans, alpha, scale, causal, pinned, lam, True)[1]
    return _kernel(q).backward(g, q, k, v, saved)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.alpha, ctx.scale, ctx.causal, ctx.pinned, ctx.lam = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    found = _OPERATORS.attention_vjp(g, *ctx.saved_tensors, ctx.alpha, ctx.scale, ctx.causal, ctx.pinned, ctx.lam)
    return (*found, *[None] * 7)


_GIVEN = (
    "Tensor q, Tensor k, Tensor v, Tensor? lengths, Tensor? spans, float alpha, float scale, bool causal, bool pinned, "
    "float? lam=None"
)
_LIBRARY.define(f"attention({_GIVEN}) -> Tensor")
_LIBRARY.define(f"attention_vjp(Tensor g, {_GIVEN}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.impl("attention", _attention, "CompositeExplicitAutograd")
_LIBRARY.impl("attention_vjp", _vjp, "CompositeExplicitAutograd")
torch.library.register_fake(
    "sparse_attention::attention", lambda q, k, v, *_: q.new_empty(*q.shape[:-1], v.shape[-1]), lib=_LIBRARY
)
torch.library.register_fake(
    "sparse_attention::attention_vjp",
    lambda g, q, k, v, *_: tuple(x.new_empty(x.shape) for x in (q, k, v)),
    lib=_LIBRARY,
)
torch.library.register_autograd("sparse_attention::attention", _backward, setup_context=_setup, lib=_LIBRARY)


def opaque(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, spans: Tensor | None, alphas: None, bias: None, mask: None,
    lead: tuple[int, ...], alpha: float, scale: float, causal: bool, pinned: bool, dropout: float = 0.0, seed: int = 0,
    lam: float | None = None,
) -> Tensor:  # fmt: skip
    """`Fused` for torch.compile, tracing and modes. Differentiating twice raises an error."""
    return _OPERATORS.attention(q, k, v, lengths, spans, alpha, scale, causal, pinned, lam)
