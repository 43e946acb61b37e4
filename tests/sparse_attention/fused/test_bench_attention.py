"""The benchmark of attention: it runs, hits the support it names, compares with torch's, and marks what misses its target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import attention as bench
from benchmarks import decoding, pages
from sparse_attention.kernels.native import attention as native

pytestmark = pytest.mark.skipif(native._load() is None, reason=f"no native kernels: {native._failure}")


def test_cases_are_timed_and_what_misses_its_target_stands_out(tmp_path):
    case = bench.AttentionCase(128, 2, 0.1, True, target=(1e6, 0.0))
    (row,) = bench.measure_attention((case,), 0.05)
    assert 0.07 < row.support < 0.13
    assert set(row.forward) == set(row.both) == {"sdpa", "ours", "composition"} and min(row.forward.values()) > 0
    page = pages.page("attention", rows=[row], memory={case: {"sdpa": 3.0, "ours": 2.0}}, kernels="native")
    assert f"**{row.forward['sdpa'] / row.forward['ours']:.2f}**" in page and page.count("**") == 4
    assert "| 128 x 2 | sparsemax, causal | 10 % | 3 | 2 | - |" in page
    assert {c.n for c in bench.ATTENTION_CASES} == {512, 1024, 4096, 8192}
    known = bench.contestants(case.n, "entmax15", True, True)
    found = {name: f(*bench.drawn(case)) for name, f in known.items()}
    torch.testing.assert_close(found["ours"][0], found["composition"], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found["sdpa"][0], found["composition"], atol=1e-2)
    torch.save({name: torch.randn(2, 1, 96, 16) for name in "qkv"}, tmp_path / "trained.pt")
    assert [r.label for r in bench.measure_trained(tmp_path / "trained.pt", "entmax15", 0.02)] == [
        "trained, layer 1",
        "trained, layer 2",
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_the_composition_takes_the_memory_of_its_scores():
    case = bench.AttentionCase(1024, 2, 0.02)
    composed, ours = (bench.peak_memory(bench.step, case, name) for name in ("composition", "ours"))
    assert composed > 3 * 1024**2 * 2 * 4 / 2**20 > ours


def test_a_step_of_decoding_is_timed():
    (row,) = decoding.measure_decoding((decoding.DecodingCase(600, 2, 0.5, target=1e6),), 0.02)
    assert 0 < row.support < 0.2 and set(row.times) == {"sdpa", "ours", "composition"}
    assert (
        "| 600 x 2 | sparsemax, correlated 0.5 |" in (page := pages.page("decoding", rows=[row]))
        and page.count("**") == 2
    )


def test_the_section_keeps_its_neighbours():
    page = "# Benchmarks\n\nrows\n\n## Training and decoding\n\nmodels\n"
    for text in ("## Fused attention\n\nold\n", "## Fused attention\n\nnew\n"):
        page = bench.with_section(page, text)
    assert page == "# Benchmarks\n\nrows\n\n## Fused attention\n\nnew\n\n## Training and decoding\n\nmodels\n"
