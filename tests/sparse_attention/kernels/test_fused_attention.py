"""The fused attention on the CPU against the composition in float64: values, support, gradients; adversarial inputs."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import entmax
import pytest
import torch
from attention_oracles import formula, named, visible
from kernel_oracles import columns, dense_weights
from torch import Tensor

import sparse_attention as sa
from sparse_attention.kernels.native import attention

pytestmark = pytest.mark.skipif(attention._load() is None, reason=f"no native kernels: {attention._failure}")
ALPHAS = [2.0, 1.5]  # those of decoding
ANY = [*ALPHAS, 1.05, 1.15, 1.3, 1.9, "fusedmax"]
Alpha = float | str


def given(alpha: Alpha) -> dict[str, float]:
    return {"alpha": 2.0, "lam": 0.1} if isinstance(alpha, str) else {"alpha": alpha}


def seen(heads: int, n: int, m: int, causal: bool, lengths: Tensor | None) -> Tensor:
    """bool [H, n, m]: what each query sees; a length is that of all heads of a batch's entry."""
    each = torch.tensor([m]) if lengths is None else lengths
    return visible(n, m, causal=causal, lengths=each.repeat_interleave(heads // len(each))[None])[0]


def composition(
    q: Tensor, k: Tensor, v: Tensor, alpha: Alpha, scale: float, causal: bool, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """out and P in float64; query i of a causal call sees the keys up to i + m - n."""
    mapped = named("fusedmax", lam=0.1) if isinstance(alpha, str) else named("entmax", alpha=alpha)
    return formula(mapped, q, k, v, seen(q.shape[0], q.shape[1], k.shape[1], causal, lengths), scale)


def compare(q: Tensor, k: Tensor, v: Tensor, alpha: Alpha, scale=None, causal: bool = False, lengths=None) -> None:
    """Values, support and gradients, to what float32 can hold of the scores."""
    scale = q.shape[2] ** -0.5 if scale is None else scale
    assert attention.refusal(q, k, v, given(alpha)["alpha"]) is None
    asked = {**given(alpha), "scale": scale, "causal": causal, "lengths": lengths}
    out, saved = attention.forward(q, k, v, **asked, weights=True)
    assert saved is not None
    unsaved, nothing = attention.forward(q, k, v, **asked, save=False)
    assert nothing is None and torch.equal(out, unsaved)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    expected, p = composition(*exact, alpha, scale, causal, lengths)
    p = p.detach()

    # a score is off by about d units in the last place of |q| |k|, and a probability by as much
    off = 1e-6 + 6e-7 * abs(scale) * float(q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max())
    got = dense_weights(saved).double()
    assert float((got - p).abs().max()) <= 3 * off
    assert float(torch.where((got > 0) != (p > 0), got + p, 0).max()) <= (off if alpha in (2.0, "fusedmax") else off**2)
    # the approximate power of other alphas is off alike in equal weights: 3.3e-6 on AVX2 for 1,800 of them
    torch.testing.assert_close(got.sum(-1), p.sum(-1), atol=3e-6 if alpha in (1.5, 2.0, "fusedmax") else 5e-6, rtol=0)
    size = float(v.abs().max())
    most = float((p > 0).sum(-1).max())
    torch.testing.assert_close(out.double(), expected, atol=size * (1e-6 + 3 * off * most), rtol=1e-5)

    g = torch.randn_like(out)
    gradients = attention.gradients(g, q, k, v, saved)[:3]
    if torch.equal(got > 0, p > 0):
        for mine, right in zip(gradients, torch.autograd.grad(expected, exact, g.double()), strict=True):
            slack = {1.5: 1e-4, 2.0: 2e-5, "fusedmax": 2e-5}.get(alpha, 5e-5)  # powers of small probabilities
            rounding = 1e-6 if alpha in (1.5, 2.0, "fusedmax") else 2e-6
            cancelled = rounding * abs(scale) * float(q.shape[2] * g.abs().max() * v.abs().max() * k.abs().max())
            atol = (slack + 30 * off) * float(right.abs().max()) + cancelled
            torch.testing.assert_close(mine.double(), right, atol=atol, rtol=0)


def drawn(
    heads: int, groups: int, n: int, m: int, d: int, e: int, sharpness: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(n * 1000 + m)
    return torch.randn(heads, n, d) * sharpness, torch.randn(groups, m, d), torch.randn(groups, m, e)


DRAWS = [  # shape, sharpness, causal
    ((2, 2, 100, 100, 64, 64), 1.0, False),
    ((4, 2, 150, 150, 64, 64), 1.0, True),
    ((3, 1, 257, 257, 32, 48), 1.0, True),
    ((1, 1, 77, 1000, 64, 64), 0.05, False),  # most of the keys in the support
    ((1, 1, 70, 2100, 64, 64), 0.5, False),
    ((2, 2, 512, 512, 7, 5), 0.1, True),
    ((1, 1, 300, 300, 64, 64), 4.0, False),
    ((3, 3, 1, 65, 128, 128), 1.0, False),
    ((2, 1, 100, 1500, 30, 64), 2.0, True),  # screened
    ((2, 2, 130, 50, 80, 20), 1.0, True),  # the first 80 queries see nothing
    ((2, 1, 20, 333, 1, 1), 1.0, True),
    ((2, 1, 30, 65_600, 16, 16), 2.0, True),  # more keys than 16 bits count
]
FEW = 2.0, 1.3, "fusedmax"  # for the longest


@pytest.mark.parametrize(
    ("shape", "sharpness", "causal", "alpha"), [(*x, a) for a in ANY for x in DRAWS if x[0][3] < 60_000 or a in FEW]
)
def test_it_is_the_composition(shape: tuple[int, ...], sharpness: float, causal: bool, alpha: Alpha) -> None:
    compare(*drawn(*shape, sharpness=sharpness), alpha, causal=causal)


def rising(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Every key beats all before it."""
    q[:] = q[:, :1].clone()
    order = (k @ q[:1, 0, :, None]).squeeze(-1).argsort(-1)
    k[:] = k.gather(1, order.unsqueeze(-1).expand_as(k))


SPOIL: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "outlier": lambda q, k, v: k[..., 3].mul_(1000),
    "ties": lambda q, k, v: (q.round_(), k.round_()),
    "equal keys": lambda q, k, v: k.copy_(k[:, :1].clone().expand_as(k)),
    "zeros": lambda q, k, v: q.zero_(),
    "subnormal": lambda q, k, v: q.mul_(1e-39),
    "offset": lambda q, k, v: k.add_(30),
    "rising": rising,
}
GROWING = {"nothing": lambda *_: None, **SPOIL}
GROWING["drift"] = lambda q, k, v: k.add_(
    torch.linspace(0, 30, k.shape[1])[:, None]
)  # from the keys that chose the rounding


@pytest.mark.parametrize("alpha", ANY)
@pytest.mark.parametrize("spoil", SPOIL.values(), ids=SPOIL)
def test_adversarial_inputs(spoil: Callable[..., Any], alpha: Alpha) -> None:
    q, k, v = drawn(1, 1, 100, 1800, 64, 64, sharpness=2.0)  # enough keys to screen, few enough candidates
    spoil(q, k, v)
    compare(q, k, v, alpha)


@pytest.mark.parametrize("d", [1, 2, 63, 1000])
def test_scores_that_are_the_largest_whose_integers_fit(d: int) -> None:
    """All channels of query and key at their largest, and of one sign: a sum of products that overflowed would hide the key."""
    torch.manual_seed(d)
    near = 1 - torch.randint(0, 64, (1, 1800, 1)) / 256  # float32 holds all products and sums exactly
    k = (near * (torch.arange(1800) % 2 * 2 - 1).view(1, -1, 1)).expand(1, 1800, d).contiguous()
    q = (torch.arange(100) % 2 * 2.0 - 1).view(1, -1, 1).expand(1, 100, d).contiguous()
    compare(q, k, torch.randn(1, 1800, 8), 2.0, scale=2.0 ** round(5 - math.log2(d)))


@pytest.mark.parametrize("alpha", ANY)
@pytest.mark.parametrize("scale", [1e4, 1e-30, -0.3, 0.0])
def test_any_scale(scale: float, alpha: Alpha) -> None:
    compare(*drawn(1, 1, 60, 300, 64, 64), alpha, scale=scale)


@pytest.mark.parametrize("alpha", ANY)
def test_scores_that_are_not_finite(alpha: Alpha) -> None:
    """-inf excludes a key; NaN and +inf, or sums that overflow, make the row NaN; other rows are as ever."""
    q, k, v = drawn(1, 1, 30, 80, 8, 8)
    q[0, :, 0] = 1.0
    k[0, 7, 0] = -torch.inf
    kept = torch.arange(80) != 7
    out, saved = attention.forward(q, k, v, **given(alpha), scale=0.3, weights=True)
    expected, p = composition(q.double(), k[:, kept].double(), v[:, kept].double(), alpha, 0.3, False, None)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)
    assert saved is not None and torch.equal(dense_weights(saved)[:, :, kept] > 0, p > 0)

    k[0, 7, 0] = 0.5
    for bad in (torch.nan, torch.inf, *[3e38] * (given(alpha)["alpha"] > 1.2)):  # its scores are times alpha - 1
        one = q.clone()
        one[0, 3] = bad
        out, saved = attention.forward(one, k.abs() * 4, v, **given(alpha), scale=1.0)
        assert saved is not None
        assert out[0, 3].isnan().all() and not out[0, :3].isnan().any() and not out[0, 4:].isnan().any()
        dq, dk, _ = attention.gradients(torch.ones_like(out), one, k, v, saved)[:3]
        assert dq[0, 3].isnan().all() and not dq[0, :3].isnan().any() and dk.isnan().all()


@pytest.mark.parametrize("alpha", ANY[:-1])
def test_the_support_is_kept_and_not_its_weights(alpha: Alpha) -> None:
    q, k, v = drawn(2, 1, 200, 300, 64, 32)
    q[0, 3] *= 1e37  # such scores overflow in some orders of their sum
    q[1, 5], k[0, 7, 0] = torch.inf, -3.0
    g = torch.randn(2, 200, 32)
    out, saved = attention.forward(q, k, v, alpha=alpha, scale=0.125)
    same, full = attention.forward(q, k, v, alpha=alpha, scale=0.125, weights=True)
    assert saved is not None and full is not None and torch.equal(out.nan_to_num(), same.nan_to_num())
    assert saved.weights_ is None and full.weights_ is not None and torch.equal(columns(saved), columns(full))
    both = (attention.gradients(g, q, k, v, one)[:3] for one in (saved, full))
    for mine, other in zip(*both, strict=True):
        assert torch.equal(mine.isnan(), other.isnan()) and torch.equal(mine.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("m", [1, 31, 64, 700, 70_000])
def test_how_much_the_support_takes(m: int) -> None:
    """Two or four bytes an entry, and never more than a bit for every key, whichever way a row is held."""
    q, k, v = drawn(1, 1, 64, m, 16, 8)
    q *= torch.logspace(-4, 1, 64).view(1, 64, 1)  # from all keys to a few
    _, saved = attention.forward(q, k, v, alpha=2.0, scale=1.0, weights=True)
    assert saved is not None
    counts = saved.row_pointers.diff()
    whole, each = (m + 31) // 32 * 4, 2 if m <= 65536 else 4
    assert saved.held.numel() == int((counts * each).clamp(max=whole).sum())
    assert m < 700 or ((counts * each < whole).any() and (counts * each > whole).any())  # both kinds of rows
    expected = entmax.sparsemax(q[0].double() @ k[0].double().T, -1)
    torch.testing.assert_close(dense_weights(saved)[0].double(), expected, atol=2e-5, rtol=0)


def test_values_off_a_large_support_are_not_read() -> None:
    """Most keys have weight, so full blocks are multiplied if, and only if, the zeros do no harm."""
    q, k, v = drawn(2, 1, 100, 300, 64, 64)
    q[..., 0], k[:, 100:190, 0] = 1.0, -1000.0
    g = torch.randn(2, 100, 64)
    out, saved = attention.forward(q, k, v, alpha=1.05, scale=0.125)
    assert saved is not None and columns(saved).numel() == 2 * 100 * 210
    spoilt = v.clone()
    spoilt[:, 100:190] = torch.nan
    same, spared = attention.forward(q, k, spoilt, alpha=1.05, scale=0.125)
    assert spared is not None
    torch.testing.assert_close(same, out, atol=1e-6, rtol=1e-5)
    both = (attention.gradients(g, q, k, x, one)[:3] for x, one in ((v, saved), (spoilt, spared)))
    for mine, other in zip(*both, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha, drop", [(2.0, {}), (1.5, {"dropout": 0.2, "seed": 11}), (1.05, {})])
def test_same_bits_in_any_threads_and_callers(alpha: float, drop: dict[str, Any]) -> None:
    q, k, v = drawn(4, 2, 400, 400, 64, 64)
    g = torch.randn(4, 400, 64)
    before = torch.get_num_threads()
    results: list[tuple[Tensor, ...]] = []
    keys: list[tuple[Tensor, Tensor]] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, saved = attention.forward(q, k, v, alpha=alpha, scale=0.125, causal=True, weights=True, **drop)
            assert saved is not None
            results.append((out, saved.row_pointers, columns(saved), saved.weights_))
            dq, dk, dv = attention.gradients(g, q, k, v, saved)[:3]
            results[-1] += (dq,)
            keys.append((dk, dv))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*keys[:2], strict=True))  # two groups for two threads
    # for three, groups are cut: another order of sums
    torch.testing.assert_close(keys[0], keys[2], atol=1e-5, rtol=1e-5)

    def again(_: int) -> bool:
        out, saved = attention.forward(q, k, v, alpha=alpha, scale=0.125, causal=True, weights=True, **drop)
        return saved is not None and torch.equal(out, results[0][0]) and torch.equal(columns(saved), results[0][2])

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(again, range(9)))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("spoil", GROWING.values(), ids=GROWING)
def test_decoding_on_a_growing_cache(spoil: Callable[..., Any], alpha: Alpha) -> None:
    """A prompt, then a key at a time, then one that is cut and reordered: always what one query over all keys gives."""
    q, k, v = drawn(4, 2, 1, 1500, 64, 48)
    spoil(q, k, v)
    if spoil is rising:
        k = k[:1].repeat(2, 1, 1)
    cache = sa.KeyCache("entmax", alpha=alpha, scale=0.125)
    for m in (1, 31, 700, 701, 702, 1408, 1500):
        now = k[:, :m]
        cache.append(now[:, len(cache) :], v[:, len(cache) : m])
        assert cache.plan(q).path == "decode"
        got = cache.attend(q)[:, 0]
        right = composition(q.double(), now.double(), v[:, :m].double(), alpha, 0.125, False, None)[0][:, 0]
        off = 1e-6 + 6e-7 * 0.125 * float(q.norm(dim=-1).max() * now.norm(dim=-1).max())
        torch.testing.assert_close(got.double(), right, atol=8 * off * min(m, 100), rtol=1e-5)
    lengths = torch.tensor([1500, 1000, 5, 0])
    got = cache.attend(q, lengths=lengths)[:, 0]
    right = composition(q.double(), k.double(), v.double(), alpha, 0.125, False, lengths)[0][:, 0]
    torch.testing.assert_close(got.double(), right, atol=800 * off, rtol=1e-5)
    index, cut = torch.tensor([1, 0]), 900
    k, v = k[index, :cut], v[index, :cut]
    got = cache.crop(cut).reorder(index).attend(q)[:, 0]
    right = composition(q.double(), k.double(), v.double(), alpha, 0.125, False, None)[0][:, 0]
    torch.testing.assert_close(got.double(), right, atol=800 * off, rtol=1e-5)


@pytest.mark.parametrize("spread", [1e-3, 1e-2, 0.05, 0.2])
def test_fusedmax_of_scores_that_differ_little(spread):
    """Long segments, up to the whole row, with and without keys that are hidden between."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 300, 16, generator=g) for _ in range(3))
    for mask in (None, torch.rand(300, generator=g) > 0.02):
        scores = (q * spread) @ k.transpose(-1, -2) / 4
        with sa.kernels.use("reference"):
            expected = sa.fusedmax(scores.double(), lam=0.1, mask=mask) @ v.double()
        found = sa.sparse_attention(q * spread, k, v, "fusedmax", lam=0.1, mask=mask)
        assert torch.allclose(found.double(), expected, rtol=0, atol=2e-6)
