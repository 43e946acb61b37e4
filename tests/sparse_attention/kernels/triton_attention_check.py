"""Run by test_triton_attention.py in a process of its own, with TRITON_INTERPRET=1: fused attention for the GPU on the CPU.

Prints one JSON object: "kernels", for each case its name, type and largest errors of out, dq, dk, dv (and the gradients of the bias and alphas) against the composition
in float64, whether the supports are equal and the share of blocks without support; "public", whether `sa.sparse_attention`
took the kernels, and its errors; "range", the plan for alphas that the kernels do not take.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

import sparse_attention as sa
from sparse_attention.fused import composition, forms, reading
from sparse_attention.kernels.triton import attention

BLOCK = 16
_dot = InterpreterBuilder.create_dot


def _widened(x):
    """Triton 3.9's interpreter multiplies the bit patterns of bfloat16 as whole numbers: give it their values."""
    if x.dtype.scalar is not tl.bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


InterpreterBuilder.create_dot = lambda self, a, b, *rest: _dot(self, _widened(a), _widened(b), *rest)
# Name, alpha, H, G, n, m, d, e, causal, lengths.
CASES = [
    ("causal, grouped", 2.0, 2, 1, 18, 37, 5, 3, True, None),
    ("causal, grouped", 1.5, 2, 1, 18, 37, 5, 3, True, None),
    ("more queries than keys", 2.0, 1, 1, 20, 7, 4, 4, True, None),
    ("lengths", 1.5, 2, 2, 5, 33, 16, 17, False, [0, 21]),
    ("causal and lengths", 1.3, 2, 2, 9, 20, 4, 4, True, [20, 15]),
    ("ties", 2.0, 1, 1, 3, 35, 4, 4, False, None),
    ("ties", 1.5, 1, 1, 3, 35, 4, 4, False, None),
    ("huge scores", 2.0, 1, 1, 4, 40, 4, 4, False, None),
    ("one query", 2.0, 2, 1, 1, 50, 8, 8, False, None),
    ("one key", 1.5, 1, 1, 3, 1, 8, 8, False, None),
    ("excluded and spoilt", 2.0, 1, 1, 4, 20, 4, 4, False, None),
]
# Name, alpha, H, G, n, m, causal, lengths, and of what the spans and the bias consist: windows reach over several blocks,
# so that the first one seen is not the first; some queries see nothing, or only the pinned key 0.
FORMS = [
    ("window", 2.0, 2, 1, 60, 70, True, None, {"window": (20, 0)}),
    ("window on both sides, one for each head", 1.5, 2, 2, 40, 40, False, None, {"window": (18, 5), "per head": True}),
    ("packed, lengths", 1.3, 2, 1, 50, 50, False, [50, 43], {"packed": (0, 3, 3, 33, 50)}),
    ("pinned window", 2.0, 2, 1, 60, 61, True, None, {"window": (16, 0), "pinned": True}),
    ("pinned, empty spans", 1.5, 1, 1, 40, 41, False, [40], {"empty": True, "pinned": True}),
    ("empty spans", 1.5, 1, 1, 40, 41, False, None, {"empty": True}),
    ("bias", 1.5, 4, 2, 20, 37, True, None, {"bias": (2, 2, 20, 37), "lead": (2, 2)}),
    ("bias of keys", 2.0, 4, 2, 20, 37, False, None, {"bias": (2, 1, 1, 37), "lead": (2, 2)}),
    ("bias of heads", 1.3, 2, 2, 20, 37, False, [37, 9], {"bias": (2, 20, 1)}),
    ("mask", 2.0, 4, 2, 20, 37, True, None, {"mask": (2, 1, 20, 37), "lead": (2, 2)}),
    ("alpha per head", 0.0, 4, 2, 20, 37, True, None, {"alphas": (1.1, 2.0, 1.5, 1.3)}),
    ("alpha per head, bias, pinned window", 0.0, 2, 2, 40, 40, True, None, {"alphas": (1.25, 1.8), "bias": (2, 40, 40), "window": (17, 0), "pinned": True}),
    ("mask and bias, pinned window", 1.5, 2, 2, 40, 40, True, None, {"mask": (40,), "bias": (2, 40, 40), "window": (17, 0), "pinned": True}),
]  # fmt: skip


def form(name, alpha, H, G, n, m, causal, lengths, parts):
    """Errors as in `case`, with the gradients of the bias and the heads' alphas, for spans, biases, masks and such alphas."""
    generator = torch.Generator().manual_seed(n)
    q, k, v, g = (
        (torch.randn(s, generator=generator) * 8).round() / 4 for s in ((H, n, 8), (G, m, 8), (G, m, 6), (H, n, 6))
    )
    lengths = None if lengths is None else torch.tensor(lengths)
    spans = None
    if "window" in parts or "packed" in parts:
        ends = torch.tensor(parts["packed"]) if "packed" in parts else None
        spans = forms.spans_of(n, m, parts.get("window"), ends, q.device)[None]
        if "per head" in parts:
            spans = torch.cat([spans, (spans - 7).clamp(min=0)])
    if "empty" in parts:
        at = torch.arange(n) % 20
        spans = torch.stack([at + 15, torch.where(at % 3 == 0, at, at + 17)], -1)[None]
        spans[:, :16] = 5  # a whole block of queries
    pinned, lead = parts.get("pinned", False), parts.get("lead", (H,))
    mask = torch.rand(parts["mask"], generator=generator) > 0.3 if "mask" in parts else None
    bias = torch.randn(parts["bias"], generator=generator).mul(8).round().div(4) if "bias" in parts else None
    if bias is not None and bias.shape[-1] > 1:
        bias[..., 3] = -torch.inf  # hides the key
    alphas = torch.tensor(parts["alphas"]) if "alphas" in parts else None
    given = {
        "lengths": lengths,
        "spans": spans,
        "bias": bias,
        "mask": mask,
        "lead": lead,
        "pinned": pinned,
        "alphas": alphas,
    }
    out, saved = attention.forward(q, k, v, alpha=alpha, scale=0.25, causal=causal, block=BLOCK, **given)
    found = [x for x in (out, *attention.gradients(g, q, k, v, saved, bias)) if x is not None]
    keep = composition.visible(n, m, lengths, causal, None, spans, pinned)
    keep = torch.ones(n, m, dtype=torch.bool) if keep is None else keep
    if mask is not None:
        keep = keep & mask.expand(*lead, n, m).reshape(-1, n, m)
    wide = [x.double().requires_grad_() for x in (q, k, v, bias, alphas) if x is not None]
    added = torch.zeros(1) if bias is None else wide[3].expand(*lead, n, m).reshape(-1, n, m)
    keep = keep & (added > -torch.inf)
    entmax = composition.of_alpha(alpha, None if alphas is None else wide[-1])
    expected, weights = composition.attend(
        *wide[:3], 0.25, lambda x, keep: entmax(x + added.masked_fill(added == -torch.inf, 0), keep), keep
    )
    expected = [expected, *torch.autograd.grad(expected, wide, g.double())]
    errors = [float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(found, expected, strict=True)]
    blank = saved.flags == 0
    support = F.max_pool2d(F.pad((weights > 1e-14).float(), (0, -m % BLOCK, 0, -n % BLOCK)), BLOCK) > 0
    return [name, "torch.float32", errors, not bool((support & blank).any()), float(blank.double().mean())]


def case(name, alpha, H, G, n, m, d, e, causal, lengths, dtype):
    generator = torch.Generator().manual_seed(m)
    # Small whole numbers over 4: every type holds them, and float32 holds their products, so that all see the same scores.
    q, k, v, g = (
        (torch.randn(s, generator=generator) * 8).round() / 4 for s in ((H, n, d), (G, m, d), (G, m, e), (H, n, e))
    )
    k = k[:, :1].expand_as(k) if name == "ties" else k * 2.0**14 if name == "huge scores" else k
    q[0, 0, 0] = torch.nan if name == "excluded and spoilt" else q[0, 0, 0]
    lengths = None if lengths is None else torch.tensor(lengths)
    q, k, v, g = (x.to(dtype).contiguous() for x in (q, k, v, g))
    out, saved = attention.forward(q, k, v, alpha=alpha, scale=0.25, causal=causal, lengths=lengths, block=BLOCK)
    found = (out, *attention.backward(g, q, k, v, saved))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    keep = composition.visible(n, m, lengths, causal)
    expected, weights = composition.attend(*wide, 0.25, composition.of_alpha(alpha), keep)
    expected = (expected, *torch.autograd.grad(expected, wide, g.double()))
    if name == "excluded and spoilt":  # the query with NaN is lost, the others are not; dk and dv sum over all
        assert out[0, 0].isnan().all() and found[1][0, 0].isnan().all()
        found, expected = [[x[:, 1:] for x in xs[:2]] for xs in (found, expected)]
    scores = reading.times(q.double() * 0.25, k.double().mT) * (alpha - 1)
    scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    support = (scores - saved.top.double()[..., None]) - saved.tau.double()[..., None] > 1e-7
    rows = slice(1, None) if name == "excluded and spoilt" else slice(None)
    same = bool((support == (weights > 1e-14))[:, rows].all())
    errors = [float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(found, expected)]
    return [name, str(dtype), errors, same, float((saved.flags == 0).double().mean())]


def public(mapping, second=True, causal=True, **params):
    """Through `sa.sparse_attention`, a batch of two with two heads whose channels lie apart in memory, and the gradient of a gradient."""
    q, k, v = (torch.randn(2, 2, 4, 6, generator=torch.Generator().manual_seed(i)).mT for i in range(3))
    learned = [name for name, x in params.items() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    outcomes = []
    for kernel, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        own = {name: params[name].to(dtype, copy=True).requires_grad_() for name in learned}
        leaves = [*(x.to(dtype, copy=True).requires_grad_() for x in (q, k, v)), *own.values()]
        given = {"causal": causal, **params, **own}
        with sa.kernels.use(kernel):
            plan = sa.fused.plan(*leaves[:3], mapping, **given)
            out = sa.sparse_attention(*leaves[:3], mapping, **given)
            kernels = torch.autograd.grad(out.sum(), leaves, retain_graph=True)  # of a vector without memory of its own
            first = torch.autograd.grad(out.square().sum(), leaves, create_graph=second, retain_graph=True)
            again = torch.autograd.grad(sum(x.square().sum() for x in first), leaves) if second else ()
        outcomes.append([plan.path, [out, *kernels, *first, *again]])
    (path, ours), (other, theirs) = outcomes
    errors = [float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(ours, theirs, strict=True)]
    return [f"{mapping} {', '.join(params)}", path, other, max(errors)]


def main() -> None:
    found = [case(*c, torch.float32) for c in CASES]
    found += [case(*c, dtype) for c in CASES[:2] for dtype in (torch.float16, torch.bfloat16)]
    found += [form(*f) for f in FORMS]
    q, empty = torch.ones(2, 3, 4), torch.ones(1, 0, 4)
    out, saved = attention.forward(q, empty, empty, alpha=2.0, scale=1.0)
    grads = attention.backward(q, q, empty, empty, saved)
    none = not out.any() and not grads[0].any() and grads[1].shape == empty.shape
    refused = [
        attention.refusal(*x, alpha)
        for x, alpha in (
            ([torch.ones(1, 2, 129)] * 3, 2.0), ([q] * 3, 1.05), ([q.double()] * 3, 2.0), ([q, q.half(), q], 2.0), ([q] * 3, 1.1),
        )
    ]  # fmt: skip
    report = {"kernels": found, "no keys": none, "refused": refused}
    report["public"] = [
        public("sparsemax"),
        public("entmax", alpha=1.5),
        public("entmax", alpha=torch.tensor([1.25, 2.0])),
    ]
    with sa.kernels.use("triton"):
        report["range"] = sa.fused.plan(*[torch.ones(1, 2, 4, 4)] * 3, "entmax", alpha=torch.tensor([1.05, 2.0]))
    generator = torch.Generator().manual_seed(5)
    report["public"] += [public("sparsemax", False, **given) for given in (
        {"window": (2, 0)}, {"causal": False, "window": (1, 2), "sink": torch.tensor([0.5, -0.5])},
        {"cu_seqlens": torch.tensor([0, 2, 2, 6]), "slopes": torch.tensor([0.5, 0.25])},
        {"bias": torch.randn(2, 1, 6, 6, generator=generator)}, {"bias": torch.randn(2, 1, 6, generator=generator)},
        {"causal": False, "slopes": torch.tensor([0.5, 0.25])}, {"scale": torch.tensor([0.5, 1.5])},
        {"mask": torch.rand(2, 2, 6, 6, generator=generator) > 0.4, "sink": torch.tensor([0.5, -0.5])},
    )]  # fmt: skip
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
