"""Tests of what runs on a GPU: `make test-gpu`, docs/reference/gpu.md.

With TRITON_INTERPRET=1 the same tests run small on a CPU, in Triton's interpreter. tests/sparse_attention/kernels/test_triton.py
does that. The tests of kernels need torch, triton, numpy and pytest; those of training need fairseq and are skipped without it.
"""

from collections.abc import Iterator

import pytest
import torch

from sparse_attention import kernels
from sparse_attention.kernels import triton
from sparse_attention.kernels.triton import launcher


@pytest.fixture
def device() -> Iterator[str]:
    """cuda, or the CPU under Triton's interpreter. The kernels are those that `auto` chooses on a GPU."""
    if not (triton._INTERPRETED or torch.cuda.is_available()):
        pytest.skip("no GPU here; TRITON_INTERPRET=1 interprets the kernels on the CPU")
    with kernels.use("triton" if triton._INTERPRETED else "auto"):
        yield "cpu" if triton._INTERPRETED else "cuda"


# Lines that write what others have read: each thread writes its own positions, which it has read itself.
OWN = {
    (
        "tl.store(codes + at, code | tl.where(decided, tl.where(s > 0, UP, 0), OPEN), mask=real)",
        "code = tl.load(codes + at, mask=real, other=0)",
    ),
    (
        "tl.store(values + at, (mean - peak).to(tl.float32), mask=(at >= 0) & (turn == 1))",
        "first = tl.load(starts + at, mask=real, other=0)",
    ),
}


@pytest.fixture(autouse=True)
def no_races() -> Iterator[None]:
    """On a GPU programs run side by side, and so do the threads of a program until the next barrier."""
    if not triton._INTERPRETED:
        yield
        return
    from interpreted import racing

    with racing() as found:
        yield
    assert not found - OWN


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that were started, as for users. Tests assert them: elsewhere plain torch gives the same numbers."""
    names: list[str] = []

    def recorded(kernel, programs, *arguments, **constants) -> None:
        launcher.instead = None
        try:
            launcher.starter(kernel, **constants).go(programs, *arguments)
        finally:
            launcher.instead = recorded
        if not arguments[0].is_meta:  # those are compiled only
            names.append(kernel.fn.__name__)

    monkeypatch.setattr(launcher, "instead", recorded)
    return names
