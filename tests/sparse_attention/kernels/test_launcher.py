"""Launches on a GPU, with a driver that counts them and starts nothing (`benchmarks.host`): CPU tensors stand in for CUDA tensors."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from test_direct import sides

pytest.importorskip("triton", reason="triton is not installed")
import sparse_attention as sa
from benchmarks import host
from sparse_attention.kernels import triton
from sparse_attention.kernels.triton import attention, kinds, launcher

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


def known() -> int:
    return sum(len(starter.starts) for starter in launcher._starters.values())


@compiles
def test_a_new_size_is_no_new_kind(driver, monkeypatch) -> None:
    """So Triton, which is slower, starts only the first of a kind."""
    by_triton, started = launcher._by_triton, []
    monkeypatch.setattr(launcher, "_by_triton", lambda *given: started.append(given[0]) or by_triton(*given))
    for i in range(1, 30):
        x = torch.zeros(i, 2 * i, 33 + i % 15)
        for mask in (None, torch.ones(i, 1, x.shape[-1], dtype=torch.bool), torch.ones(2 * i, 1, dtype=torch.bool)):
            sa.sparsemax(x, gamma=1.0 + i / 100, mask=mask)
    # Without a mask, with one that differs along the rows, and with another
    assert len(host.Launcher.started) == 87 and known() == len(started) == 3
    for n in range(17, 27, 3):
        tensors = [torch.zeros(1, 2, n, 16, requires_grad=True) for _ in range(3)]
        torch.autograd.grad(sa.sparse_attention(*tensors).sum(), tensors)
    assert len(host.Launcher.started) == 95 and known() == len(started) == 5
    monkeypatch.setattr(launcher.Starter, "go", None)  # which finds out the kind
    torch.autograd.grad(sa.sparse_attention(*tensors).sum(), tensors)
    sa.sparsemax(x, gamma=1.0 + i / 100)
    assert len(host.Launcher.started) == 98


@compiles
def test_rows_of_one_plan_differ_in_dtypes(driver, monkeypatch) -> None:
    kernel, x = triton.OPS["sparsemax"], torch.zeros(5, 40).half()
    dtypes, mask = (torch.float16, torch.float32), torch.ones(40, dtype=torch.bool)
    wide, masked = ([triton.form(keep, dtype, x.shape) for dtype in dtypes] for keep in (None, mask))
    calls = [partial(kernel.forward, x, form, gamma=1.0) for form in (*wide, *masked)]
    calls += [partial(kernel.backward, g, x, (), form, gamma=1.0) for g in (x, x.float()) for form in wide]
    for call in calls * 2:
        call()
    monkeypatch.setattr(launcher, "_stream", lambda *_: None)  # by Triton's own launch
    for call in calls:
        call()
    hashes = [at.hash for at in host.Launcher.started]
    assert hashes[:8] == hashes[8:16] == hashes[16:] and len({*hashes}) == 8


def test_numbers_of_rows_are_not_kept_without_end(recorded, monkeypatch) -> None:
    monkeypatch.setattr(triton, "_SEEN", 3)
    launch = triton._Launch(0, "weighted_backward", (0, 1, 2), 9, 1.0, 0.0)
    for rows in (1, 2, 3, 1, 4):
        launch[rows, ()](*[torch.zeros(rows, 9)] * 3)
    assert len(launch) == 1 and len(recorded) == 5


@compiles
def test_nothing_is_started_for_no_rows_and_no_heads(driver) -> None:
    x, q = torch.zeros(64), torch.zeros(2, 5, 8)
    for heads in (2, 0):
        launcher.starter(triton._load()[0].weighted_backward, ROWS=1, BLOCK=16).go(heads, x, x, x, heads, 17, 1.0, 0.0)
        attention.forward(q[:heads], q[:heads], q[:heads], alpha=2.0, scale=1.0)
        triton.OPS["sparsemax"].forward(q[0, :heads], gamma=1.0)
    assert [at.programs for at in host.Launcher.started] == [2, 2, 1]


@compiles
def test_a_lazily_negated_tensor_is_resolved(driver) -> None:
    """Before the launch, which does not look: the values in its memory are others."""
    x, (q, k, v) = torch._neg_view(torch.randn(5, 40)), sides()[0]
    g, slopes = torch._neg_view(torch.randn(2, 4, 6, 5)), torch._neg_view(torch.randn(8))
    kernel = triton.OPS["sparsemax"]
    for _ in range(2):
        p, _ = kernel.forward(x, gamma=1.0)
        kernel.backward(x, p, gamma=1.0)
        _, saved = attention.forward(q, k, v, alpha=2.0, scale=1.0, lead=(2, 4), slopes=slopes)
        attention.gradients(g, q, k, v, saved)
        attention.forward(q, torch._neg_view(k), v, alpha=2.0, scale=1.0, lead=(2, 4))
    read = [{*at.values[:12]} for at in host.Launcher.started]
    assert len(read) == 12 and [k.data_ptr() in at for at in read] == [False, False, True, True, True, False] * 2
    assert not {y.data_ptr() for y in (x, g, slopes)} & set().union(*read)


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
def test_triton_3_6_is_started_by_its_inner_launcher(driver, monkeypatch) -> None:
    inner, launch = [], host.Launcher.launch
    monkeypatch.setattr("triton.__version__", "3.6.0")
    monkeypatch.setattr(host.Launcher, "launch", lambda self, *given: inner.append(self.name) or launch(self, *given))
    kept = launcher._starters
    monkeypatch.setattr(launcher, "_starters", {})
    x = torch.zeros(64)
    for _ in range(3):
        weighted(17, x)
    monkeypatch.setattr(host.Launcher, "profile_scratch_size", 8)
    for _ in range(2):
        weighted(17, torch.zeros(64, dtype=torch.float16))
    assert inner == ["weighted_backward"] * 2 and len(host.Launcher.started) == 5 and kept is not launcher._starters
    assert len({at.programs for at in host.Launcher.started}) == 1
    assert host.Launcher.started[0][4][3:] == host.Launcher.started[2][4][3:]


def test_functions_are_hashed_in_the_order_of_their_modules(monkeypatch) -> None:
    hashed: list[str] = []
    parts = {
        name: type(name, (), {"cache_key": property(lambda self: hashed.append(type(self).__name__))}) for name in "abc"
    }
    helpers, kernels, others = (
        ModuleType(f"{launcher.__package__}.{name}") for name in ("helpers", "kernels", "others")
    )
    others.__name__ = "triton.language"
    helpers.b, kernels.a, kernels.tile, kernels.c, others.z = (
        parts["b"](),
        parts["a"](),
        helpers,
        parts["c"](),
        parts["a"](),
    )
    kernels.tl = others
    for module in (helpers, kernels):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    kernel = SimpleNamespace(__module__=kernels.__name__)
    monkeypatch.setattr(launcher, "_starters", {})
    for rows in (1, 2):
        launcher.starter(kernel, ROWS=rows)
    assert hashed == ["a", "b", "c"]


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
    assert p == [None, None] and len(said) == 1 and not triton.available("sparsemax", x)

    def lost(*_: Any) -> None:
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    monkeypatch.setattr(host.Launcher, "__call__", lost)
    with pytest.raises(RuntimeError, match="illegal memory access") as found:
        weighted(17, torch.zeros(64))
        weighted(17, torch.zeros(64))
    assert not isinstance(found.value, triton.LaunchFailed)

    def full(*_: Any) -> None:
        raise RuntimeError("Triton Error [CUDA]: too many resources requested for launch")

    monkeypatch.setattr(host.Launcher, "__call__", full)
    with pytest.raises(triton.LaunchFailed, match="weighted_backward did not start"):
        weighted(17, torch.zeros(64))


@compiles
def test_a_kernel_compiles_once_in_all_threads_under_a_lock(driver, monkeypatch, tmp_path, capsys) -> None:
    import fcntl

    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(launcher, "_LONG", -1.0)
    compiled: list[bool] = []

    def begin(kernel: Any, *arguments: Any, **constants: Any) -> None:
        others = {*threading.enumerate()}
        triton.starter(kernel, **constants).go(2, *arguments)
        for thread in {*threading.enumerate()} - others:
            thread.join()

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
    begin(kernel, *given, **constants)
    weighted(17, x, block=512, num_warps=2)
    assert compiled == [False] and len(host.Launcher.started) == 1
    with monkeypatch.context() as without:
        without.setattr(
            threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
        )
        begin(kernel, *given, **constants, num_stages=2)
    weighted(17, x, block=1024)
    assert compiled == [False, True]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and all(line.startswith("sparse_attention: compiled weighted_backward in ") for line in said)
    begin(kernel, meta, BLOCK=16)  # what is wrong is left to the launch


@pytest.mark.parametrize("given", [{}, {"causal": True, "slopes": torch.ones(4)}, {"bias": torch.ones(6, 9)}], ids=str)
def test_the_kernels_of_the_gradient_are_prepared(given, recorded, monkeypatch) -> None:
    """With the arguments of the launches that come later, but for a bias with a gradient."""
    prepared: list[Any] = []
    started: list[Any] = []

    def seen(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        kinds = tuple(x.dtype if isinstance(x, torch.Tensor) else x for x in arguments)
        found = prepared if arguments[0].is_meta else started
        found.append((kernel.fn.__name__, programs, kinds, constants))

    forward = attention.forward

    def prepared_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> Any:
        out, saved = forward(q, k, v, **more)
        attention.prepare(q, k, v, saved)  # as `forward` does for CUDA tensors of a new kind
        return out, saved

    monkeypatch.setattr(attention, "forward", prepared_too)
    monkeypatch.setattr(launcher, "instead", seen)
    tensors = [x.requires_grad_() for x in sides()[0]]
    with sa.kernels.use("triton"):
        torch.autograd.grad(sa.sparse_attention(*tensors, **given).sum(), tensors)
    long = ["attend_forward", "attend_queries_backward", "attend_keys_backward"]
    assert [name for name, *_ in started] == (long if given else ["short_forward", "short_backward"])
    assert prepared == started[1:]


def test_the_kernels_of_the_gradient_are_prepared_once(recorded, monkeypatch) -> None:
    """For kinds of calls that share them; a kind is of one device."""
    monkeypatch.setattr(kinds, "_prepared", set())
    told = []
    for device in (0, 1):
        kinds.kind.cache_clear()
        found = [attention.forward(*[torch.ones(2, n, 8)] * 3, alpha=2.0, scale=1.0)[1].kind for n in (9, 8, 9)]
        told.append([kind.unprepared(device) for kind in found])
    assert told == [[True, False, False]] * 2


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
    kinds.measured.cache_clear()
    with monkeypatch.context() as without:
        without.setattr(kinds, "SHORT", 0)
        assert kinds.measured(0) == (128, False)  # not measured yet
    assert kinds.SHORT == 128

    def started(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        recorded.append(kernel.fn.__name__)
        if recorded[-1] == "attend_listed":
            arguments[10].fill_(wrong)  # the output
        elif recorded[-1] == "attend_forward" and not constants["MARKED"]:
            arguments[10].zero_()

    monkeypatch.setattr(launcher, "instead", started)

    def seconds(call: Any) -> float:
        recorded.clear()
        call()
        made.append(recorded[0])
        each = {"short_forward": 1.0 if len(made) < 5 else 9.0, "attend_forward": 2.0, "attend_listed": lists[0]}
        return each[made[-1]]

    monkeypatch.setattr(command, "LENGTH", 4096)
    for case in ((0.0, 1.0, True), (0.0, 2.0, False), (0.1, 1.0, False)):
        wrong, *lists, listed = case
        made: list[str] = []
        assert command.measure("cpu", seconds) == kinds.measured(0) == (64, listed)
        assert made == ["short_forward", "attend_forward"] * 3 + ["attend_listed", "attend_forward"] * 2
        assert kinds.SHORT == 128 and kinds.LISTED is None
    kinds.measured.cache_clear()


@pytest.mark.parametrize(
    "heads, n, dtype, alpha, expected",
    [
        (16, 16_384, torch.bfloat16, 2.0, 506),  # 97 places of a list take 16 x 64 x 97 / 2 bytes
        (16, 16_384, torch.float16, 1.5, 381),
        (64, 16_384, torch.bfloat16, 2.0, 528),  # four programs a multiprocessor
        (16, 16_384, torch.bfloat16, 1.3, None),  # most lists would be full
        (16, 16_384, torch.float32, 2.0, None),
        (64, 2_000, torch.bfloat16, 2.0, None),
        (1, 16_384, torch.bfloat16, 2.0, None),  # lists would take too much memory
    ],
)
def test_lists_take_at_most_a_quarter_of_the_memory_of_the_input(heads, n, dtype, alpha, expected, monkeypatch) -> None:
    from torch._subclasses import FakeTensorMode

    started: list[Any] = []
    monkeypatch.setattr(launcher, "instead", lambda kernel, *rest, **own: started.append((kernel, rest, own)))
    monkeypatch.setattr(kinds, "measured", lambda *_: (128, True))
    monkeypatch.setattr(kinds, "multiprocessors", lambda *_: 132)
    monkeypatch.setattr(triton, "capability", lambda *_: (9, 0))
    with FakeTensorMode():
        q = torch.empty(heads, n, 64, dtype=dtype, device="cuda")
        attention.forward(q, q, q, alpha=alpha, scale=0.125, save=False)
    names = [(kernel.fn.__name__, constants.get("MARKED")) for kernel, _, constants in started]
    if expected is None:
        assert names == [("attend_forward", False)]
        return
    assert names == [("attend_listed", None), ("attend_forward", True)]
    programs, lists = started[0][1][0], started[0][1][13]
    assert programs == expected and 4 * lists.nbytes <= 3 * q.nbytes


def test_causal_attention_and_padding_share_a_kernel(recorded, monkeypatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(launcher, "instead", lambda kernel, programs, *rest, **constants: seen.append(constants))
    tensors, forms = sides()
    with sa.kernels.use("triton"):
        for given in ({}, {"causal": True}, {"lengths": forms["lengths"]}):
            sa.sparse_attention(*(x.repeat(1, 1, 9, 1) for x in tensors), **given)
    assert len(seen) == 3 and seen[0] == seen[1] == seen[2]
