"""Every test that takes ``kernel`` runs once per implementation of the row operations."""

import pytest
import torch

import sparse_attention as sa
from sparse_attention import registry
from sparse_attention.attention import choice


def _works(name: str) -> bool:
    try:
        with sa.kernels.use(name):
            sa.kernels.select("sparsemax", torch.zeros(1, 1))
    except RuntimeError:
        return False
    return True


@pytest.fixture(params=["reference", "native"])
def kernel(request):
    if not _works(request.param):
        pytest.skip(f"kernels {request.param!r} cannot run here (no C++ compiler)")
    # `auto` where the native kernels lack an operation, so that the rest of the mapping is tested all the same.
    with sa.kernels.use("reference" if request.param == "reference" else "auto"):
        yield request.param


@pytest.fixture(params=[0, 200], ids=["long rows", "short rows"])
def short(request, monkeypatch):
    """From how many keys on a row is long, so that calls with fewer than 200 keys take either path (`fused.choice`)."""
    monkeypatch.setattr(choice, "SHORT", request.param)
    return request.param


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Random numbers begin anew, and what a test registers ends with it."""
    torch.manual_seed(0)
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
