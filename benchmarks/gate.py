"""The speed gate: rows, attention and a training step must not become 15 % slower than the committed ratios.

Every number is a ratio: median processor time of our form over that of torch's softmax, attention or training step in
the same run, in turns. `gate.json` holds the ratios of each instruction set. A case fails if its ratio is above LIMIT
times the committed one in every try: the tries are rounds over the cases that have not passed, and the smallest ratio
counts, since noise only ever spoils the comparison of some of them.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import sparse_attention as sa
from benchmarks.attention import AttentionCase, drawn, made
from benchmarks.table import backward, keep_freed_memory, medians

LIMIT = 1.15
TRIES = 6
RECORDED = 5  # tries whose median is recorded
INPUTS = 8
FILE = Path(__file__).with_name("gate.json")
Call = Callable[[], Any]


def _rows(rows: int, n: int, name: str, **params: float) -> list[Call]:
    generator = torch.Generator().manual_seed(0)
    # Several inputs in turn: the processor would learn the branches of a single one.
    inputs = [torch.randn(rows, n, generator=generator) for _ in range(INPUTS)]
    both = (sa.make(name, **params), partial(torch.softmax, dim=-1))
    turns = [itertools.cycle([backward(function, x) for x in inputs]) for function in both]
    return [lambda turn=turn: next(turn)() for turn in turns]  # type: ignore[misc]


def _attention(n: int, mapping: str = "sparsemax", **forms: Any) -> list[Call]:
    """Causal attention with a support of 2 %, forward and backward; torch's function gets a window as its mask."""
    tensors = [x[None] for x in drawn(AttentionCase(n, 4, 0.02, True, mapping))]
    theirs: dict[str, Any] = {"is_causal": True}
    if "window" in forms:
        back = torch.arange(n).unsqueeze(-1) - torch.arange(n)
        theirs = {"attn_mask": (back >= 0) & (back <= forms["window"][0])}
    ours = partial(sa.sparse_attention, mapping=made(mapping), causal=True, **forms)
    return [backward(f, *tensors) for f in (ours, partial(F.scaled_dot_product_attention, **theirs))]


def _decoding() -> list[Call]:
    """One query of 8 heads on 4,096 keys."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, n, 64, generator=generator) for n in (1, 4096, 4096))
    cache = sa.KeyCache("sparsemax")
    cache.append(k, v)
    return [lambda: cache.attend(4 * q), lambda: F.scaled_dot_product_attention(q, k, v)]


def _update(mapping: str) -> Call:
    """An update of an encoder of two layers and width 128, 16 sequences of 64; without a mapping, torch's own."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 128))
    if mapping:
        sa.nn.replace(model, mapping)
    weights: list[torch.Tensor] = list(model.parameters())
    x, y = torch.randn(2, 16, 64, 128)

    def update() -> None:  # gradient descent: an optimiser of torch.optim imports torch's compiler, which takes seconds
        slopes = torch.autograd.grad(F.mse_loss(model(x), y), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, slopes, alpha=-1e-3)

    return update


CASES: dict[str, Callable[[], list[Call]]] = {  # each creates our call and torch's
    "rows: sparsemax 1280x30": partial(_rows, 1280, 30, "sparsemax"),
    "rows: sparsemax 512x4096": partial(_rows, 512, 4096, "sparsemax"),
    "rows: entmax 1.5 1280x30": partial(_rows, 1280, 30, "entmax", alpha=1.5),
    "rows: entmax 1.5 512x4096": partial(_rows, 512, 4096, "entmax", alpha=1.5),
    "rows: entmax 1.3 3200x50": partial(_rows, 3200, 50, "entmax", alpha=1.3),
    "rows: pnormmax 3200x50": partial(_rows, 3200, 50, "pnormmax"),
    "rows: fusedmax 3200x50": partial(_rows, 3200, 50, "fusedmax"),
    "rows: oscarmax 3200x50": partial(_rows, 3200, 50, "oscarmax"),
    "attention: sparsemax 512x4": partial(_attention, 512),
    "attention: sparsemax 2048x4": partial(_attention, 2048),
    "attention: entmax 1.5 2048x4": partial(_attention, 2048, "entmax15"),
    "attention: window of 256, 2048x4": partial(_attention, 2048, window=(255, 0)),
    "attention: decoding, 4096 keys": _decoding,
    "training: sparsemax": lambda: [_update("sparsemax"), _update("")],
    "training: fusedmax": lambda: [_update("fusedmax"), _update("")],
}


def ratio(name: str, seconds: float) -> float:
    """Time of our call over that of torch's: medians, in turns."""
    found = medians(dict(zip(("ours", "theirs"), CASES[name]())), seconds)
    return found["ours"] / found["theirs"]


def smallest(committed: Mapping[str, float], measured: Callable[[str], float]) -> dict[str, float]:
    """The smallest ratio of each case in at most TRIES rounds over the cases that are above their limit."""
    best: dict[str, float] = {}
    open_ = list(committed)
    for _ in range(TRIES):
        for name in open_:
            best[name] = min(measured(name), best.get(name, float("inf")))
        open_ = [name for name in open_ if best[name] > LIMIT * committed[name]]
    return best


def run(only: Sequence[str], seconds: float, record: bool) -> int:
    """`scripts/bench.py mappings --check`: check the cases whose names start with one of `only`; the exit status.

    With `record`, their ratios are written to FILE first. Raises ValueError if some are missing, or `only` matches no case.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    isa, kept = sa.kernels.backend("native").instruction_set(), json.loads(FILE.read_text())
    committed, names = kept.setdefault(isa, {}), [name for name in CASES if name.startswith(tuple(only))]
    if record:
        for name in names:
            committed[name] = round(statistics.median(ratio(name, seconds) for _ in range(RECORDED)), 3)
        FILE.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    if not names or not committed.keys() >= set(names):
        raise ValueError(f"not all ratios of --only {','.join(only)!r} are committed for {isa}; --record writes them")
    best = smallest({name: committed[name] for name in names}, lambda name: ratio(name, seconds))
    slow = [name for name, value in best.items() if value > LIMIT * committed[name]]
    print(f"{isa}, ratio to torch: {'':11} now, committed")
    for name, value in best.items():
        print(f"{name:34} {value:6.3f} {committed[name]:6.3f}{'  SLOWER' if name in slow else ''}")
    if slow:
        print(f"{len(slow)} of {len(best)} more than {LIMIT - 1:.0%} slower in {TRIES} tries", file=sys.stderr)
    return int(bool(slow))
