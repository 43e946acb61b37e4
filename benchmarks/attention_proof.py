"""Check fused sparse attention on this machine: results against float64 on the CPU, speed against torch's attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sparse_attention as sa
from benchmarks.peers import _module
from benchmarks.proof import Sizes, _in_turns
from sparse_attention import kernels

Shape = tuple[int, int, int, int, int, bool]  # H, G, n, m, d, causal
COMPARED: tuple[Shape, ...] = (
    (4, 4, 300, 500, 64, False),
    (4, 2, 300, 500, 64, True),
    (2, 1, 1, 700, 128, True),
    (2, 2, 65, 30, 20, True),
)
COMPARED_TOY: tuple[Shape, ...] = ((2, 1, 9, 40, 4, True),)
# Relative to the largest output, and to the largest entry of a gradient.
TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float16: (2**-9, 2**-8), torch.bfloat16: (2**-6, 2**-5)}
LIMITS = (
    "sparse_attention, below: an exact kernel has to score every pair once. Softmax takes two products of that size forward and "
    "five more backward, so with scores in the precision of the inputs the speed-up of equally efficient code is at most 2 "
    "forward and 7 with the backward. More needs pairs that are never scored: spans (a window, packed sequences), or a bound "
    "that proves blocks to be outside the support, which these kernels do not have."
)


def _mapping(alpha: float) -> dict[str, Any]:
    return {"mapping": "sparsemax"} if alpha == 2.0 else {"mapping": "entmax", "alpha": alpha}


def compare(
    device: str,
    shapes: Sequence[Shape],
    alphas: Sequence[float] = (2.0, 1.5),
    dtypes: Sequence[torch.dtype] = tuple(TOLERANCE),
) -> list[dict[str, Any]]:
    """Compare fused attention on ``device`` with the reference in float64 on the CPU. Half of the heads are padded.

    Returns:
        for each case, the largest error of the output, and the error below which 99 % of the gradient's entries lie.
        The largest error of a gradient means little: rounding may move a key at the threshold into or out of the
        support, and the gradient of sparsemax jumps there.
    """
    found = []
    for alpha, dtype, (heads, groups, n, m, d, causal) in itertools.product(alphas, dtypes, shapes):
        torch.manual_seed(0)
        sizes = ((heads, n, d), (groups, m, d), (groups, m, d), (heads, n, d))
        q, k, v, g = (torch.randn(1, *size).to(dtype) for size in sizes)
        lengths = torch.full((1, heads), m)
        lengths[:, ::2] = m // 2
        results: list[list[Tensor]] = []
        for where, to, kernel in ((device, dtype, "auto"), ("cpu", torch.float64, "reference")):
            leaves = [x.to(where, to, copy=True).requires_grad_() for x in (q, k, v)]
            given: dict[str, Any] = {"causal": causal, "lengths": lengths.to(where), **_mapping(alpha)}
            with kernels.use(kernel):
                out: Tensor = sa.sparse_attention(leaves[0], leaves[1], leaves[2], **given)
                path = sa.fused.plan(leaves[0], leaves[1], leaves[2], **given).path
            gradients = torch.autograd.grad(out, leaves, g.to(where, to))
            results.append([x.detach().cpu().double() for x in (out, *gradients)])
            if kernel == "auto":
                taken = path
        apart = [(a - b).abs() / b.abs().max().clamp(min=1e-9) for a, b in zip(*results, strict=True)]
        error, slip = float(apart[0].max()), max(float(x.flatten().quantile(0.99)) for x in apart[1:])
        tolerance, slope = TOLERANCE[dtype]
        found.append({
            "mapping": f"attention, alpha {alpha:g}", "dtype": str(dtype)[6:], "shape": [heads, groups, n, m, d, int(causal)], "path": taken,
            "error": error, "gradient_error": slip, "agrees": error <= tolerance and slip <= slope,
        })  # fmt: skip
    return found


def _both(attend: Callable[..., Tensor], leaves: tuple[Tensor, ...], g: Tensor) -> None:
    torch.autograd.grad(attend(*leaves), leaves, g)


def _peers(causal: bool) -> dict[str, Callable[..., Tensor]]:
    """AdaSplash, if it is installed: its second version for causal entmax 1.5, else the first."""
    adasplash = _module("adasplash")
    if adasplash is None:
        return {}
    return {f"adasplash, alpha {a:g}": partial(adasplash.adasplash, alpha=a, is_causal=causal) for a in (2.0, 1.5)}


def speeds(device: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Microseconds of attention in bfloat16, forward and forward with backward, and the speed-up over torch's softmax.

    Ours and those of `_peers` are timed in turns with torch's (flash attention on a GPU). Different densities are
    obtained by scaling the scores; the density is measured on the last 64 queries. ``apart`` is the largest difference of
    a peer's output from ours, relative to the largest output. A peer that fails has its error in place of the time.
    """
    cuda = device == "cuda"
    heads, d, lengths = (16, 64, (1024, 4096, 16384)) if cuda else (2, 8, (128,))
    softmax = "scaled_dot_product_attention"
    found: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for n, sharpness, causal in itertools.product(lengths, (1.0, 4.0, 16.0) if cuda else (4.0,), (False, True)):
        torch.manual_seed(0)
        q, k, v, g = (torch.randn(1, heads, n, d, device=device, dtype=torch.bfloat16) for _ in range(4))
        q = q * sharpness
        leaves = tuple(x.clone().requires_grad_() for x in (q, k, v))
        attends: dict[str, Callable[..., Tensor]] = {softmax: partial(F.scaled_dot_product_attention, is_causal=causal)}
        density, apart = {}, {}
        for alpha in (2.0, 1.5):
            name = f"alpha {alpha:g}"
            attends[name] = partial(sa.sparse_attention, causal=causal, **_mapping(alpha))
            _, weights = sa.sparse_attention(q[:, :, -64:], k, v, causal=causal, need_weights=True, **_mapping(alpha))
            density[name] = density[f"adasplash, {name}"] = float((weights > 0).float().mean())
        for label, attend in _peers(causal).items():
            try:
                ours, theirs = attends[label.removeprefix("adasplash, ")](*leaves).float(), attend(*leaves)
                torch.autograd.grad(theirs, leaves, g)
                apart[label] = float((theirs.float() - ours).abs().max() / ours.abs().max())
                attends[label] = attend
            except Exception as error:  # of code that is not ours: any failure belongs in its row
                why = f"{type(error).__name__}: {error}".splitlines()[0][:80].replace("|", "/")
                failed.append(
                    {"n": n, "causal": causal, "label": label, "density": density[label], "microseconds": why}
                )
        ways: dict[str, dict[str, Callable[[], Any]]] = {
            "forward": {name: partial(f, q, k, v) for name, f in attends.items()},
            "both": {name: partial(_both, f, leaves, g) for name, f in attends.items()},
        }
        for way, works in ways.items():
            times = _in_turns(works, device, sizes.seconds)
            for label, taken in times.items():
                found.append({
                    "n": n, "causal": causal, "way": way, "label": label, "density": density.get(label, 1.0),
                    "microseconds": round(taken, 1), "speedup": times[softmax] / taken, "apart": apart.get(label, 0.0),
                })  # fmt: skip
    return found + failed  # the first row names the columns
