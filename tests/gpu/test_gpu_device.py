"""Fused attention and what a device alone shows: the same bits, recorded graphs, a kernel that does not fit, times."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from test_gpu_attention import KERNELS
from torch import Tensor

import sparse_attention as sa
from sparse_attention.kernels import triton
from sparse_attention.kernels.triton import _INTERPRETED, attention

skipped = pytest.mark.skipif(_INTERPRETED, reason="about the device, which the interpreter does not have")
pytestmark = [pytest.mark.gpu, skipped]


def batch(
    n: int = 300, m: int = 500, d: int = 64, dtype: torch.dtype = torch.bfloat16, device: str = "cuda"
) -> list[Tensor]:
    """q, k and v of four heads in two groups, and a gradient of the output."""
    generator = torch.Generator().manual_seed(n)
    return [
        torch.randn(1, h, rows, d, generator=generator).to(device, dtype)
        for h, rows in ((4, n), (2, m), (2, m), (4, n))
    ]


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
def test_the_same_bits_each_time(alpha, device, launched) -> None:
    q, k, v, g = batch()
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def once() -> list[Tensor]:
        out = sa.sparse_attention(*leaves, "entmax", alpha=alpha, causal=True)
        return [out, *torch.autograd.grad(out, leaves, g)]

    first = once()
    for _ in range(2):
        assert all(torch.equal(*pair) for pair in zip(first, once(), strict=True))
    assert launched == 3 * KERNELS


def test_rows_in_a_graph_on_another_stream_and_under_a_profiler(device) -> None:
    """The same values, and the profiler shows the kernels."""
    x, g, mask = (
        torch.randn(64, 50, device="cuda"),
        torch.randn(64, 50, device="cuda"),
        torch.rand(50, device="cuda") > 0.3,
    )

    def both() -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        p = sa.sparsemax(leaf, mask=mask)
        return [p.detach(), *torch.autograd.grad(p, leaf, g)]

    expected, aside = both(), torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        found = both()
    torch.cuda.current_stream().wait_stream(aside)
    assert all(map(torch.equal, found, expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both()
    x.mul_(0.5)
    graph.replay()
    with torch.profiler.profile() as seen:
        expected = both()
        torch.cuda.synchronize()
    assert all(map(torch.equal, found, expected))
    assert {"simplex_forward", "weighted_backward"} <= {e.name for e in seen.events()}


def test_a_cuda_graph_and_a_compiled_function(device, launched) -> None:
    """Both replay what they recorded on new values; nothing in it reads a value on the host."""
    given = batch()
    attend = partial(sa.sparse_attention, mapping="entmax", alpha=1.5, causal=True)
    attend(*given[:3])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(*given[:3])
    compiled = torch.compile(lambda q, k, v: 2 * attend(q, k, v), fullgraph=True, mode="reduce-overhead")
    for seed in (400, 500):
        for x, new in zip(given, batch(seed)[:1] + batch(m=seed)[1:3]):
            x[..., : new.shape[-2], :].copy_(new[..., : x.shape[-2], :])
        expected = attend(*given[:3])
        graph.replay()
        assert torch.equal(out, expected) and torch.equal(compiled(*given[:3]), 2 * expected)
    assert set(launched) == set(KERNELS[:1])


def test_a_kernel_that_does_not_fit_is_given_up_with_one_warning(device, launched, monkeypatch) -> None:
    from sparse_attention.kernels import triton as rows

    starter = rows.starter
    attention._of_kind.cache_clear()
    monkeypatch.setattr(
        rows, "starter", lambda kernel, *how, **given: starter(kernel, *how, **given | {"num_stages": 40})
    )
    monkeypatch.setattr(rows, "given_up", {})
    leaves = [x.requires_grad_() for x in batch()[:3]]
    with pytest.warns(UserWarning, match="attend_forward did not start") as seen:
        out = sa.sparse_attention(*leaves, "sparsemax")
        assert len(torch.autograd.grad(out.sum(), leaves)) == 3
        again = sa.sparse_attention(*leaves, "sparsemax")
    assert len([w for w in seen if "did not start" in str(w.message)]) == 1 and not {*launched} & {*KERNELS}
    assert "did not start" in sa.attention.plan(*leaves).reason
    monkeypatch.undo()
    attention._of_kind.cache_clear()
    assert float((sa.sparse_attention(*leaves, "sparsemax") - again).abs().max()) < 2e-2


@pytest.mark.parametrize("local", [False, True], ids=["random", "local"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n", [4096, 16384])
def test_times_beside_other_attention(n, causal, local, device, launched) -> None:
    """Prints milliseconds in bfloat16, forward and with the backward, of softmax, ours and AdaSplash if installed.

    Local keys come in runs of 32 that are alike, and so are the queries at the same places.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from triton.testing import do_bench

    generator = torch.Generator(device).manual_seed(0)
    drawn = partial(torch.randn, device=device, generator=generator)
    q, k, v, g = (drawn(1, 16, n, 64) for _ in range(4))
    if local:
        runs = drawn(1, 16, n // 32, 64).repeat_interleave(32, 2)
        q, k = (0.8 * runs + 0.6 * x for x in (q, k))
    q, k, v = (x.bfloat16().requires_grad_() for x in (q, k, v))
    seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n) if causal else None
    attends = {
        "softmax": partial(F.scaled_dot_product_attention, is_causal=causal),
        "FlexAttention": partial(torch.compile(flex_attention), block_mask=seen),
    }
    for alpha in (2.0, 1.5, 1.3):
        attends[f"ours, {alpha}"] = partial(sa.sparse_attention, mapping="entmax", alpha=alpha, causal=causal)
    try:
        from adasplash import adasplash

        attends |= {f"AdaSplash, {alpha}": partial(adasplash, alpha=alpha, is_causal=causal) for alpha in (2.0, 1.5)}
    except ImportError:
        print("AdaSplash is not installed")
    for label, attend in attends.items():
        forward = do_bench(partial(attend, q.detach(), k.detach(), v.detach()), return_mode="median")
        both = do_bench(lambda a=attend: torch.autograd.grad(a(q, k, v), (q, k, v), g.bfloat16()), return_mode="median")
        print(f"n = {n}, {label}: {forward:.3f}, {both:.3f} ms")
    assert launched


@pytest.mark.parametrize("shape", [(8192, 1024), (1024, 8192), (32768, 50)], ids=str)
def test_times_of_rows_beside_softmax(shape, device) -> None:
    """Prints microseconds in float32, forward and with the backward, of torch's softmax and of ours."""
    from triton.testing import do_bench

    generator = torch.Generator(device).manual_seed(0)
    x, g = (torch.randn(shape, device=device, generator=generator) for _ in range(2))
    leaf, each = x.clone().requires_grad_(), {"softmax of torch": partial(torch.softmax, dim=-1)}
    for name, params in (
        ("sparsemax", {}), ("entmax", {"alpha": 1.5}), ("fusedmax", {"lam": 0.1}), ("fusedmax", {"lam": 1.0}),
        ("oscarmax", {"lam": 1 / shape[1]}), ("oscarmax", {"lam": 0.05}),
    ):  # fmt: skip
        each[f"{name} {params}"] = partial(getattr(sa, name), **params)
    for label, f in each.items():
        forward = do_bench(partial(f, x), return_mode="median")
        both = do_bench(lambda f=f: torch.autograd.grad(f(leaf), leaf, g), return_mode="median")
        print(f"{shape}, {label}: {1e3 * forward:.0f}, {1e3 * both:.0f} us")
    assert not triton.given_up
