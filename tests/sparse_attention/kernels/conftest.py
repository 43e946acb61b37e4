"""Stand-ins for a GPU, for tests of launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sparse_attention as sa
from benchmarks import host


@pytest.fixture
def driver(monkeypatch) -> Iterator[Any]:
    """Compiles for sm_90; ``host.Launcher.started`` lists the launches, of which none runs."""
    from triton.runtime.driver import driver

    from sparse_attention.kernels import triton
    from sparse_attention.kernels.triton import kinds, launcher

    monkeypatch.setattr(driver, "_active", None)
    monkeypatch.setattr(triton, "_INTERPRETED", False)
    monkeypatch.setattr(triton, "given_up", {})
    monkeypatch.setattr(launcher, "_starters", {})
    for kept in (triton._plan, kinds._of_kind, kinds.kind, kinds.of_few):
        kept.cache_clear()
    monkeypatch.setattr(host.Launcher, "started", [])
    with sa.kernels.use("triton"):
        yield host.install()


@pytest.fixture
def recorded(monkeypatch) -> list[str]:
    """The names of the kernels that are launched; none is compiled or runs."""
    from sparse_attention.kernels import triton
    from sparse_attention.kernels.triton import launcher

    names: list[str] = []
    monkeypatch.setattr(triton, "_INTERPRETED", True)  # takes CPU tensors
    monkeypatch.setattr(triton, "given_up", {})
    monkeypatch.setattr(launcher, "instead", lambda kernel, *rest, **constants: names.append(kernel.fn.__name__))
    return names
