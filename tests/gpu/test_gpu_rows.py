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
    ("fusedmax", {"lam": 0.1, "gamma": 0.7}, "grouped_forward", GROUPED),
    ("oscarmax", {"lam": 0.05, "gamma": 0.7}, "grouped_forward", GROUPED),
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


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name, params", [(name, params) for name, params, *_ in MAPPINGS if name != "softmax"])
def test_what_autograd_asks_of_rows(name, params, masked, device, launched) -> None:
    """Second derivatives, batches of gradients, a graph used again, hooks of saved tensors, and writing to the result."""
    torch.manual_seed(0)
    scores, g, h = (torch.randn(3, 7, dtype=torch.float64) for _ in range(3))
    keep = torch.rand(3, 7) > 0.2 if masked else None

    def derivatives(on: str, dtype: torch.dtype) -> list[torch.Tensor]:
        x, a, b = (t.to(on, dtype, copy=True).requires_grad_() for t in (scores, g, h))
        p = getattr(sa, name)(x, mask=None if keep is None else keep.to(on), **params)
        (dx,) = torch.autograd.grad(p, x, a, create_graph=True)
        second = torch.autograd.grad(dx, (x, a), b, retain_graph=True, materialize_grads=True)
        rows = torch.autograd.grad(p, x, torch.stack([a, b]).detach(), is_grads_batched=True, retain_graph=True)
        again = torch.autograd.grad(p, x, a.detach())
        return [t.detach().cpu().double() for t in (p, dx, *second, *rows, *again)]

    found = derivatives(device, torch.float32)
    assert launched[0].endswith("_forward") and launched[-1].endswith("_backward")
    with sa.kernels.use("reference"):
        expected = derivatives("cpu", torch.float64)
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4
    x, packed = scores.to(device, torch.float32).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.cpu(), lambda t: t.to(device)):
        p = getattr(sa, name)(x, mask=None if keep is None else keep.to(device), **params)
    (dx,) = torch.autograd.grad(p, x, g.to(device, torch.float32))
    assert packed and float((dx.cpu().double() - expected[1]).abs().max()) < 1e-4
    p = getattr(sa, name)(x, **params)
    p.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(p, x, g.to(device, torch.float32))
