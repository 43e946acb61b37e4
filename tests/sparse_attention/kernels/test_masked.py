"""Masks and hyperparameters row by row in the C++ kernels: against each row alone, differences, and the reference."""

import pytest
import torch
from torch import Tensor

import sparse_attention as sa
from sparse_attention.kernels import native

BUILT = native.available("sparsemax", torch.zeros(1, 1).double())
pytestmark = pytest.mark.skipif(not BUILT, reason="no C++ compiler here")

# name -> the hyperparameters that may be tensors, each with an interval
LEARNED: dict[str, dict[str, tuple[float, float]]] = {
    "sparsemax": {"gamma": (0.3, 3)},
    "entmax": {"alpha": (0.6, 2.6)},
    "pnormmax": {"p": (1.06, 2), "gamma": (0.3, 3)},
    "fusedmax": {"lam": (0, 0.4), "gamma": (0.3, 3)},
    "oscarmax": {"lam": (0, 0.1), "gamma": (0.3, 3)},
    "sparsegen_lin": {"lam": (-2, 0.8)},
    "sparsecone": {"q": (2, 3)},
    "sparsehourglass": {"q": (0.1, 2)},
}


def drawn(name: str, rows: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    return {k: low + (high - low) * torch.rand(rows, dtype=dtype) for k, (low, high) in LEARNED[name].items()}


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("n", [1, 19, 150, 900])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_row_has_its_own_as_if_alone(name: str, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(n)
    x = torch.randn(21, n, dtype=dtype)
    mask = torch.rand(21, n) > 0.3
    given = drawn(name, (21,), dtype)
    if name == "entmax":
        given["alpha"][:4] = torch.tensor([1.0, 1.5, 2.0, 1.05], dtype=dtype)
    function = getattr(sa, name)
    with sa.kernels.use("native"):
        together = function(x, mask=mask, **given)
        alone = [
            function(x[i : i + 1], mask=mask[i : i + 1], **{k: float(v[i]) for k, v in given.items()})
            for i in range(21)
        ]
    tolerance = 2e-6 if dtype is torch.float32 else 1e-9
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", LEARNED)
def test_derivatives_of_both_orders_are_those_of_differences(name: str) -> None:
    """In scores and all hyperparameters at once; the forward computation of numbers has its own oracles."""
    torch.manual_seed(1)
    x = torch.randn(4, 6, dtype=torch.float64).requires_grad_()
    given = {k: v.requires_grad_() for k, v in drawn(name, (4,), torch.float64).items()}
    mask = torch.arange(6) < 5

    def mapped(z: Tensor, *numbers: Tensor) -> Tensor:
        return getattr(sa, name)(z, mask=mask, **dict(zip(given, numbers, strict=True)))

    with sa.kernels.use("native"):
        assert torch.autograd.gradcheck(mapped, (x, *given.values()))
        assert torch.autograd.gradgradcheck(mapped, (x, *given.values()))


MASKS = ((3, 4, 5, 17), (3, 1, 1, 17), (1, 4, 1, 17), (5, 17), (3, 1, 5, 17), (3, 4, 5, 1), (1, 4, 5, 17), (17,))


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("name", ["sparsemax", "entmax", "pnormmax", "sparsehourglass", "fusedmax"])
def test_a_mask_is_read_where_it_stands(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    function = getattr(sa, name)
    for expanded in (False, True):
        mask = torch.rand(shape) > 0.4
        mask = mask.expand(3, 4, 5, 17) if expanded else mask
        results = []
        for kernels in ("native", "reference"):
            x = torch.linspace(-2, 2, 3 * 4 * 5 * 17).sin().mul(3).view(3, 4, 5, 17).requires_grad_()
            with sa.kernels.use(kernels):
                p = function(x, mask=mask)
            p.backward(torch.cos(7 * x.detach()))
            results.append((p.detach(), x.grad))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=3e-6)
        assert (results[0][0][~mask.expand(3, 4, 5, 17)] == 0).all()


def test_an_operation_without_a_case_is_an_error_and_not_the_cone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, mask = torch.randn(3, 4, requires_grad=True), torch.tensor([True, True, False, True])
    with sa.kernels.use("native"):
        p = sa.sparsemax(x, mask=mask)
        monkeypatch.setitem(native.masked._numbers, "sparsemax", 99)
        for call in (lambda: sa.sparsemax(x, mask=mask), p.sum().backward):
            with pytest.raises(RuntimeError, match="lists sparsemax in masked_operations but has no case"):
                call()
