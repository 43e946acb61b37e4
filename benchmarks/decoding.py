"""Time a decoding step, one query on a long cache: `sa.KeyCache` against torch's attention and the composition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import sparse_attention as sa
from benchmarks.table import medians
from sparse_attention.attention import composition


@dataclass(frozen=True)
class DecodingCase:
    """A cache of n keys for ``heads`` heads of 64 channels.

    Each key has correlation ``rho`` with the previous key, and queries are distributed like keys.

    Attributes:
        target: wanted speed-up over torch's attention.
    """

    n: int
    heads: int = 8
    rho: float = 0.0
    mapping: str = "sparsemax"
    target: float | None = None


DECODING_CASES = tuple(
    DecodingCase(n, rho=rho, mapping=mapping, target=(4.5 if n == 4096 else 5.0) if mapping == "sparsemax" else None)
    for n in (4096, 16384)
    for rho in (0.0, 0.9)
    for mapping in ("sparsemax", "entmax15")
)


@dataclass
class DecodingRow:
    """The support of the query, and milliseconds per step by implementation."""

    case: DecodingCase
    support: float
    times: dict[str, float]


def timed(case: DecodingCase, seconds: float) -> DecodingRow:
    """Time a case, for about ``seconds``."""
    make = torch.Generator().manual_seed(0)
    q, v = torch.randn(case.heads, 1, 64, generator=make), torch.randn(case.heads, case.n, 64, generator=make)
    k = torch.randn(case.heads, case.n, 64, generator=make)
    for t in range(1, case.n if case.rho else 0):
        k[:, t] = case.rho * k[:, t - 1] + (1 - case.rho**2) ** 0.5 * k[:, t]
    alpha, name = (2.0, "sparsemax") if case.mapping == "sparsemax" else (1.5, "entmax")
    cache = sa.KeyCache(name, **({} if alpha == 2.0 else {"alpha": 1.5})).append(k, v)  # type: ignore[arg-type]
    of: Any = composition.of_alpha(alpha)
    support = (composition.attend(q, k, v, 0.125, of, None)[1] > 0).double().mean().item()
    contestants = {
        "sdpa": lambda: F.scaled_dot_product_attention(q[None], k[None], v[None]),
        "ours": lambda: cache.attend(q),
        "composition": lambda: composition.attend(q, k, v, 0.125, of, None)[0],
    }
    with torch.no_grad():
        times = medians(dict(contestants), seconds)
    return DecodingRow(case, support, {who: t / 1e6 for who, t in times.items()})
