"""docs/start/coming_from.md and docs/guides/losses.md: every line of the tables runs, and both columns give the same numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from sparse_attention.integrations import entmax, torchsparseattn

DOCS = Path(__file__).resolve().parents[3] / "docs" / "start"
PAGE = (DOCS / "coming_from.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.M)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.S)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    torch.manual_seed(0)
    found: dict[str, Any] = {"torchsparseattn": torchsparseattn}
    exec(blocks(PAGE)[0], found)
    return found


@pytest.mark.parametrize("theirs, here", LINES)
def test_both_columns_are_the_same(names, theirs, here):
    package = pytest.importorskip("entmax") if theirs.startswith("entmax.") else None
    expected, found = eval(theirs, {**names, "entmax": package}), eval(here, dict(names))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    if package is not None:
        torch.testing.assert_close(eval(theirs, {**names, "entmax": entmax}), found)


def test_the_tables_leave_no_function_out():
    page = " ".join(theirs for theirs, _ in LINES)
    named = [n for n in (*entmax.__all__, *torchsparseattn.__all__) if n[0].islower() or "Loss" not in n]
    missing = {n for n in named if f".{n}(" not in page}
    # Another spelling of what is there, or derivatives that autograd takes.
    assert missing == {
        *("sparsemax_bisect", "SparsemaxBisect", "sparsemax_bisect_loss", "NormmaxBisect", "BudgetBisect"),
        *("normmax_bisect_loss", "SparsemaxFunction", "isotonic_regression", "sparsemax_grad"),
        *("fused_prox_jv_fast", "fused_prox_jv_slow", "oscar_prox_jv"),
    }


def test_the_page_on_losses_runs():
    found: dict[str, Any] = {}
    for block in blocks((DOCS.parent / "guides" / "losses.md").read_text(encoding="utf-8")):
        exec(block, found)
    assert found["y"].shape == (4, 30) and found["loss"].ndim == 0
