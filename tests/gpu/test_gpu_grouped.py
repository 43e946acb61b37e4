"""fusedmax and oscarmax on the GPU, for rows whose groups are hard to find, against the reference in float64 on the CPU."""

import pytest
import torch
from torch import Tensor

import sparse_attention as sa
from sparse_attention.kernels.triton import _INTERPRETED

pytestmark = pytest.mark.gpu
# Lengths, and lambda. Differences of the scores below are no fractions of them: the groups are unique.
FEW = ((19,), (0.307,))
# At 300, the interpreter takes a quarter of an hour.
MANY = ((1, 2, 33, 50, 130 if _INTERPRETED else 300), (0.0, 0.0137, 0.107, 0.53, 21.3, 1e6))


def hard(n: int) -> Tensor:
    """Rows of noise, ties, runs of ties, walks, ramps, one value, and such with -inf and NaN or with -inf alone."""
    noise, ties = torch.randn(n), torch.randint(-4, 5, (n,)) * 0.3
    ramp, runs = torch.linspace(0, 2, n), torch.randint(0, 4, (n,)).repeat_interleave(7)[:n] * 0.17
    kinds = [noise, 30 * noise, ties, ties / 4, runs, noise.cumsum(0), ramp, -ramp, torch.zeros(n), noise - torch.inf]
    kinds += [torch.where(torch.rand(n) > 0.3, x, -torch.inf) for x in (noise, ties, runs)]
    kinds += [torch.where(torch.arange(n) == n // 2, torch.nan, noise), noise]
    return torch.stack(kinds)


def compare(name: str, x: Tensor, mask: Tensor | None, lam: float, device: str) -> None:
    scores, wide, g = x.to(device, copy=True).requires_grad_(), x.double().requires_grad_(), torch.randn_like(x)
    p = getattr(sa, name)(scores, mask=None if mask is None else mask.to(device), lam=lam)
    p.backward(g.to(device))
    with sa.kernels.use("reference"):
        expected = getattr(sa, name)(wide, mask=mask, lam=lam)
    expected.backward(g.double())
    rows = ~expected.isnan().any(-1)
    for ours, theirs, tolerance in ((p, expected, 2e-6), (scores.grad, wide.grad, 1e-4)):
        ours = ours.detach().cpu().double()
        assert torch.equal(~ours.isnan().any(-1), rows), (x.shape, lam)
        assert float((ours - theirs.detach())[rows].abs().max()) <= tolerance, (x.shape, lam)


@pytest.mark.parametrize("lengths, lams", [FEW, MANY], ids=["ties", "many"])
@pytest.mark.parametrize("name", ["fusedmax", "oscarmax"])
def test_hard_rows_equal_the_reference(name, lengths, lams, device, launched) -> None:
    for n in lengths:
        torch.manual_seed(n)
        x = hard(n)
        for lam in lams:
            lam = float(torch.tensor(lam))  # in float32, as in the kernels
            for mask in (None, torch.rand(x.shape) > 0.3):
                compare(name, x, mask, lam, device)
    assert launched[-2:] == ["grouped_forward", "grouped_backward"]


@pytest.mark.parametrize("lam", [0.1, 30.0, 50.0])
def test_long_rows_of_fusedmax_that_merge_late(lam, device) -> None:
    """A ramp, where every position is a group, and two groups that merge earlier than either could with its other neighbour."""
    counter = torch.tensor([0.0] * 1000 + [10, 1] + [0] * 100 + [1] * 100 + [0] * 1000)
    for x in (torch.linspace(3, 0, 1024), counter):
        compare("fusedmax", x[None], None, lam, device)
