"""Attention of few queries on the GPU, as in decoding, against the composition in float64 on the CPU."""

from typing import Any

import pytest
import torch
from test_gpu_attention import TOLERANCE, drawn, quarters, relative, two

import sparse_attention as sa
from sparse_attention.attention import composition, forms
from sparse_attention.kernels.triton import attention

pytestmark = pytest.mark.gpu
PARTS: dict[str, Any] = {"window": (90, 0), "sinks": (0.5, 1.0, -9.0, 3.0), "slopes": (0.125, 0.0, 0.25, 0.5)}
FEW: list[tuple[str, float, int, bool, dict[str, Any]]] = [
    ("one query", 2.0, 1, False, {}),
    ("causal, window and forms", 1.5, 3, True, PARTS | {"scales": True}),
    ("lengths, bias, mask", 1.3, 2, False, {"lengths": (150, 0, 3, 70), "bias": True}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", FEW, ids=[case[0] for case in FEW])
def test_few_queries_read_a_cache_in_place(case, dtype, device, launched) -> None:
    """The cache has free memory, filled with NaN, behind the keys of a group. Hidden values may be NaN, too."""
    _, alpha, n, causal, own = case
    H, G, m, room = 4, 2, 150, 200
    q, k, v = (x.to(dtype) for x in drawn(n, (H, n, 40), (G, room, 40), (G, room, 36)))
    k[:, m:], v[:, m:] = torch.nan, torch.nan
    each = {key: torch.tensor(own[key]) for key in ("lengths", "sinks", "slopes") if key in own}
    if "scales" in own:
        each["scales"] = torch.randint(1, 5, (H, n), generator=torch.Generator().manual_seed(1)) / 4
    spans = forms.spans_of(n, m, own["window"], None, None)[None] if "window" in own else None
    bias, mask = (quarters(n, m), quarters(2, 2, 1, m) > -0.5) if "bias" in own else (None, None)
    given = {
        key: None if x is None else x.to(device)
        for key, x in {**each, "spans": spans, "bias": bias, "mask": mask}.items()
    }
    there = [x.to(device) for x in (q, k, v)]
    views = [there[0], *(x[:, :m] for x in there[1:])]
    assert attention.together(*views[1:])[0].data_ptr() == there[1].data_ptr()
    out, saved = attention.forward(*views, alpha=alpha, scale=0.25, causal=causal, lead=(2, 2), save=False, **given)
    assert launched == ["decode_scores", "simplex_forward", "decode_values"] and saved is None
    keep = composition.visible(n, m, each.pop("lengths", None), causal, None, spans)
    keep = torch.ones(H, n, m, dtype=torch.bool) if keep is None else keep.expand(H, n, m)
    keep = keep if mask is None else keep & mask.expand(2, 2, n, m).reshape(H, n, m)
    mapped = composition.with_forms(composition.of_alpha(alpha), forms.Inputs(bias=bias, **each), (2, 2))
    with sa.kernels.use("reference"):
        expected, _ = composition.attend(q.double(), k[:, :m].double(), v[:, :m].double(), 0.25, mapped, keep)
    assert float(relative(out, expected).max()) <= TOLERANCE[dtype]
    if not (causal or own):  # the same with the kernels of many queries
        again = attention.forward(*views, alpha=alpha, scale=0.25, save=True)[0]
        assert float(relative(again, expected).max()) <= TOLERANCE[dtype]


def test_a_cache_on_a_gpu_copies_no_keys(device, launched) -> None:
    scale, sink = two(0.5, 1.0).to(device), two(0.0, 1.0).to(device)
    cache = sa.KeyCache("entmax", alpha=1.5, scale=scale, window=(40, 0), sink=sink)
    q, k, v = (x.to(device) for x in drawn(7, (2, 1, 8), (1, 100, 8), (1, 100, 8)))
    cache.append(k[:, :60], v[:, :60]).append(k[:, 60:], v[:, 60:])
    assert cache.plan(q).path == "fused"
    out = cache.attend(q)
    assert launched == ["decode_scores", "simplex_forward", "decode_values"]
    with sa.kernels.use("reference"):
        expected = cache.attend(q.cpu() if device == "cpu" else q)
    assert float(relative(out, expected).max()) < 1e-5
