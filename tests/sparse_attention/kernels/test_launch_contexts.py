"""Launches inside what may surround a call: streams, graphs, threads, forks, profilers, torch.compile and autocast.

`benchmarks.host` counts the launches and starts nothing, and CPU tensors stand in for CUDA tensors. Values are compared by
tests/gpu/test_gpu_device.py.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

pytest.importorskip("triton", reason="triton is not installed")
from test_direct import sides
from test_launcher import compiles, known, weighted
from test_triton import FREE

import sparse_attention as sa
from benchmarks import host
from sparse_attention.attention import direct
from sparse_attention.kernels import triton
from sparse_attention.kernels.triton import launcher

HOST = ("synchronize", "is_current_stream_capturing", "Stream", "stream", "set_stream", "Event", "empty_cache")


def by_triton(*_: Any) -> None:
    raise AssertionError("Triton's own launch was used")


def calls() -> dict[str, Any]:
    """Calls of a kind each, forward and backward; they return the number of launches."""
    x, mask = torch.randn(4, 3, 40, requires_grad=True), torch.rand(4, 1, 40) > 0.3
    q = torch.randn(1, 2, 20, 16, dtype=torch.bfloat16, requires_grad=True)

    def both(function: Any, leaf: torch.Tensor, **given: Any) -> int:
        torch.autograd.grad(function(**given), leaf, leaf.detach())
        return 2

    rows = {name: partial(both, partial(getattr(sa, name), x), x) for name in ("sparsemax", "sparsehourglass")}
    rows |= {f"{name} masked": partial(call, mask=mask) for name, call in rows.items()}
    attend = partial(sa.sparse_attention, q, q.detach(), q.detach())
    return rows | {"attention": partial(both, attend, q), "attention causal": partial(both, attend, q, causal=True)}


def decoding() -> Any:
    """A call without a gradient that makes three launches, since its only query has many keys."""
    q, k = torch.randn(1, 2, 1, 16, dtype=torch.bfloat16), torch.randn(1, 2, 200, 16, dtype=torch.bfloat16)
    return lambda: 3 if sa.sparse_attention(q, k, k).shape == q.shape else 0


def test_what_attention_keeps_between_calls_has_no_memory() -> None:
    """`torch.compile(mode="reduce-overhead")` raises an error if memory from the pool of its graphs outlives a call."""
    assert launcher.no_lengths(torch.device("cpu")).untyped_storage().nbytes() == 0


@compiles
def test_another_current_device_is_left_to_triton(driver, monkeypatch) -> None:
    weighted(17, x := torch.zeros(64))
    driver.device = 3  # while the tensors are on -1
    weighted(17, x)
    monkeypatch.setattr(launcher, "_by_triton", by_triton)
    with pytest.raises(AssertionError, match="own launch"):
        weighted(17, x)
    driver.device = -1
    weighted(17, x)
    assert len(host.Launcher.started) == 3


@compiles
def test_what_looks_at_triton_launches_sees_all_of_them(driver, monkeypatch) -> None:
    from triton import knobs

    weighted(17, x := torch.zeros(64))
    seen: list[str] = []
    knobs.runtime.launch_enter_hook.add(hook := lambda metadata: seen.append(metadata.get()["name"]))
    weighted(17, x)
    knobs.runtime.launch_enter_hook.remove(hook)
    weighted(17, x)
    with monkeypatch.context() as patch:
        patch.setattr(knobs.runtime, "launch_enter_hook", hook)  # in the place of Triton's list
        weighted(17, x)
    kernel = triton._load()[0].weighted_backward
    monkeypatch.setattr(kernel, "pre_run_hooks", [lambda *_, **__: seen.append("before")])
    weighted(17, x)
    assert seen == ["weighted_backward", "weighted_backward", "before"] and len(host.Launcher.started) == 5


def test_autocast_changes_nothing(recorded, monkeypatch) -> None:
    tensors, _ = sides()
    seen: list[bool] = []
    monkeypatch.setattr(
        launcher, "instead", lambda *_, **__: seen.append(torch.is_autocast_enabled("cpu")) or recorded.append("")
    )
    with sa.kernels.use("triton"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert direct.attend(*tensors, "sparsemax", None, False, None, None, {}, {}).dtype == torch.float32
    assert seen and not any(seen)


@compiles
@pytest.mark.parametrize("name", [*calls(), "decoding"])
def test_a_graph_can_record_calls_seen_before(name, driver, monkeypatch) -> None:
    """They ask Triton's driver only for the device and the stream, wait for nothing, read no value and use no other stream."""
    call = decoding() if name == "decoding" else calls()[name]
    call()
    host.Launcher.started.clear()
    asked: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a call that a graph cannot record")

    for module in (torch.cuda, torch.cuda.graphs, torch.cuda.streams):
        for word in HOST:
            if hasattr(module, word):
                monkeypatch.setattr(module, word, fail)
    monkeypatch.setattr(launcher, "_by_triton", fail)
    driver.utils = SimpleNamespace()  # which loads and looks
    driver.set_current_device = driver.get_current_target = fail
    for word, value in (("device", -1), ("stream", 5)):
        setattr(driver, f"get_current_{word}", lambda *_, word=word, value=value: asked.append(word) or value)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        launches = call()
    names = {e.name.removeprefix("aten::") for e in seen.events() if e.name.startswith("aten::")}
    added = {
        "sum",
        "fill_",
        "_to_copy",
        "copy_",
        "resolve_neg",
    }  # of the parts of the keys, in the dtype of the queries
    assert names <= {*FREE, "new_empty", *(added if name == "decoding" else ())}
    assert [at.stream for at in host.Launcher.started] == [5] * launches
    assert sorted(asked) == ["device"] * launches + ["stream"] * launches


@compiles
@pytest.mark.parametrize("name", ["sparsemax", "attention causal"])
def test_a_gradient_goes_to_the_stream_of_its_call(name, driver) -> None:
    """The engine of torch makes the stream of the forward current again; here nothing does."""
    call = calls()[name]
    for driver.stream in (3, 8, 8, 3):
        call()
    assert [at.stream for at in host.Launcher.started] == [3, 3, 8, 8, 8, 8, 3, 3]


@compiles
def test_threads_that_begin_with_the_same_and_with_other_kernels(driver, monkeypatch) -> None:
    """No launch and no compiled kernel is lost, and each is of its own kind."""
    x, many, gate = torch.zeros(64), 30, threading.Barrier(6)
    blocks = (16, 16, 16, 32, 64, 128)
    failed: list[BaseException] = []

    def often(block: int) -> None:
        gate.wait()
        try:
            for i in range(many):
                weighted(17 + i % 2 * 15, x, block=block)  # 32 is divisible by 16
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=often, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(host.Launcher.started) == many * len(blocks) and known() == 2 * len({*blocks})
    assert len({at.hash for at in host.Launcher.started}) == 2 * len({*blocks})
    monkeypatch.setattr(launcher, "_by_triton", by_triton)
    for block in blocks:
        weighted(17, x, block=block)


@compiles
def test_a_fork_compiles_for_itself_and_launches_directly(driver) -> None:
    weighted(17, x := torch.zeros(64))
    if not (child := os.fork()):
        weighted(17, x, block=32)
        launcher._by_triton = by_triton  # for what it has compiled, and for what it has found
        for block in (32, 16):
            weighted(17, x, block=block)
        os._exit(10 * known() + len(host.Launcher.started))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 24
    assert known() == 1 and len(host.Launcher.started) == 1


def test_a_fork_does_not_keep_the_lock_of_a_kernel(monkeypatch, tmp_path) -> None:
    """A process that is forked while a thread compiles, such as a worker of a loader, has the file of the lock open."""
    import fcntl

    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    with launcher._alone(SimpleNamespace(fn=SimpleNamespace(__name__="kernel")), (), {}):
        if not (child := os.fork()):
            signal.pause()
    (file,) = tmp_path.glob("*.lock")
    with open(file) as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@compiles
@pytest.mark.parametrize("name", ["sparsemax", "attention"])
def test_a_compiled_function_launches_as_it_did(name, driver) -> None:
    """In one graph, which holds an operator of the library and nothing of the launcher."""
    x = torch.randn(1, 2, 20, 16, dtype=torch.float32 if name == "sparsemax" else torch.bfloat16, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return sa.sparsemax(x) if name == "sparsemax" else sa.sparse_attention(x, x, x, causal=True)

    torch._dynamo.reset()
    found: list[Any] = []
    seen = torch.compile(function, fullgraph=True, backend=lambda graph, _: found.append(graph) or graph.forward)
    whole = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        seen(x), seen(x)
    called = [str(node.target) for node in found[0].graph.nodes if node.op == "call_function"]
    assert len(found) == 1 and any(target.startswith("sparse_attention.") for target in called), called
    plain = function(x)
    torch.autograd.grad(plain, x, x.detach())
    for _ in range(2):
        host.Launcher.started.clear()
        torch.autograd.grad(whole(x), x, x.detach())
        assert [at.name for at in host.Launcher.started if at.name.endswith("_forward")]
    function(x)  # its tensors are read by the launcher again
    assert host.Launcher.started[-1].values[0] == x.data_ptr()


@compiles
def test_autocast_changes_the_kind_only_by_the_dtype_of_its_inputs(driver) -> None:
    """Attention and rows have the dtype of their inputs, which torch's own operations under autocast may have rounded."""
    q, k, v = (torch.randn(1, 2, 20, 16) for _ in range(3))
    linear = torch.nn.Linear(16, 16)
    for _ in range(2):
        host.Launcher.started.clear()
        assert sa.sparse_attention(q, k, v).dtype == sa.sparsemax(q).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert sa.sparse_attention(q, k, v).dtype == sa.sparsemax(q).dtype == torch.float32
            rounded = [linear(x) for x in (q, k, v)]
            p, out = sa.sparsemax(rounded[0]), sa.sparse_attention(*rounded)
            assert p.dtype == out.dtype == torch.bfloat16
        leaves = [linear.weight]
        torch.autograd.grad(out, leaves, torch.ones_like(out))  # outside: the backward needs no autocast
        hashes = [at.hash for at in host.Launcher.started]
        assert len(hashes) == 7 and hashes[:2] == hashes[2:4] and len({*hashes}) == 5
        many = known()
    assert many == known() == 5


@compiles
@pytest.mark.parametrize("name", calls())
def test_anomaly_detection_changes_no_launch_and_names_the_forward(name, driver, monkeypatch) -> None:
    """A gradient of NaN is an error of the library's node, with the traceback of the call."""
    call = calls()[name]
    call()
    plain = [(at.name, at.hash, at.programs) for at in host.Launcher.started]
    host.Launcher.started.clear()
    monkeypatch.setattr(launcher, "_by_triton", by_triton)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        call()
    assert [(at.name, at.hash, at.programs) for at in host.Launcher.started] == plain
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **more: empty_like(*given, **more).fill_(torch.nan))
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match=r"Error detected in _?FusedBackward(.|\n)*torch.autograd.grad\(function"),
        pytest.raises(RuntimeError, match="FusedBackward' returned nan values in its 0th output"),
    ):
        call()
