"""Run by test_triton_attention.py in a process of its own, with TRITON_INTERPRET=1: fused attention for the GPU on the CPU.

Prints one JSON object: "kernels", for each case its name, type and largest errors of out, dq, dk, dv against the composition
in float64, whether the supports are equal and the share of blocks without support; "public", whether `sa.sparse_attention`
took the kernels, and its errors.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

import sparse_attention as sa
from sparse_attention.fused import composition, reading
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


def public(mapping, **params):
    """Through `sa.sparse_attention`, a batch of two with two heads whose channels lie apart in memory, and the gradient of a gradient."""
    q, k, v = (torch.randn(2, 2, 4, 6, generator=torch.Generator().manual_seed(i)).mT for i in range(3))
    outcomes = []
    for kernel, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (q, k, v)]
        with sa.kernels.use(kernel):
            plan = sa.fused.plan(*leaves, mapping, causal=True, **params)
            out = sa.sparse_attention(*leaves, mapping, causal=True, **params)
            kernels = torch.autograd.grad(out.sum(), leaves, retain_graph=True)  # of a vector without memory of its own
            first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
        outcomes.append([plan.path, [out, *kernels, *first, *second]])
    (path, ours), (other, theirs) = outcomes
    return [mapping, path, other, max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs))]


def main() -> None:
    found = [case(*c, torch.float32) for c in CASES]
    found += [case(*c, dtype) for c in CASES[:2] for dtype in (torch.float16, torch.bfloat16)]
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
    report["public"] = [public("sparsemax"), public("entmax", alpha=1.5)]
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
