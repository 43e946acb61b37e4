"""Time attention with exact zeros against torch's attention and the composition of separate operations; measure memory.

Also timed: a decoding step, which is one query on a long cache (`sa.KeyCache`).

Times are milliseconds of one thread's processor time; all implementations take turns. Queries are normal noise, scaled
so that the support is the wanted share of the visible pairs; d = e = 64. Peak memory is that of forward and backward.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sparse_attention as sa
from benchmarks.table import backward, medians, milliseconds, peak_memory
from sparse_attention.attention import composition
from sparse_attention.kernels.native import attention as native

LONGEST_COMPOSITION = 4096
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class AttentionCase:
    """Self-attention with ``heads`` heads over n positions.

    Attributes:
        support: the wanted share of the visible pairs in the support of ``mapping``.
        target: wanted speed-up over torch's attention, for forward and for forward+backward.
    """

    n: int
    heads: int
    support: float
    causal: bool = False
    mapping: str = "sparsemax"
    target: tuple[float, float] | None = None


def _cases() -> tuple[AttentionCase, ...]:
    goals = {0.02: (2.5, 6.0), 0.1: (1.5, 2.7), 0.3: (0.95, 1.25)}
    found = []
    for n, heads in ((512, 8), (1024, 8), (4096, 1), (8192, 1)):
        for support, long in goals.items():
            short: tuple[float, float] | None = {512: (0.95, 2.3), 1024: (1.7, 4.0)}.get(n) if support == 0.02 else None
            found.append(AttentionCase(n, heads, support, target=long if n >= 4096 else short))
        for support in (0.02, 0.1):
            goal = (2.2, 5.5) if n >= 4096 and support == 0.02 else None
            found.append(AttentionCase(n, heads, support, causal=True, target=goal))
        found.append(AttentionCase(n, heads, 0.02, mapping="entmax15"))
        found.append(AttentionCase(n, heads, 0.1, causal=True, mapping="entmax15"))
    return tuple(found)


ATTENTION_CASES = _cases()
ALPHA = {"sparsemax": 2.0, "entmax15": 1.5}


@dataclass
class AttentionRow:
    """Results for one case: the measured support, and milliseconds of forward and forward+backward by implementation."""

    case: Any
    support: float
    forward: dict[str, float]
    both: dict[str, float]


def density(q: Tensor, k: Tensor, v: Tensor, alpha: float, causal: bool) -> float:
    """Share of the visible pairs that are in the support, for q, k, v ``[H, n, d]`` with scores scaled by d ** -0.5."""
    _, saved = native.forward(q, k, v, alpha=alpha, scale=q.shape[-1] ** -0.5, causal=causal)
    assert saved is not None
    n, m = q.shape[1], k.shape[1]
    seen = int(torch.arange(1 + m - n, 1 + m).clamp(min=0).sum()) if causal else n * m
    return int(saved.row_pointers[-1]) / (len(q) * seen)


def drawn(case: AttentionCase) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v ``[H, n, 64]`` with the support that the case wants, found by bisection on the first head."""
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(case.heads, case.n, 64, generator=make) for _ in range(3))
    low, high = -14.0, 4.0  # bounds of log2 of the queries' scale; a larger scale means a smaller support
    for _ in range(11):
        middle = (low + high) / 2
        found = density(q[:1] * 2**middle, k[:1], v[:1], ALPHA[case.mapping], case.causal)
        low, high = (middle, high) if found > case.support else (low, middle)
    return q * 2 ** ((low + high) / 2), k, v


def made(mapping: str) -> Any:
    """The module of a mapping of `ALPHA`."""
    return sa.make("sparsemax") if mapping == "sparsemax" else sa.make("entmax", alpha=1.5)


def contestants(n: int, mapping: str, causal: bool, composed: bool) -> dict[str, Attend]:
    """The implementations, as functions of q, k, v ``[H, n, d]``.

    These are torch's attention, sparse_attention, and, if ``composed``, the composition of matrix products and mapping.
    """
    ours = made(mapping)
    found: dict[str, Attend] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal),
        "ours": lambda q, k, v: sa.sparse_attention(q[None], k[None], v[None], ours, causal=causal),
    }
    if composed:
        keep, of = composition.visible(n, n, None, causal), composition.of_alpha(ALPHA[mapping])
        found["composition"] = lambda q, k, v: composition.attend(q, k, v, q.shape[-1] ** -0.5, of, keep)[0]
    return found


def timed(case: AttentionCase, seconds: float) -> AttentionRow:
    """Time attention, for about ``seconds`` in each direction (at least five turns)."""
    q, k, v = drawn(case)
    composed = case.n <= LONGEST_COMPOSITION and case.heads * case.n**2 <= 2**25
    known = contestants(case.n, case.mapping, case.causal, composed)
    forward = milliseconds({name: partial(f, q, k, v) for name, f in known.items()}, seconds)
    both = milliseconds({name: backward(f, q, k, v) for name, f in known.items()}, seconds)
    return AttentionRow(case, density(q, k, v, ALPHA[case.mapping], case.causal), forward, both)


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
    for mapping in ALPHA
)


@torch.no_grad()
def decoded(case: DecodingCase, seconds: float) -> AttentionRow:
    """Time a decoding step, for about ``seconds``."""
    make = torch.Generator().manual_seed(0)
    q, v = torch.randn(case.heads, 1, 64, generator=make), torch.randn(case.heads, case.n, 64, generator=make)
    k = torch.randn(case.heads, case.n, 64, generator=make)
    for t in range(1, case.n if case.rho else 0):
        k[:, t] = case.rho * k[:, t - 1] + (1 - case.rho**2) ** 0.5 * k[:, t]
    cache = sa.KeyCache(made(case.mapping)).append(k, v)
    of: Any = composition.of_alpha(ALPHA[case.mapping])
    support = (composition.attend(q, k, v, 0.125, of, None)[1] > 0).double().mean().item()
    calls = {
        "sdpa": lambda: F.scaled_dot_product_attention(q[None], k[None], v[None]),
        "ours": lambda: cache.attend(q),
        "composition": lambda: composition.attend(q, k, v, 0.125, of, None)[0],
    }
    return AttentionRow(case, support, milliseconds(calls, seconds), {})


def step(case: AttentionCase, contestant: str) -> Callable[[], None]:
    """A call of forward+backward; its libraries are loaded. Contestants: sdpa, ours or composition."""
    q, k, v = (x.requires_grad_() for x in drawn(case))
    contestants(256, case.mapping, False, True)[contestant](*(x[:, :256].detach() for x in (q, k, v)))
    call = contestants(case.n, case.mapping, case.causal, True)[contestant]
    return lambda: call(q, k, v).sum().backward()


def measure_memory(cases: list[AttentionCase]) -> dict[AttentionCase, dict[str, float]]:
    """Peak memory (MiB) of the long sparsemax cases by implementation; the composition only up to 4,096 positions."""
    found = {}
    for case in cases:
        if case.mapping == "sparsemax" and case.n >= 4096 and not case.causal:
            names = ("sdpa", "ours", "composition")[: 3 if case.n <= LONGEST_COMPOSITION else 2]
            # the minimum of three runs, since pages that the kernel reclaims and gives back are counted twice
            found[case] = {name: min(peak_memory(step, case, name) for _ in range(3)) for name in names}
    return found


# A training step of the classifier `imdb_transformer`. Words are random, and all reviews have the same number of them.
PATHS = ("library", "composition")
REVIEWS = 25_000  # in an epoch of IMDB


@dataclass(frozen=True)
class Documents:
    """Words per review, and reviews per batch."""

    words: int = 400
    batch: int = 16


@dataclass(frozen=True)
class DocumentRow:
    """A mapping on a path: the median seconds of a step, the peak memory in MiB, the share of words with weight."""

    mapping: str
    path: str
    seconds: float
    memory: float
    density: float


def document_training(mapping: str, path: str, sizes: Documents) -> tuple[Callable[[], None], Callable[[], float]]:
    """A function that makes one training step, and one that returns the density of the self-attention."""
    from tasks.config import models

    torch.manual_seed(1)
    encoded = SimpleNamespace(size=20_000, classes=["negative", "positive"], vectors=None)
    model: Any = models.build("classification", {"name": "imdb_transformer"}, {"name": mapping}, encoded).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    ids = torch.randint(4, encoded.size, (sizes.batch, sizes.words))
    lengths, labels = torch.full((sizes.batch,), sizes.words), torch.arange(sizes.batch) % 2
    chosen = [layer.own.attend for layer in model.layers]
    if path == "composition":
        for layer, attend in zip(model.layers, chosen):
            layer.own.attend = partial(_weighed, attend, None)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model([ids], [lengths])[0], labels).backward()
        optimizer.step()

    def density() -> float:
        found: list[float] = []
        for layer, attend in zip(model.layers, chosen):
            layer.own.attend = partial(_weighed, attend, found)
        with torch.no_grad():
            model([ids], [lengths])
        return statistics.mean(found)

    return step, density


def _weighed(attend: Any, found: list[float] | None, *given: Tensor, **seen: Any) -> tuple[Tensor, Tensor]:
    """`attend` with its weights, whose density is added to `found`, if that is a list."""
    out, weights = attend(*given, **{**seen, "need_weights": True})
    if found is not None:
        found.append(float((weights > 0).float().mean()))
    return out, weights


def document_step(mapping: str, path: str, sizes: Documents) -> Callable[[], None]:
    """A training step after the first."""
    made, _ = document_training(mapping, path, sizes)
    made()
    return made


def fused_names() -> list[str]:
    """Softmax, and the mappings with a fused kernel."""
    from tasks.config import models

    x = torch.ones(1, 1, 128, 8)
    return ["softmax", *(m for m in models.row_mappings() if sa.attention.plan(x, x, x, m).path == "fused")]


def measure_documents(sizes: Documents, seconds: float, mappings: Sequence[str]) -> list[DocumentRow]:
    """Each mapping on both paths, in about ``seconds`` in total; softmax comes first."""
    made = {(m, path): document_training(m, path, sizes) for m in mappings for path in PATHS}
    times = medians({"/".join(key): step for key, (step, _) in made.items()}, seconds)
    return [
        DocumentRow(*key, times["/".join(key)] / 1e9, peak_memory(document_step, *key, sizes), density())
        for key, (_, density) in made.items()
    ]
