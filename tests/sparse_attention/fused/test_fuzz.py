"""Random calls of sa.sparse_attention against the formula in float64 with the entmax package's bisection, or the mapping
on rows: outputs, weights, and the gradients of every tensor. `make test-all` draws thousands."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from attention_oracles import bisected, distances, formula, named, visible
from torch import Tensor

import sparse_attention as sa
from sparse_attention.fused import choice
from sparse_attention.fused.choice import SHORT

OTHERS = [
    ("sparsemax", {"gamma": 0.5}),
    ("sparsegen_lin", {"lam": 0.3}),
    ("sparsehourglass", {}),
    ("fusedmax", {"lam": 0.3, "gamma": 0.5}),
    ("fusedmax", {"lam": 0.0}),
    ("softmax", {"gamma": 2.0}),
]
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
    call["mapping"] = mapping
    if mapping != "entmax":
        del call["alpha"]
    if mapping == "fusedmax":
        call["lam"] = draw.choice([0.01, 0.1, 0.5, 3.0])
    if mapping == "others":
        name, params = draw.choice(OTHERS)
        call |= {"mapping": name, **params}
    if isinstance(alpha := call.get("alpha"), Tensor) and maybe(0.5):  # all shapes of one for each head or entry
        same = {heads: [(heads, 1), (heads, 1, 1)], B: [(B, 1, 1, 1)]}.get(alpha.numel(), [alpha.shape])
        call["alpha"] = alpha.reshape(draw.choice(same))
    if "scale" in call and maybe(0.5):
        scale = call["scale"]
        call["scale"] = scale.view(draw.choice([(heads, 1, 1), (1, heads, 1, 1)])) if scale.ndim == 1 else scale.mean()
    if "sink" in call and maybe(0.3):
        call["sink"][: draw.choice([1, heads])] = -torch.inf  # none
    if "lengths" in call and maybe(0.3):
        call["lengths"] = torch.randint(0, m + 1, (B, heads), generator=make)
    if "cu_seqlens" in call and maybe(0.5):
        call["cu_seqlens"] = call["cu_seqlens"].int()
    if "mask" not in call and maybe(0.2):  # of spans, of padding on the right and on the left
        ends = torch.randint(0, m + 1, (B, 1, 1, 1), generator=make)
        call["mask"] = draw.choice([visible(n, m, 6, 1), torch.arange(m) < ends, torch.arange(m) >= ends])
    call |= {"dropout": 0.35} if maybe(0.1) else {}
    call |= {"need_weights": True} if maybe(0.2) else {}
    if maybe(0.1):
        call = {k: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for k, x in call.items()}
    return call


def on_rows(mapping: str, **params) -> Callable:
    """The mapping of rows by other means than ours, where there are any."""
    if mapping == "softmax":
        x_of = lambda x, keep: (x / params.get("gamma", 1.0)).masked_fill(~keep, -torch.inf)  # noqa: E731
        return lambda x, keep: torch.softmax(x_of(x, keep), -1).nan_to_num(0.0)
    if mapping in ("entmax", "sparsemax", "sparsegen_lin"):
        factor = params.get("gamma", 1.0) * (1 - params.get("lam", 0.0))
        return lambda x, keep: bisected(params.get("alpha", 2.0))(x / factor, keep)
    return named(mapping, **params)


def exact_output(q, k, v, mapping, slopes=None, sink=None, bias=0.0, scale=None, factors=1.0, **params):
    """The output and weights, and which rows keep their support and segments, which decide about gradients, near the scores."""
    (B, H, n, _), m = q.shape, k.shape[-2]
    hides = {name: params.pop(name, None) for name in ("causal", "lengths", "cu_seqlens", "window", "mask")}
    keep = visible(n, m, *hides["window"] or (None, None), hides["causal"], hides["lengths"], hides["cu_seqlens"])
    keep = (keep if hides["mask"] is None else keep & hides["mask"]).expand(B, H, n, m)
    added = bias if slopes is None else bias - slopes.view(H, 1, 1) * distances(n, m).abs()
    heads = [name for name, x in params.items() if isinstance(x, Tensor) and x.ndim < 4 and x.numel() == H]
    params |= {name: params[name].view(1, H, 1, 1) for name in heads}
    steady = []

    def mapped(x: Tensor, keep: Tensor) -> Tensor:
        p = on_rows(mapping, **params)(x, keep)
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
        noise *= 3e-3 if torch.as_tensor(params.get("alpha", 2.0)).max() > 2 else 3e-4
        with torch.no_grad():
            near = [p, *(named(mapping, **params)(x + move, keep) for move in (-noise, noise))]
        shape = [torch.cat([w > 0, w.diff(dim=-1) != 0], -1) for w in near]
        steady.append(((shape[0] == shape[1]) & (shape[0] == shape[2])).all(-1))
        return p

    return *formula(mapped, q, k, v, keep, scale, added, sink, factors), steady[0]


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


FEW = [range(first, first + 30) for first in range(0, 150, 30)]
MANY = [pytest.param(range(first, first + 100), marks=pytest.mark.slow) for first in (150, *range(1000, 6000, 100))]


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
            assert sa.fused.plan(**call).path == ("composition" if "need_weights" in call else "fused"), seed


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
