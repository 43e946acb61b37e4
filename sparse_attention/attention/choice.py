"""Choose the path of a call, with the reason for the choice. A kernel itself says which tensors it can take (`refusal`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..kernels.native import attention as native
from ..kernels.reference.graph import exporting
from ..kernels.triton import attention as gpu
from ..rows.masked import readable
from ..rows.shape import foreign, transformed
from . import forms
from .call import Call, on_gpu
from .forms import Inputs, Numbers

SHORT = 64  # keys, see `_short`
_forward_ad = torch.autograd.forward_ad


class Plan(NamedTuple):
    """The path of a call, and the reason for it.

    path: "fused" (a native or Triton kernel that never stores the scores), "sdpa" (torch's
    scaled_dot_product_attention, for softmax) or "composition" (scores, then the mapping, then the product with the
    values; for any mapping and any device).
    """

    path: str
    reason: str


def choose(call: Call) -> Plan:
    """The plan of a checked call. Unless it is fused, the call is expanded."""
    plan = _choose(call)
    if plan.path != "fused":
        call.expand()
    return plan


def _choose(call: Call) -> Plan:
    if why := _against_any_kernel(call):
        return Plan("composition", why)
    if why := _short(call):
        return Plan("composition", why)
    if call.alpha == 1.0:
        if _few_with_gradient(call):
            return Plan(
                "composition", f"below {SHORT} keys it is as fast as torch's function, and twice differentiable"
            )
        return Plan("sdpa", "softmax is torch's own")
    if why := _against_fused(call):
        return Plan("composition", why)
    if call.foreign:
        if call.alphas is not None or call.bias is not None:
            return Plan("composition", "under torch.compile the kernel takes an alpha that is a number, and no bias")
        return Plan("fused", "as an operator, which chooses again when it gets the tensors")
    call.arguments = arguments(call)
    if why := refusal(*call.arguments):
        return Plan("composition", why)
    if call.lam:
        return Plan("fused", "fusedmax has a fused kernel, which takes these")
    name = "entmax with one alpha per head" if call.alpha is None else f"entmax {call.alpha:g}"
    return Plan("fused", f"{'sparsemax' if call.alpha == 2.0 else name} has a fused kernel, which takes these")


def _against_any_kernel(call: Call) -> str | None:
    if call.alpha is call.alphas is call.lam is None:
        return call.why
    if exporting():
        return "an ONNX graph has no operators of ours"
    if call.need_weights:
        return "the weights are asked for, so all of them are computed"
    if kernels.active() == "reference":
        return "kernels.use('reference') is active"
    if transformed():
        return "torch.func differentiates and batches the composition"
    if _forward_ad._current_level >= 0:
        return "forward-mode derivatives are those of the composition"
    return None


def _short(call: Call) -> str | None:
    """Why a call with gradients is computed as one step for all heads (`short`): its rows are short. Otherwise None.

    The limit was measured once; results must not depend on a machine's speed. Milliseconds of processor time, forward and backward,
    2,560 queries in all, d = 32 (64 alike), one thread, AVX-512: each entry has torch's attention or the kernel, then one step, then `composition.attend`.

        keys          20                 50                 64                 80                 100
        softmax       1.50 1.27 1.44     2.15 1.84 2.21     2.03 2.10 2.31     2.39 2.24 2.48     3.10 3.10 4.08
        sparsemax     1.89 1.35 1.63     2.30 1.91 2.20     2.09 2.14 2.28     2.28 2.26 2.80     2.44 2.98 3.38
        entmax 1.5    2.37 1.39 1.61     2.82 1.87 2.18     2.52 2.05 2.38     2.69 2.25 2.79     3.04 3.16 3.45
        fusedmax      2.36 1.63 1.88     2.81 2.26 2.70     2.68 2.46 2.91     2.83 2.78 3.18     3.28 3.68 4.58

    Without gradients one step gains nothing: at 20 keys .65 and .69 for sparsemax, at 100 keys 1.24 and 1.23.
    """
    m = call.k.shape[-2]
    if not _few_with_gradient(call) or not all(x.numel() for x in (call.q, call.k, call.v)):
        return None
    if call.alphas is not None or call.bias is not None or call.q.dtype == torch.float64:
        return None
    if call.mask is not None and not readable(call.mask):
        return None
    call.short = True
    call.arguments = arguments(call)
    q, k, v, *_ = call.arguments
    if call.dropout and native.refusal(q, k, v, 2.0):  # the kernels themselves choose what dropout drops
        call.short, call.arguments = False, None
        return None
    return f"{m} keys are too few for a kernel: below {SHORT}, all heads are computed in one step"


def _few_with_gradient(call: Call) -> bool:
    """True for fewer than `SHORT` keys on a CPU whose attention is differentiated."""
    if call.q.device.type != "cpu" or call.foreign or on_gpu(call.q) or call.k.shape[-2] - call.sink >= SHORT:
        return False
    given = (call.q, call.k, call.v, call.bias)
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)


def _against_fused(call: Call) -> str | None:
    if call.q.device.type not in ("cpu", "cuda"):
        return f"the fused kernels run on CPUs and CUDA devices, q is on {call.q.device}"
    if call.q.dtype == torch.float64:
        return "the fused kernels compute in float32, q is float64"
    if not (call.q.numel() and call.k.numel() and call.v.numel()):
        return "a dimension is empty"
    if call.dropout and (call.foreign or on_gpu(call.q)):
        return "dropout is fused only in the native kernel, outside torch.compile"
    if call.lam and on_gpu(call.q):
        return "fusedmax has a fused kernel only on CPUs"
    if call.mask is not None and not _as_spans(call) and call.foreign:
        return "the mask leaves gaps between a query's keys, which needs the scores"
    return None


def refusal(q: Tensor, k: Tensor, v: Tensor, inputs: Inputs, numbers: Numbers) -> str | None:
    """The reason not to use the fused kernel for these tensors, or None if it should be used.

    Either the kernel cannot take the tensors, or it would be slower than the composition.

    The limits are the sizes at which both are equally fast (d = 64, one thread, AVX-512; docs/guides/attention.md). The kernel
    packs the keys and takes 60 microseconds per call; its advantage is larger in the gradient than in the forward pass.
    """
    _, _, alphas, bias, mask, *_ = inputs
    alpha = 2.0 if alphas is not None else numbers.alpha
    if on_gpu(q):
        for name, x in (("bias", bias), ("mask", mask), ("alpha", alphas)):
            if x is not None and x.device != q.device:
                return f"the {name} is on {x.device} and q on {q.device}"
        why = gpu.refusal(q, k, v, alpha)
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
    return native.refusal(q, k, v, alpha)


def _out_of_range(alphas: Tensor, fused: tuple[float, float]) -> str | None:
    """Why these alphas are not fused. Reading their range waits for the GPU once; in a CUDA graph, they are not read."""
    if foreign(alphas) or (alphas.is_cuda and torch.cuda.is_current_stream_capturing()):
        return "the values of alpha must not be read"
    least, most = torch.stack(alphas.detach().aminmax()).tolist()
    if fused[0] <= least <= most <= fused[1]:
        return None
    return f"alpha ranges from {least:g} to {most:g}; fused are {fused[0]} to {fused[1]:g}"


def _as_spans(call: Call) -> bool:
    """If each query sees one contiguous range of keys (a window, packed sequences, padding), replace the mask by spans."""
    mask, m = call.mask, call.k.shape[-2]
    assert mask is not None
    if mask.device.type != "cpu" or foreign(mask) or mask.shape[-1:] != (m,) or on_gpu(call.q):
        return False
    mask = mask if mask.ndim > 1 else mask[None]
    if call.sink and not mask[..., 0].all():  # some head has no sink
        return False
    found = native.spans_of(mask[..., 1:] if call.sink else mask)
    if found is None:
        return False
    found = found + 1 if call.sink else found
    call.spans, call.mask = found if call.spans is None else forms.together(found, call.spans), None
    return True


def arguments(call: Call) -> tuple[Tensor, Tensor, Tensor, Inputs, Numbers]:
    """The arguments of the fused kernel: q ``[H, n, d]``, k ``[G, m, d]`` and v ``[G, m, e]``, with batch dimensions merged into the heads.

    They are converted to contiguous float32, except on a GPU: if all three have one dtype there, they keep it, and the
    kernel itself computes in float32; the groups of k and v need not be adjacent in memory. Bias, slopes and sinks get the mapping's factor.
    """
    *lead, n, _ = call.q.shape
    tensors, cuda = (call.q, call.k, call.v), call.q.device.type == "cuda"
    dtype = call.q.dtype if cuda and call.q.dtype == call.k.dtype == call.v.dtype else torch.float32
    q, k, v = (x.reshape(-1, *x.shape[-2:]).to(dtype) for x in tensors)
    if not cuda:
        k, v = k.contiguous(), v.contiguous()
    spans = call.spans
    if spans is not None and spans.shape[:-2].numel() == 1:
        spans = spans.reshape(1, -1, 2).expand(1, n, 2)
    elif spans is not None:
        spans = spans.expand(*lead, n, 2).reshape(-1, n, 2)
    scales = None if call.scales is None else call.scales.expand(*lead, n, 1).reshape(-1, n)
    slopes, sinks = (
        None if x is None else (x.view(-1) * call.factor).expand(lead).reshape(-1) for x in (call.slopes, call.sinks)
    )
    lengths, alphas = (None if x is None else x.reshape(-1) for x in (call.lengths, call.alphas))
    bias = None if call.bias is None else by_factor(call.bias, call.factor)
    inputs = Inputs(lengths, spans, alphas, bias, call.mask, scales, slopes, sinks)
    alpha = 2.0 if call.lam else call.alpha or 0.0
    return (
        q.contiguous(),
        k,
        v,
        inputs,
        Numbers(tuple(lead), alpha, call.scale, call.causal, call.sink, call.dropout, 0, call.lam, call.short),
    )


def by_factor(bias: Tensor, factor: float) -> Tensor:
    """The bias times the factor of a mapping, in float32 at least, since a product in half precision would be rounded."""
    return bias if factor == 1.0 else bias.to(torch.promote_types(bias.dtype, torch.float32)) * factor
