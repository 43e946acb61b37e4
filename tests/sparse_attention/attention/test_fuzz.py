"""Random calls of sa.sparse_attention against the formula in float64 with the entmax package's bisection, or the mapping
on rows: outputs, weights, and the gradients of every tensor. `make test-all` draws thousands."""

import pytest
import torch
from random_calls import chosen, exact_output
from torch import Tensor

import sparse_attention as sa
from sparse_attention.attention import choice
from sparse_attention.attention.choice import SHORT


def check(seed: int, call: dict[str, object] | None = None, mapping: str = "entmax") -> None:
    call = {"mapping": mapping, **(chosen(seed, mapping) if call is None else call)}
    learned = [n for n, x in call.items() if isinstance(x, Tensor) and x.is_floating_point()]
    exact = {n: x.double().clone().requires_grad_() if n in learned else x for n, x in call.items()}
    ours = {n: x.clone().requires_grad_() if n in learned else x for n, x in call.items()}
    q, k = call["q"], call["k"]
    weights, share = exact.pop("need_weights", False), exact.pop("dropout", 0.0)
    if share:
        torch.manual_seed(seed)
        eye = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-1], k.shape[-2])
        kept = sa.sparse_attention(**ours | {"v": eye})
        exact["factors"] = ((kept[0] if weights else kept) > 0).double() / (1 - share)
    want, p, steady = exact_output(**exact)
    torch.manual_seed(seed)
    out = sa.sparse_attention(**ours)
    factor = max(q.shape[-1] ** -0.5, float(torch.as_tensor(call.get("scale", 0.0)).max()))
    size = 1 + float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * factor  # of a score
    exactly = 1e-4 if q.dtype == torch.float64 else 1.0

    def same(name: str, a: Tensor, b: Tensor, close: float) -> None:
        where = f"seed {seed}, {name}"
        torch.testing.assert_close(a.double(), b, atol=close * exactly, rtol=0, msg=lambda text: f"{where}: {text}")

    if weights:
        out, found = out
        same("weights", found, p, 2e-5 * size)
    same("output", out, want, 2e-5 * size)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    slope *= steady.unsqueeze(-1)  # elsewhere rounding decides about the support
    mine = torch.autograd.grad(out, [ours[n] for n in learned], slope, allow_unused=True)
    right = torch.autograd.grad(want, [exact[n] for n in learned], slope.double(), allow_unused=True)
    for name, a, b in zip(learned, mine, right, strict=True):
        b = torch.zeros_like(call[name], dtype=torch.float64) if b is None else b
        a = torch.zeros_like(b) if a is None else a
        same(name, a, b, 3e-3 * float(b.abs().max()) + 1e-3)


FEW = [range(first, first + 30) for first in range(0, 120, 30)]
MANY = [pytest.param(range(first, first + 100), marks=pytest.mark.slow) for first in (120, *range(1000, 6000, 100))]


@pytest.mark.parametrize("mapping", ["entmax", "fusedmax", "softmax", "others"])
@pytest.mark.parametrize("seeds", [*FEW, *MANY], ids=str)
def test_random_calls_are_the_formula(seeds, mapping, monkeypatch):
    """On the path that the library chooses, and, for half of the calls with short rows, on the one of long rows."""
    for seed in seeds:
        monkeypatch.setattr(choice, "SHORT", SHORT * (seed % 2))
        check(seed, mapping=mapping)
        call = chosen(seed, mapping)
        others = ("softmax", "sparsehourglass") if call["q"].dtype == torch.float32 else sa.names()
        if call["k"].shape[2] >= max(choice.SHORT, 32) and call["q"].shape[2] > 1 and call["mapping"] not in others:
            call["q"].requires_grad_()
            assert sa.attention.plan(**call).path == ("composition" if "need_weights" in call else "fused"), seed


@pytest.mark.parametrize("alpha", [2.0, 1.5, torch.tensor([1.25, 2.0]), 2.5], ids=["2", "1.5", "per head", "2.5"])
@pytest.mark.parametrize("form", ["plain", "window", "gaps", "bias", "sink", "all"])
def test_rows_of_all_densities_are_the_formula(form, alpha):
    """Rows with more than 1/16 of the keys keep their support as bits, the others as keys."""
    make = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, 140, 16, generator=make) for heads in (2, 1, 1))
    forms = {
        "window": {"window": (70, 9), "lengths": torch.tensor([131])},
        "gaps": {"mask": torch.rand(2, 140, 140, generator=make) > 0.4, "scale": torch.tensor([0.2, 0.3])},
        "bias": {"bias": torch.randn(2, 140, 140, generator=make) * 0.02},
        "sink": {"sink": torch.tensor([0.1, -0.2]), "slopes": torch.tensor([0.01, 0.0])},
    }
    given = {name: x for key, value in forms.items() if form in (key, "all") for name, x in value.items()}
    q = q * torch.logspace(-2, 1, 140)[:, None]
    call = {"q": q, "k": k, "v": v, "alpha": alpha, "causal": form == "sink", **given}
    counts = (sa.sparse_attention(**call, mapping="entmax", need_weights=True)[1] > 0).sum(-1)
    assert (counts > 12).any() and ((counts > 0) & (counts < 9)).any()
    check(0, call)
