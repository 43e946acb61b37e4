"""Launches on a GPU, with a driver that counts them and starts nothing (`benchmarks.host`): CPU tensors stand in for CUDA tensors."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
import sparse_attention as sa
from benchmarks import host
from sparse_attention.attention import direct
from sparse_attention.kernels import triton
from sparse_attention.kernels.triton import attention, launcher, short

compiles = pytest.mark.skipif(triton._INTERPRETED, reason="interpreted kernels cannot be compiled")


def weighted(n: int, *arrays: torch.Tensor, block: int = 16, **options: Any) -> None:
    """A launch of `weighted_backward`, which compiles fast; the last of the arrays is given again for those that lack."""
    arrays += arrays[-1:] * (3 - len(arrays))
    start = triton.starter(triton._load()[0].weighted_backward, ROWS=1, BLOCK=block, **options)
    start.go(2, *arrays, 2, n, 1.0, 0.0)


@compiles
def test_a_launch_seen_before_starts_what_triton_would(driver, monkeypatch) -> None:
    """Whatever Triton compiles for: sizes that are 1, that 16 divides and of 64 bits, types, alignment, constants, options."""
    x, half = torch.zeros(64), torch.zeros(64).half()
    alike = [partial(weighted, 17, x), partial(weighted, 25, x), partial(weighted, 25, x[4:])]
    others = [partial(weighted, n, x) for n in (16, 1, (1 << 31) + 1, 1 << 31)]
    others += [partial(weighted, 17, half), partial(weighted, 17, x, half), partial(weighted, 17, x[1:])]
    others += [partial(weighted, 17, x, block=32), partial(weighted, 17, x, num_warps=2)]
    calls = alike + others
    for call in calls + calls[::-1]:
        call()
    first, again = host.Launcher.started[: len(calls)], host.Launcher.started[: len(calls) - 1 : -1]
    assert first == again
    assert len({at.hash for at in first[:3]}) == 1 and len({at.hash for at in first}) == 1 + len(others)
    monkeypatch.setattr(launcher, "_stream", lambda *_: None)  # by Triton's own launch
    host.Launcher.started.clear()
    for call in calls:
        call()
    assert host.Launcher.started == first
    assert [at.values[0] for at in first[:3]] == [x.data_ptr(), x.data_ptr(), x[4:].data_ptr()]


def kinds() -> int:
    return sum(len(starter.starts) for starter in launcher._starters.values())


@compiles
def test_a_new_size_is_no_new_kind(driver) -> None:
    for i in range(1, 30):
        x = torch.zeros(i, 2 * i, 33 + i % 15)
        for mask in (None, torch.ones(i, 1, x.shape[-1], dtype=torch.bool), torch.ones(2 * i, 1, dtype=torch.bool)):
            sa.sparsemax(x, gamma=1.0 + i / 100, mask=mask)
    assert (
        len(host.Launcher.started) == 87 and kinds() == 3
    )  # without a mask, with one that differs along the rows, and with another


@compiles
def test_a_lazily_negated_tensor_is_resolved(driver) -> None:
    """By the launch, or before it where the kernels of rows do not look."""
    x = torch._neg_view(torch.randn(5, 40))
    kernel = triton.OPS["sparsemax"]
    for _ in range(2):
        p, _ = kernel.forward(x, gamma=1.0)
        kernel.backward(x, p, gamma=1.0)
        weighted(17, torch.zeros(64), x[0])
    read = [at.values[0] for at in host.Launcher.started] + [at.values[1] for at in host.Launcher.started[2::3]]
    assert x.is_neg() and len(read) == 8 and x.data_ptr() not in read


@compiles
def test_another_triton_starts_everything_itself(driver, monkeypatch) -> None:
    """Without the parts of Triton that a direct launch uses."""
    monkeypatch.setattr(launcher, "_triton", ())
    for _ in range(2):
        weighted(17, x := torch.zeros(64))
    monkeypatch.setattr(launcher, "_triton", None)
    by_triton = launcher._by_triton
    monkeypatch.setattr(
        launcher, "_by_triton", lambda *given: by_triton(*given) and None
    )  # what was compiled is not known
    for _ in range(2):
        weighted(17, x)
    assert len({at[:2] for at in host.Launcher.started}) == 1 and len(host.Launcher.started) == 4


@compiles
def test_errors_of_a_direct_launch(driver, monkeypatch) -> None:
    """An error of the device is raised as it is; with any other, the mapping is computed by torch from then on, with one warning."""
    x = torch.randn(5, 40)
    sa.sparsemax(x)
    monkeypatch.setattr(host.Launcher, "__call__", lambda *_: 1 / 0)
    with pytest.raises(triton.LaunchFailed, match=r"simplex_forward did not start \(ZeroDivisionError"):
        sa.sparsemax(x)  # chosen by name
    monkeypatch.setattr(sa.kernels, "fused", lambda x: triton)
    monkeypatch.setattr(triton, "active", lambda: "auto")
    monkeypatch.setattr(triton, "_INTERPRETED", True)
    with pytest.warns(UserWarning, match="sparsemax is computed by torch from now on") as said:
        p = [sa.rows.apply.fused("sparsemax", x, -1, None, {"gamma": 1.0}) for _ in range(2)]
    assert p == [None, None] and len(said) == 1

    def lost(*_: Any) -> None:
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    monkeypatch.setattr(host.Launcher, "__call__", lost)
    with pytest.raises(RuntimeError, match="illegal memory access") as found:
        weighted(17, torch.zeros(64))
        weighted(17, torch.zeros(64))
    assert not isinstance(found.value, triton.LaunchFailed)


def sides() -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 5)
    return (q, k, v), {"mask": torch.ones(2, 1, 6, 9, dtype=torch.bool), "lengths": torch.tensor([9, 4])}


META = torch.device("meta")
WRONG: dict[str, Any] = {
    **{f"{name} of another dtype": {name: lambda x: x.half()} for name in "qkv"},
    **{f"{name} of whole numbers": {name: lambda x: x.long()} for name in "qkv"},
    **{f"{name} of another device": {name: lambda x: x.to(META)} for name in "kv"},
    **{f"{name} with fewer dimensions": {name: lambda x: x[0]} for name in "qkv"},
    **{f"{name} is sparse": {name: lambda x: x.to_sparse()} for name in "qkv"},
    **{f"{name} is a list": {name: lambda x: x.tolist()} for name in "qkv"},
    "q of 7 channels": {"q": lambda x: x[..., :7]},
    "q of 3 heads": {"q": lambda x: x[:, :3]},
    "q of another batch": {"q": lambda x: x.repeat(2, 1, 1, 1)[:3]},
    "k of 8 keys": {"k": lambda x: x[..., :8, :]},
    "v of one group": {"v": lambda x: x[:, :1]},
    "mask of numbers": {"mask": lambda x: x.float()},
    "mask of 8 keys": {"mask": lambda x: x[..., :8]},
    "mask of 5 queries": {"mask": lambda x: x[..., :5, :]},
    "mask of 3 heads": {"mask": lambda x: x.expand(2, 3, 6, 9)},
    "mask of 5 dimensions": {"mask": lambda x: x.expand(2, 2, 1, 6, 9)},
    "mask of another device": {"mask": lambda x: x.to(META)},
    "mask is a list": {"mask": lambda x: x.tolist()},
    "mask is sparse": {"mask": lambda x: x.to_sparse()},
    "lengths of 3 sequences": {"lengths": lambda x: torch.tensor([9, 4, 1])},
    "lengths too large": {"lengths": lambda x: x + 1},
    "lengths below 0": {"lengths": lambda x: x - 5},
    "lengths of floats": {"lengths": lambda x: x.float()},
    "lengths of booleans": {"lengths": lambda x: x > 5},
    "lengths is a list": {"lengths": lambda x: x.tolist()},
    "lengths of 3 heads": {"lengths": lambda x: x[:, None].expand(2, 3)},
    "scale is infinite": {"scale": lambda _: float("inf")},
    "scale of 3 heads": {"scale": lambda _: torch.ones(3)},
    "mapping unknown": {"mapping": lambda _: "sparsmax"},
    "mapping over a sequence": {"mapping": lambda _: "fertility"},
    "mapping is a number": {"mapping": lambda _: 2},
    "gamma is 0": {"gamma": lambda _: 0.0},
    "no such parameter": {"gama": lambda _: 1.0},
    "torch's name": {"is_causal": lambda _: True},
    "dropout of 1": {"dropout": lambda _: 1.0},
    "a window of one side": {"window": lambda _: (1,)},
    "slopes of 3 heads": {"slopes": lambda _: torch.ones(3)},
    "slopes of another device": {"slopes": lambda _: torch.ones(4, device=META)},
    "a sink of another device": {"sink": lambda _: torch.ones(4, device=META)},
    "a scale of another device": {"scale": lambda _: torch.ones(4, device=META)},
    "a bias of 8 keys": {"bias": lambda _: torch.zeros(8)},
    "a sink for 3 heads": {"sink": lambda _: torch.zeros(3)},
    "a bias of another device": {"bias": lambda _: torch.zeros(9, device=META)},
    "a bias of whole numbers": {"bias": lambda _: torch.zeros(9, dtype=torch.int64)},
    "slopes are a list": {"slopes": lambda _: [1.0] * 4},
    "a scale of whole numbers": {"scale": lambda _: torch.ones(4, dtype=torch.int64)},
    "packed sequences of other lengths": {"cu_seqlens": lambda _: torch.tensor([0, 6])},
    "a module with parameters": {"mapping": lambda _: sa.make("sparsemax"), "gamma": lambda _: 1.0},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_a_wrong_call_after_a_right_one_raises_what_it_did(wrong, recorded, monkeypatch) -> None:
    tensors, forms = sides()
    right = {**dict(zip("qkv", tensors)), **forms, "mapping": "sparsemax"}
    ways = []
    with sa.kernels.use("triton"):
        for way in (direct.attend, lambda *_: None):  # the second: as if no call were known
            monkeypatch.setattr(sa.attention.attention, "direct", way)
            attend(right)
            recorded.clear()
            changed = {**right, **{name: change(right.get(name)) for name, change in wrong.items()}}
            with pytest.raises((TypeError, ValueError, KeyError)) as error:
                attend(changed)
            assert recorded == []
            ways.append((type(error.value), str(error.value)))
    assert ways[0] == ways[1]


@pytest.mark.parametrize("name", ["scale", "slopes", "sink"])
def test_a_cache_with_a_form_on_another_device(name, recorded) -> None:
    k, q = torch.empty(2, 9, 8, device=META), torch.empty(2, 1, 8, device=META)
    with sa.kernels.use("triton"):
        cache = sa.KeyCache("sparsemax", **{name: torch.ones(2)}).append(k, k)
        with pytest.raises(ValueError, match=f"{name} is on cpu and q on meta; move them to one device"):
            cache.attend(q)
    assert recorded == []


def attend(given: dict[str, Any]) -> Any:
    given = dict(given)
    return sa.sparse_attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


ROWS: dict[str, Any] = {
    "mask of numbers": lambda x, mask: (x, mask.float()),
    "mask of another length": lambda x, mask: (x, mask[..., :8]),
    "mask of other rows": lambda x, mask: (x, torch.cat([mask, mask])),
    "mask of more dimensions": lambda x, mask: (x, mask.expand(2, 4, 9)),
    "mask of another device": lambda x, mask: (x, mask.to(META)),
    "mask is sparse": lambda x, mask: (x, mask.to_sparse()),
    "scores of whole numbers": lambda x, mask: (x.long(), mask),
    "scores are sparse": lambda x, mask: (x.to_sparse(), None),
    "scores are a list": lambda x, mask: (x.tolist(), mask),
}


@pytest.mark.parametrize("change", ROWS.values(), ids=list(ROWS))
def test_wrong_rows_after_right_ones_raise_what_they_did(change, recorded, monkeypatch) -> None:
    x, mask = torch.randn(4, 9), torch.ones(4, 9, dtype=torch.bool)
    with sa.kernels.use("triton"):
        sa.sparsemax(x, mask=mask)
        assert recorded == ["simplex_forward"]
        with pytest.raises((TypeError, ValueError)) as first:
            x, mask = change(x, mask)
            sa.sparsemax(x, mask=mask)
        assert recorded == ["simplex_forward"]
    with sa.kernels.use("reference"), pytest.raises(type(first.value)) as second:
        sa.sparsemax(x, mask=mask)
    assert str(first.value) == str(second.value)


def test_a_number_as_mask_may_be_on_the_cpu(recorded) -> None:
    with sa.kernels.use("triton"):
        sa.sparsemax(torch.randn(4, 9), mask=torch.tensor(True))
    assert recorded == ["simplex_forward"]


GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "lengths": {"lengths": torch.tensor([9, 4])},
    "lengths of heads": {"lengths": torch.tensor([[9, 4, 1, 0], [0, 1, 2, 3]])},
    "mask": {"mask": torch.rand(6, 9) > 0.3},
    "mask of keys": {"mask": torch.rand(2, 1, 1, 9) > 0.3},
    "scale": {"scale": 0.5},
    "entmax": {"mapping": "entmax", "alpha": 1.5},
    "gamma": {"gamma": 0.5, "scale": 2.0},
    "sparsegen": {"mapping": "sparsegen_lin", "lam": 0.25},
    "module": {"mapping": sa.make("entmax", alpha=1.5)},
    "bias": {"bias": torch.randn(6, 9).half(), "gamma": 0.5},
    "slopes and sink": {"slopes": torch.rand(4), "sink": torch.rand(4), "causal": True, "gamma": 0.5},
    "window": {"window": (3, 1)},
    "scale of heads": {"scale": torch.rand(4)},
    "scale of queries": {"scale": torch.rand(2, 1, 6, 1), "mask": torch.rand(6, 9) > 0.3, "bias": torch.randn(6, 9)},
}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return a == b


@pytest.mark.parametrize("given", GIVEN.values(), ids=list(GIVEN))
def test_the_short_way_asks_the_kernels_for_what_the_long_way_asks(given, recorded, monkeypatch) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def forward(*tensors: Any, **more: Any) -> Any:
        flat = tuple(x.reshape(-1, *x.shape[-2:]) for x in tensors)
        calls.append((flat, {name: x for name, x in more.items() if x is not None}))
        return attention_forward(*tensors, **more)

    attention_forward = attention.forward
    monkeypatch.setattr(attention, "forward", forward)
    for learned in (False, True):
        calls.clear()
        tensors = [x.requires_grad_(learned) for x in sides()[0]]
        with sa.kernels.use("triton"):
            for way in (direct.attend, lambda *_: None):
                monkeypatch.setattr(sa.attention.attention, "direct", way)
                out = sa.sparse_attention(*tensors, **given)
                assert out.shape == (2, 4, 6, 5) and (out.grad_fn is not None) == learned
                if learned:
                    assert [x.shape for x in torch.autograd.grad(out.sum(), tensors)] == [x.shape for x in tensors]
        (short, asked), (long, expected) = calls
        assert all(map(equal, short, long)) and asked.keys() == expected.keys()
        assert all(equal(asked[name], x) for name, x in expected.items())
    named = {"mapping": "sparsemax", **given}
    names = ("mapping", "mask", "causal", "lengths", "scale")
    rest = [named.pop(name, False if name == "causal" else None) for name in names]
    forms = {name: named.pop(name) for name in ("bias", "slopes", "window", "cu_seqlens", "sink") if name in named}
    with sa.kernels.use("triton"):
        assert direct.attend(*tensors, *rest, named, forms) is not None


def test_calls_that_take_the_long_way(recorded) -> None:
    (q, k, v), _ = sides()
    none = (None, False, None, None, {}, {})
    with sa.kernels.use("triton"):
        assert direct.attend(q, k, v, "sparsemax", *none) is not None
        for mapping in ("softmax", "fusedmax", sa.make("entmax", alpha="learned"), sa.sparsemax, "no such mapping"):
            assert direct.attend(q, k, v, mapping, *none) is None
        assert direct.attend(q, k, v, "entmax", None, False, None, None, {"alpha": 1.05}, {}) is None
        assert direct.attend(q, k, v, "entmax", None, False, None, None, {"alpha": torch.tensor(1.5)}, {}) is None
        assert direct.attend(q.double(), k.double(), v.double(), "sparsemax", *none) is None
        assert direct.attend(q, k[:1], v[:1], "sparsemax", *none) is None  # broadcasts
        assert torch.func.vmap(lambda q: torch.as_tensor(direct.attend(q, k, v, "sparsemax", *none) is None))(
            q[None]
        ).all()
        with torch.device("meta"):  # a mode
            assert direct.attend(q, k, v, "sparsemax", *none) is None
    with sa.kernels.use("reference"):
        assert direct.attend(q, k, v, "sparsemax", *none) is None


def test_known_mappings_are_not_kept_without_end(recorded, monkeypatch) -> None:
    tensors, _ = sides()
    monkeypatch.setattr(direct, "_KNOWN", 10)
    with sa.kernels.use("triton"):
        for i in range(25):
            sa.sparse_attention(*tensors, "sparsemax", gamma=1.0 + i)
    assert len(direct._known) <= 10


def test_a_call_of_attention_only_allocates_and_launches(recorded) -> None:
    """No fill, no copy: what torch does besides are views. No gradient is recorded unless one is wanted."""
    from test_triton import FREE
    from torch.profiler import ProfilerActivity, profile

    q, k, v = (torch.randn(2, 4, 40, 8) for _ in range(3))
    with sa.kernels.use("triton"), profile(activities=[ProfilerActivity.CPU]) as seen:
        out = sa.sparse_attention(q, k, v, causal=True, scale=0.5)
    names = [e.name.removeprefix("aten::") for e in seen.events()]
    assert recorded == ["short_forward"] and {*names} <= {*FREE, "new_empty"} and out.grad_fn is None


@compiles
def test_a_kernel_compiles_once_in_all_threads_under_a_lock(driver, monkeypatch, tmp_path, capsys) -> None:
    import fcntl

    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(launcher, "_LONG", -1.0)
    monkeypatch.setattr(launcher, "_ahead", {})
    compiled: list[bool] = []

    def look(**_: Any) -> None:
        file, *_ = sorted(
            tmp_path.glob("sparse_attention_weighted_backward_*.lock"), key=lambda x: x.stat().st_mtime_ns
        )[::-1]
        with open(file) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        compiled.append(threading.current_thread() is threading.main_thread())

    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", look)
    kernel, x = triton._load()[0].weighted_backward, torch.zeros(64)
    meta = torch.zeros(64, device="meta")
    given, constants = (meta, meta, meta, 2, 17, 1.0, 0.0), {"ROWS": 1, "BLOCK": 512, "num_warps": 2}
    launcher.ahead(triton.starter(kernel, **constants), x.device).go(2, *given)
    weighted(17, x, block=512, num_warps=2)
    assert compiled == [False] and not launcher._ahead and len(host.Launcher.started) == 1
    weighted(17, x, block=1024)
    assert compiled == [False, True]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and all(line.startswith("sparse_attention: compiled weighted_backward in ") for line in said)
    launcher.ahead(triton.starter(kernel, BLOCK=16), x.device).go(2, meta)  # what is wrong is left to the launch
    for thread in launcher._ahead.pop(id(kernel)):
        thread.join()


@pytest.mark.parametrize("given", [{}, {"causal": True, "slopes": torch.ones(4)}, {"bias": torch.ones(6, 9)}], ids=str)
def test_the_kernels_of_the_gradient_are_prepared(given, recorded, monkeypatch) -> None:
    """With the arguments of the launches that come later, but for a bias with a gradient."""
    prepared: list[Any] = []
    started: list[Any] = []

    def seen(found: list[Any], kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        kinds = tuple(x.dtype if isinstance(x, torch.Tensor) else x for x in arguments)
        found.append((kernel.fn.__name__, programs, kinds, constants))

    forward = attention.forward

    def prepared_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> Any:
        out, saved = forward(q, k, v, **more)
        attention.prepare(q, k, v, saved)  # as `forward` does for CUDA tensors of a new kind
        return out, saved

    monkeypatch.setattr(attention, "forward", prepared_too)

    def ahead(of: launcher.Starter, _: torch.device) -> Any:
        return SimpleNamespace(go=partial(seen, prepared, of.kernel, **of.constants))

    monkeypatch.setattr(launcher, "ahead", ahead)
    monkeypatch.setattr(launcher, "instead", partial(seen, started))
    tensors = [x.requires_grad_() for x in sides()[0]]
    with sa.kernels.use("triton"):
        torch.autograd.grad(sa.sparse_attention(*tensors, **given).sum(), tensors)
    long = ["attend_forward", "attend_queries_backward", "attend_keys_backward"]
    assert [name for name, *_ in started] == (long if given else ["short_forward", "short_backward"])
    assert prepared == started[1:]


@compiles
def test_kernels_are_compiled_before_their_first_use(driver, monkeypatch, capsys) -> None:
    from sparse_attention.kernels.triton import __main__ as command

    monkeypatch.setattr(triton, "_ELSEWHERE", (9, 0))
    monkeypatch.setattr(triton, "_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "for example --arch sm_90" in str(command.main()) and "give sm_80" in str(command.main("--arch", "sm_75"))
    assert "leave out --arch sm_90" in str(command.main("--arch", "sm_90", "--measure"))
    names: list[str] = []
    monkeypatch.setattr(launcher, "compiled", lambda kernel, *_: names.append(kernel.fn.__name__))
    assert command.main("--arch", "sm_90", "--dtype", "float16") is None
    long = {"attend_forward": 4, "attend_queries_backward": 2, "attend_keys_backward": 2}
    assert Counter(names) == {**long, "short_forward": 6, "short_backward": 6}
    assert "20 kernels of attention are on disk" in capsys.readouterr().out and launcher.instead is None


def test_a_device_says_up_to_how_many_keys_short_kernels_are_faster(recorded, monkeypatch, tmp_path) -> None:
    from triton import knobs

    from sparse_attention.kernels.triton import __main__ as command

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "new"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "H200")
    short.measured.cache_clear()
    assert short.measured(0) == short.MOST == 128  # not measured yet

    def seconds(call: Any) -> float:
        recorded.clear()
        call()
        return {"short_forward": 1.0 if len(made) < 4 else 9.0, "attend_forward": 2.0}[made.append(0) or recorded[0]]

    made: list[int] = []
    assert command.measure("cpu", seconds) == 64
    assert short.measured(0) == 64 and short.MOST == 128 and len(made) == 6
    short.measured.cache_clear()


def test_causal_attention_and_padding_share_a_kernel(recorded, monkeypatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(launcher, "instead", lambda kernel, programs, *rest, **constants: seen.append(constants))
    tensors, forms = sides()
    with sa.kernels.use("triton"):
        for given in ({}, {"causal": True}, {"lengths": forms["lengths"]}):
            sa.sparse_attention(*(x.repeat(1, 1, 9, 1) for x in tensors), **given)
    assert len(seen) == 3 and seen[0] == seen[1] == seen[2]


def test_workers_that_begin_together_wait_for_one_compilation(tmp_path, monkeypatch) -> None:
    """Triton's place is taken by a compilation that leaves a file in its cache, and does nothing where there is one."""
    knobs = pytest.importorskip("triton.knobs", reason="this Triton keeps its settings elsewhere")
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    done, count = tmp_path / "compiled", tmp_path / "count"

    class Kernel:
        fn = staticmethod(weighted)

        def warmup(self, *arguments: Any, **constants: Any) -> None:
            if not done.exists():
                with count.open("a") as file:
                    file.write("once")
                time.sleep(0.3)  # the others arrive
                done.touch()

    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=launcher.compiled, args=(Kernel(), (torch.ones(2), 3), {"BLOCK": 4})) for _ in "abc"]
    for one in workers:
        one.start()
    for one in workers:
        one.join(60)
    assert [one.exitcode for one in workers] == [0, 0, 0] and count.read_text() == "once"
