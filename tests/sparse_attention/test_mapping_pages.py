"""One page per mapping, saying what the registry says."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparse_attention as sa

PAGES = Path(__file__).resolve().parents[2] / "docs" / "mappings"


@pytest.mark.parametrize("name", sa.names("simplex") + sa.names("constrained"))
def test_page(name):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    known = sa.spec(name)
    assert known.paper in page and known.summary[1:] in page
    for p in known.params:
        default = "required" if p.required else f"`{p.default!r}`"
        assert f"| `{p.name}` | {default} | {p.range} |" in page
    assert f"({name}.md)" in (PAGES / "README.md").read_text(encoding="utf-8")
