"""Run by test_triton.py in a process of its own, with TRITON_INTERPRET=1: the GPU kernels on the CPU.

Prints one JSON list: operation, parameters, length, dtype, largest error of the result, whether NaN rows agree, largest
error of the gradient.
"""

from __future__ import annotations

import json
import sys

import kernel_oracles as oracles
import numpy as np
import torch

from sparse_attention.kernels import triton as kernels

CASES = [
    ("sparsemax", {"gamma": 0.7}),
    ("entmax", {"alpha": 1.5}),
    ("entmax", {"alpha": 1.3}),
    ("entmax", {"alpha": 2.5}),
    ("pnormmax", {"p": 1.5, "gamma": 0.8}),
    ("pnormmax", {"p": 1.2, "gamma": 1.0}),
    ("fusedmax", {"lam": 0.1, "gamma": 0.7}),
    ("oscarmax", {"lam": 0.05, "gamma": 0.7}),
]


def main() -> None:
    generator = np.random.default_rng(0)
    found = []
    for op, params in CASES:
        f = lambda v, op=op, params=params: getattr(oracles, op)(v, **params)  # noqa: E731
        for n in (1, 2, 13):
            # Five values that even bfloat16 holds exactly.
            x = np.round(generator.normal(size=(5, n)) * 32) / 32
            if n > 2:
                x[1, ::3] = -np.inf
                x[2] = -np.inf
                x[3, 1] = np.nan
            bad = np.isnan(x).any(1)
            expected = np.stack([r * np.nan if b else f(r) for r, b in zip(x, bad, strict=True)])
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
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
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
