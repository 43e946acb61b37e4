"""Every row kernel, forward and backward, against the reference in float64 on the CPU."""

import itertools

import pytest
import torch

import sparse_attention as sa
from sparse_attention.kernels.triton import _INTERPRETED

pytestmark = pytest.mark.gpu
SIMPLEX, WEIGHTED, GROUPED = "simplex_forward", "weighted_backward", "grouped_backward"
MAPPINGS = [
    ("softmax", {"gamma": 0.7}, SIMPLEX, WEIGHTED),
    ("sparsemax", {"gamma": 0.7}, SIMPLEX, WEIGHTED),
    ("entmax", {"alpha": 1.5}, SIMPLEX, WEIGHTED),
    ("entmax", {"alpha": 1.3}, SIMPLEX, WEIGHTED),
    ("pnormmax", {"p": 1.5}, SIMPLEX, "pnormmax_backward"),
    ("pnormmax", {"p": 1.2, "gamma": 0.8}, SIMPLEX, "pnormmax_backward"),
    ("sparsegen_lin", {"lam": 0.3}, SIMPLEX, WEIGHTED),
    ("sparsecone", {"q": 3.0}, SIMPLEX, "cone_backward"),
    ("sparsehourglass", {"q": 0.5}, SIMPLEX, "cone_backward"),
    ("fusedmax", {"lam": 0.1, "gamma": 0.7}, "fusedmax_forward", GROUPED),
    ("oscarmax", {"lam": 0.05, "gamma": 0.7}, "oscarmax_forward", GROUPED),
]
SHAPES = [(5, 3, 1), (64, 1, 25), (16, 8, 50), (7, 2, 128), (4, 2, 1000), (2, 1, 4096)]
LONGER = {"pnormmax": [(2, 1, 9000)]}  # its backward takes 8,192 scores at a time
if _INTERPRETED:
    SHAPES = [(2, 2, 1), (4, 1, 13)]
# Of p and of its gradient. Half precision rounds p once, and its gradient, computed from that p, once more; the interpreter
# truncates to bfloat16. Long float32 rows sum in another order.
TOLERANCE = {
    torch.float32: (2e-6, 1e-5 if _INTERPRETED else 2e-4),
    torch.float16: (2.0**-12 + 1e-6, 2.0**-8),
    torch.bfloat16: (2.0**-8 + 1e-6, 2.0**-4),
}


def masks(B: int, H: int, n: int) -> dict[str, torch.Tensor | None]:
    """Masks by what they differ in, since the kernels read them by strides. The first, third and fourth hide whole rows."""
    keep = torch.rand(B, H, n) > 0.3
    keep[0, 0] = False
    padding = torch.arange(n) < torch.randint(1, n + 1, (B, 1, 1))
    padding[0] = False
    one = torch.rand(n) > 0.3
    one[0] = True
    return {"padding": padding, "none": None, "every row": keep, "a head": keep[0], "all rows": one}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name, params, forward, backward", MAPPINGS)
def test_rows_equal_the_reference(name, params, forward, backward, dtype, device, launched) -> None:
    """With scores of -inf, ties, a NaN and fully masked rows."""
    for shape in (*SHAPES, *LONGER.get(name, ())):
        torch.manual_seed(0)
        x, g = (torch.randn(shape).to(dtype) for _ in range(2))
        x[1, 0] = x[1, 0, 0]
        x[-1, -1, 0] = torch.nan
        if shape[-1] > 4:
            x[1:, :, 2] = -torch.inf
        chosen = masks(*shape).items()
        for which, mask in chosen if dtype is torch.float32 else itertools.islice(chosen, 1):
            launched.clear()
            scores, wide = x.to(device, copy=True).requires_grad_(), x.double().requires_grad_()
            p = getattr(sa, name)(scores, mask=None if mask is None else mask.to(device), **params)
            p.backward(g.to(device))
            assert launched == [forward, backward]
            with sa.kernels.use("reference"):
                expected = getattr(sa, name)(wide, mask=mask, **params)
            expected.backward(g.double())
            assert p.dtype == scores.grad.dtype == dtype
            rows = ~expected.isnan().any(-1)
            for ours, theirs, tolerance in zip((p, scores.grad), (expected, wide.grad), TOLERANCE[dtype]):
                ours, theirs = ours.detach().cpu().double(), theirs.detach()
                assert torch.equal(~ours.isnan().any(-1), rows), (shape, which)
                assert float((ours - theirs)[rows].abs().max()) <= tolerance, (shape, which)
