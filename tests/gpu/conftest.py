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


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that Triton has started. Tests assert them: elsewhere plain torch gives the same numbers."""
    names: list[str] = []

    def recorded(kernel, programs, *arguments, **constants) -> None:
        launcher._by_triton(kernel, programs, arguments, constants)
        names.append(kernel.fn.__name__)

    monkeypatch.setattr(launcher, "instead", recorded)
    return names
