"""Run by test_triton.py in a process of its own, with TRITON_INTERPRET=1: the GPU kernels on the CPU.

Prints one JSON object. "oracles": operation, parameters, length, dtype, largest error of the result, whether NaN rows agree,
largest error of the gradient, against solvers in numpy. "masked": mapping, dtype, mask, the same three against the reference
kernels in float64, through the public functions.
"""

from __future__ import annotations

import itertools
import json
import sys

import kernel_oracles as oracles
import numpy as np
import torch

import sparse_attention as sa
from sparse_attention.kernels import triton as kernels


def softmax(v, gamma=1.0):
    e = np.where(np.isfinite(v), np.exp((v - v.max()) / gamma), 0.0) if np.isfinite(v).any() else np.zeros_like(v)
    return e / max(e.sum(), 1e-300)


def sparsehourglass(v, q=1.0):
    keep = np.isfinite(v)
    size = keep.sum() * q
    return oracles.sparsemax(np.where(keep, (1 + size) / (abs(v[keep].sum()) + size) * np.where(keep, v, 0.0), -np.inf))


ORACLES = {"softmax": softmax, "sparsehourglass": sparsehourglass}

CASES = [
    ("sparsemax", {"gamma": 0.7}),
    ("entmax", {"alpha": 1.5}),
    ("entmax", {"alpha": 1.3}),
    ("entmax", {"alpha": 2.5}),
    ("pnormmax", {"p": 1.5, "gamma": 0.8}),
    ("pnormmax", {"p": 1.2, "gamma": 1.0}),
    ("fusedmax", {"lam": 0.1, "gamma": 0.7}),
    ("oscarmax", {"lam": 0.05, "gamma": 0.7}),
    ("softmax", {"gamma": 0.7}),
    ("sparsehourglass", {"q": 0.5}),
]
# Two batches, two heads: read by the strides of the mask, whatever it is the same for.
MASKS = {
    "none": None,
    "right-padded": torch.tensor([[[True] * 5, [True] * 5], [[True] * 2 + [False] * 3] * 2]),
    "a key mask": torch.tensor([[True] * 5, [False, True, True, False, True]]).unsqueeze(1),
    "one a head": torch.tensor([[False] * 5, [True, False, False, True, True]]),
    "one for all": torch.tensor([True, True, False, True, True]),
}
MASKED = [
    ("softmax", {"gamma": 0.7}), ("sparsemax", {}), ("entmax", {}), ("pnormmax", {}), ("fusedmax", {"lam": 0.1}),
    ("oscarmax", {"lam": 0.05}), ("sparsehourglass", {"q": 0.5}), ("sparsecone", {"q": 3.0}), ("sparsegen_lin", {"lam": 0.3}),
]  # fmt: skip


def main() -> None:
    generator = np.random.default_rng(0)
    found = []
    for op, params in CASES:
        f = lambda v, op=op, params=params: (ORACLES.get(op) or getattr(oracles, op))(v, **params)  # noqa: E731
        for n in (1, 2, 13):
            # Five values that even bfloat16 holds exactly.
            x = np.round(generator.normal(size=(5, n)) * 32) / 32
            if n > 2:
                x[1, ::3] = -np.inf
                x[2] = -np.inf
                x[3, 1] = np.nan
            bad = np.isnan(x).any(1)
            expected = np.stack([r * np.nan if b else f(r) for r, b in zip(x, bad, strict=True)])
            for dtype in (torch.float32, torch.bfloat16, torch.float16) if n > 2 else (torch.float32,):
                scores = torch.tensor(x, dtype=dtype)
                assert kernels.available(op, scores)
                if torch.isnan(scores).any() != bad.any() or not np.array_equal(
                    np.nan_to_num(scores.double().numpy()), np.nan_to_num(x)
                ):
                    continue
                p, saved = kernels.OPS[op].forward(scores, **params)
                assert p.dtype == dtype
                same_nan = bool((np.isnan(p.double().numpy()) == np.isnan(expected)).all())
                error = float(np.nanmax(np.abs(p.double().numpy() - expected)))
                slip = None
                if dtype is torch.float32 and params.get("alpha", 1) <= 2:
                    g = generator.normal(size=x.shape).astype(np.float32)
                    dx = kernels.OPS[op].backward(torch.tensor(g), p, saved, **params).numpy()
                    pairs = [(r, w.astype(float), d) for r, w, d, b in zip(x, g, dx, bad, strict=True) if not b]
                    # Rounded scores tie, so only rows whose derivative exists are compared.
                    slips = [
                        np.abs(d - near).max()
                        for r, w, d in pairs
                        if np.abs(
                            (near := oracles.vector_jacobian(f, r, w)) - oracles.vector_jacobian(f, r, w, 2e-6)
                        ).max()
                        < 1e-5
                    ]
                    slip = float(max(slips)) if slips else None
                found.append([op, params, n, str(dtype), error, same_nan, slip])
    json.dump({"oracles": found, "masked": masked(generator)}, sys.stdout)


def masked(generator: np.random.Generator) -> list:
    """Every mapping with every mask: ties and a NaN among the scores, a row that is masked entirely."""
    found = []
    for (name, params), (which, mask) in itertools.product(MASKED, MASKS.items()):
        for dtype in (torch.float32, torch.bfloat16, torch.float16) if which == "a key mask" else (torch.float32,):
            x = torch.tensor(np.round(generator.normal(size=(2, 2, 5)) * 32) / 32).to(dtype)
            x[0, 1] = x[0, 1, 0]
            x[1, 1, 2 if name != "fusedmax" else 4] = torch.nan
            g = torch.tensor(np.round(generator.normal(size=(2, 2, 5)) * 32) / 32).to(dtype)
            results = []
            for kernel, scores in (("triton", x.clone()), ("reference", x.double())):
                scores.requires_grad_()
                with sa.kernels.use(kernel):
                    p = getattr(sa, name)(scores, mask=mask, **params)
                    p.backward(g.to(p.dtype))
                results += [p.detach(), scores.grad]
            p, dx, expected, slope = results
            assert p.dtype == dtype and dx.dtype == dtype
            rows = ~expected.isnan().any(-1)
            found.append([
                name, str(dtype), which, float((p - expected)[rows].abs().max()),
                bool((p.isnan() == expected.isnan()).all()), float((dx - slope)[rows].abs().max()),
            ])  # fmt: skip
    return found


if __name__ == "__main__":
    main()
