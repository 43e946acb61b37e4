"""Random calls of sa.sparse_attention against the formula in float64 with the entmax package's bisection, or the
rows' fusedmax: outputs, and the gradients of q, k, v, alpha, scale, bias, slopes and sink. `make test-all` draws thousands."""

from __future__ import annotations

import random

import pytest
import torch
from attention_oracles import bisected, distances, formula, per_head, visible
from torch import Tensor

import sparse_attention as sa
from sparse_attention.fused import choice
from sparse_attention.fused.choice import SHORT

ALPHAS = [2.0, 1.5, 1.3, 1.05, 1.1, 1.7, 1.95, 2.5, 4.0]


def chosen(seed: int, mapping: str = "entmax") -> dict[str, object]:
    """A random call: its tensors, float32, under the names of the arguments."""
    draw, make = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make)

    heads, groups = draw.choice([(1, 1), (4, 4), (4, 2), (3, 1)])
    B, n, m = draw.choice([1, 2]), draw.choice([1, 9, 33, 64, 100]), draw.choice([3, 40, 97, 130, 200])
    d, e = draw.choice([4, 16, 33, 64]), draw.choice([3, 16, 64])
    if draw.random() < 0.5:
        n = m = max(n, 33)
    call: dict[str, object] = {"q": normal(B, heads, n, d) * draw.choice([0.3, 1.0, 3.0])}
    call |= {"k": normal(B, groups, m, d), "v": normal(B, groups, m, e)}
    maybe = lambda chance: draw.random() < chance  # noqa: E731
    alpha: float | Tensor = draw.choice(ALPHAS)
    if maybe(0.4):
        alpha = 1.1 + 0.85 * torch.rand(draw.choice([(), (heads,), (1, heads, 1, 1), (B, heads, 1, 1)]), generator=make)
        if alpha.numel() == heads > 1 and maybe(0.3):
            alpha.view(-1)[:2] = torch.tensor([2.0, 1.5])
    call["alpha"] = alpha
    call["causal"] = maybe(0.5)
    if maybe(0.3):
        call["lengths"] = torch.randint(0, m + 1, (B,), generator=make)
    if maybe(0.3):
        call["window"] = draw.choice([(5, 2), (m // 2, 0), (None, 3), (0, None)])
    if n == m and maybe(0.2):
        ends = sorted(draw.choices(range(m + 1), k=3))
        call["cu_seqlens"] = torch.tensor([0, *ends, m])
    if maybe(0.3):
        call["slopes"] = torch.rand(heads, generator=make) * 0.3
    if maybe(0.3):
        call["sink"] = normal(heads)
    if maybe(0.3):
        call["bias"] = normal(*draw.choice([(n, m), (heads, 1, m), (B, 1, n, m), (heads, n, m), (n, 1)]))
    if maybe(0.2):
        call["mask"] = torch.rand(draw.choice([(n, m), (B, 1, 1, m), (heads, n, m)]), generator=make) > 0.4
    if maybe(0.3):
        call["scale"] = torch.rand(draw.choice([(heads,), (heads, n, 1), (B, 1, n, 1)]), generator=make) * 0.4 + 0.05
    if mapping != "entmax":
        del call["alpha"]
    if mapping == "fusedmax":
        call["lam"] = draw.choice([0.01, 0.1, 0.5, 3.0])
    return call


def exact_output(
    q,
    k,
    v,
    alpha=None,
    causal=False,
    lengths=None,
    window=(),
    cu_seqlens=None,
    slopes=None,
    sink=None,
    bias=0.0,
    mask=True,
    scale=None,
    lam=None,
):
    """The output and, for each row, how near a score comes to the threshold, which decides whether it has a gradient."""
    (B, H, n, _), m = q.shape, k.shape[-2]
    keep = (visible(n, m, *window, causal=causal, lengths=lengths, ends=cu_seqlens) & mask).expand(B, H, n, m)
    added = bias if slopes is None else bias - slopes.view(H, 1, 1) * distances(n, m).abs()
    near = []

    def mapped(x: Tensor, keep: Tensor) -> Tensor:
        if alpha is lam is None:
            near.append(torch.ones(x.shape[:-1]))
            return torch.softmax(x.masked_fill(~keep, -torch.inf), -1).nan_to_num(0.0)
        p = bisected(alpha)(x, keep) if lam is None else sa.fusedmax(x, lam=lam, mask=keep)
        near.append(to_the_threshold(x, p, keep, alpha) if lam is None else of_segments(x, p, keep, lam))
        return p

    out, _ = formula(mapped, q, k, v, keep, scale, added, sink)
    return out, near[0]


@torch.no_grad()
def to_the_threshold(x: Tensor, p: Tensor, keep: Tensor, alpha: float | Tensor) -> Tensor:
    a = per_head(alpha) - 1
    x = x.masked_fill(~keep, -1e4) * a
    top, at = x.max(-1, keepdim=True)
    tau = top - p.gather(-1, at) ** a
    return torch.where(keep, (x - tau).abs(), 1.0).amin(-1)


@torch.no_grad()
def of_segments(x: Tensor, p: Tensor, keep: Tensor, lam: float) -> Tensor:
    """0 for a row of fusedmax where a small change of the scores changes the segments or the support, otherwise 1."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    moved = [p, *(sa.fusedmax(x + move * noise, lam=lam, mask=keep) for move in (-3e-5, 3e-5))]
    shape = [torch.cat([w > 0, w.diff(dim=-1) != 0], -1) for w in moved]
    return ((shape[0] == shape[1]) & (shape[0] == shape[2])).all(-1).double()


def check(seed: int, call: dict[str, object] | None = None, mapping: str = "entmax") -> None:
    call = chosen(seed, mapping) if call is None else call
    learned = [n for n, x in call.items() if isinstance(x, Tensor) and x.is_floating_point()]
    exact = {n: x.double().requires_grad_() if n in learned else x for n, x in call.items()}
    ours = {n: x.clone().requires_grad_() if n in learned else x for n, x in call.items()}
    want, near = exact_output(**exact)
    out = sa.sparse_attention(**ours, mapping=mapping)
    q, k = call["q"], call["k"]
    factor = max(q.shape[-1] ** -0.5, float(torch.as_tensor(call.get("scale", 0.0)).max()))
    size = 1 + float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * factor  # of a score
    torch.testing.assert_close(out.double(), want, atol=2e-5 * size, rtol=0, msg=lambda text: f"seed {seed}: {text}")
    alpha = torch.as_tensor(call.get("alpha", 2.0))
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    slope *= (near > (2e-4 if alpha.max() <= 2 else 2e-3)).unsqueeze(-1)  # elsewhere rounding decides about the support
    mine = torch.autograd.grad(out, [ours[n] for n in learned], slope, allow_unused=True)
    right = torch.autograd.grad(want, [exact[n] for n in learned], slope.double(), allow_unused=True)
    for name, a, b in zip(learned, mine, right, strict=True):
        b = torch.zeros_like(call[name], dtype=torch.float64) if b is None else b
        a = torch.zeros_like(b) if a is None else a
        close = 3e-3 * float(b.abs().max()) + 1e-3
        where = f"seed {seed}, {name}"
        torch.testing.assert_close(a.double(), b, atol=close, rtol=0, msg=lambda text, where=where: f"{where}: {text}")


FEW = [range(first, first + 30) for first in range(0, 150, 30)]
MANY = [pytest.param(range(first, first + 100), marks=pytest.mark.slow) for first in (150, *range(1000, 6000, 100))]


@pytest.mark.parametrize("mapping", ["entmax", "fusedmax", "softmax"])
@pytest.mark.parametrize("seeds", [*FEW, *MANY], ids=str)
def test_random_calls_are_the_formula(seeds, mapping, monkeypatch):
    """On the path that the library chooses, and, for half of the calls with short rows, on the one of long rows."""
    for seed in seeds:
        monkeypatch.setattr(choice, "SHORT", SHORT * (seed % 2))
        check(seed, mapping=mapping)
        call = chosen(seed, mapping)
        if mapping != "softmax" and call["k"].shape[2] >= max(choice.SHORT, 32) and call["q"].shape[2] > 1:
            call["q"].requires_grad_()
            assert sa.fused.plan(**call, mapping=mapping).path == "fused", seed


@pytest.mark.parametrize("seed", [5588, 5981])
def test_steep_powers_of_large_scores_stay_within_rounding(seed):
    check(seed)  # alpha 4: a probability rises from 0 with infinite slope


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
