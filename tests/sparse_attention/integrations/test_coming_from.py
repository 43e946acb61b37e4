"""docs/start/coming_from.md: every line of the tables runs, and both columns give the same numbers."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from sparse_attention.integrations import entmax

DOCS = Path(__file__).resolve().parents[3] / "docs" / "start"
PAGE = (DOCS / "coming_from.md").read_text(encoding="utf-8")
BEFORE, OF_ENTMAX, UNINSTALLABLE, *AFTER = re.split(r"^## ", PAGE, flags=re.M)
LINES = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", "".join([OF_ENTMAX, *AFTER]), re.M)
HERE = re.findall(r"^\| `.* \| `([^`]+)` \|$", UNINSTALLABLE, re.M)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    exec(BEFORE.split("```python\n")[1].split("```")[0], found)
    return found


@pytest.mark.parametrize("theirs, here", LINES)
def test_both_columns_are_the_same(names, theirs, here):
    package = pytest.importorskip("entmax") if theirs.startswith("entmax.") else None
    expected, found = eval(theirs, {**names, "entmax": package}), eval(here, dict(names))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    if package is not None:
        torch.testing.assert_close(eval(theirs, {**names, "entmax": entmax}), found)


def test_a_mask_in_place_of_lengths(names):
    """What replaces a package that cannot be installed: each row is the result of the row alone, cut off at its length."""
    assert len(HERE) == 5
    for here in HERE:
        found = eval(here, dict(names))
        assert found.isfinite().all() and (found.ndim == 1 or "keep" in here or (found.sum(-1) - 3).abs().max() < 1e-5)
        for i, length in enumerate(names["lengths"] if "keep" in here else ()):
            cut = {**names, "sentences": names["sentences"][i, :length], "keep": None}
            torch.testing.assert_close(found[i, :length], eval(here, cut))
            assert (found[i, length:] == 0).all()
