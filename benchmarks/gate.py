"""The speed gate: rows, attention and a training step must not become 15 % slower than the committed ratios.

Every number is a ratio: median processor time of our form over that of torch's softmax, attention or training step in
the same run, in turns. `gate.json` holds the ratios of each instruction set. A case fails if its ratio is above LIMIT
times the committed one in every try: the tries are rounds over the cases that have not passed, and the smallest ratio
counts, since noise only ever spoils the comparison of some of them.

To record anew (after a change that is meant to cost time, or on other hardware), on a machine without other work:
``make bench-gate ARGS=--record``, and say in the commit why.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import sparse_attention as sa
from benchmarks.attention import AttentionCase, drawn
from benchmarks.table import keep_freed_memory, medians

LIMIT = 1.15
TRIES = {False: 6, True: 12}  # of all cases, of the quick ones
SECONDS = {False: 1.0, True: 0.4}  # for a case and try
RECORDED = 5  # tries whose median is recorded
INPUTS = 8
FILE = Path(__file__).with_name("gate.json")
Call = Callable[[], Any]


@dataclass(frozen=True)
class Gate:
    """A case: ``make()`` returns our call and torch's. ``quick`` cases are those of `make bench-gate ARGS=--quick`."""

    name: str
    make: Callable[[], tuple[Call, Call]]
    quick: bool = False


def _backward(function: Callable[..., torch.Tensor], *leaves: torch.Tensor) -> Call:
    """A call of the function and its gradient for a fixed cotangent."""
    given = tuple(x.clone().requires_grad_() for x in leaves)
    g = torch.randn(function(*given).shape, generator=torch.Generator().manual_seed(1))
    return lambda: torch.autograd.grad(function(*given), given, g)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _turns(calls: list[Call]) -> Call:
    """A call that makes the calls in turn."""
    following = itertools.cycle(calls)
    return lambda: next(following)()


def _rows(name: str, rows: int, n: int, **params: float) -> Callable[[], tuple[Call, Call]]:
    def make() -> tuple[Call, Call]:
        drawn, ours = torch.Generator().manual_seed(0), sa.make(name, **params)
        # Several inputs in turn: the processor would learn the branches of a single one.
        inputs = [torch.randn(rows, n, generator=drawn) for _ in range(INPUTS)]
        return _turns([_backward(ours, x) for x in inputs]), _turns([_backward(_softmax, x) for x in inputs])

    return make


def _attention(n: int, heads: int, mapping: str = "sparsemax", **forms: Any) -> Callable[[], tuple[Call, Call]]:
    """Causal attention with a support of 2 %, forward and backward; torch's function gets a window as its mask."""

    def make() -> tuple[Call, Call]:
        q, k, v = (x[None] for x in drawn(AttentionCase(n, heads, 0.02, True, mapping)))
        made = sa.make("sparsemax") if mapping == "sparsemax" else sa.make("entmax", alpha=1.5)
        theirs: dict[str, Any] = {"is_causal": True}
        if "window" in forms:
            back = torch.arange(n).unsqueeze(-1) - torch.arange(n)
            theirs = {"attn_mask": (back >= 0) & (back <= forms["window"][0])}
        ours = _backward(lambda q, k, v: sa.sparse_attention(q, k, v, made, causal=True, **forms), q, k, v)
        return ours, _backward(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **theirs), q, k, v)

    return make


def _decoding() -> tuple[Call, Call]:
    """One query of 8 heads on 4,096 keys."""
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, n, 64, generator=drawn) for n in (1, 4096, 4096))
    cache = sa.KeyCache("sparsemax")
    cache.append(k, v)
    return lambda: cache.attend(4 * q), lambda: F.scaled_dot_product_attention(q, k, v)


def _training(mapping: str) -> Callable[[], tuple[Call, Call]]:
    """An update of an encoder of two layers and width 128, 16 sequences of 64; with the mapping, and torch's own."""

    def make() -> tuple[Call, Call]:
        return _update(mapping), _update("")

    return make


def _update(mapping: str) -> Call:
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


GATES = (
    Gate("rows: sparsemax 1280x30", _rows("sparsemax", 1280, 30), True),
    Gate("rows: sparsemax 512x4096", _rows("sparsemax", 512, 4096)),
    Gate("rows: entmax 1.5 1280x30", _rows("entmax", 1280, 30, alpha=1.5), True),
    Gate("rows: entmax 1.5 512x4096", _rows("entmax", 512, 4096, alpha=1.5)),
    Gate("rows: entmax 1.3 3200x50", _rows("entmax", 3200, 50, alpha=1.3)),
    Gate("rows: pnormmax 3200x50", _rows("pnormmax", 3200, 50)),
    Gate("rows: fusedmax 3200x50", _rows("fusedmax", 3200, 50), True),
    Gate("rows: oscarmax 3200x50", _rows("oscarmax", 3200, 50)),
    Gate("attention: sparsemax 512x4", _attention(512, 4), True),
    Gate("attention: sparsemax 2048x4", _attention(2048, 4)),
    Gate("attention: entmax 1.5 2048x4", _attention(2048, 4, "entmax15")),
    Gate("attention: window of 256, 2048x4", _attention(2048, 4, window=(255, 0))),
    Gate("attention: decoding, 4096 keys", _decoding, True),
    Gate("training: sparsemax", _training("sparsemax"), True),
    Gate("training: fusedmax", _training("fusedmax")),
)


def ratio(gate: Gate, seconds: float) -> float:
    """Time of our call over that of torch's: medians, in turns."""
    ours, theirs = gate.make()
    found = medians({"ours": ours, "theirs": theirs}, seconds)
    return found["ours"] / found["theirs"]


def check(
    gates: Sequence[Gate], committed: Mapping[str, float], tries: int, measured: Callable[[Gate], float]
) -> dict[str, float]:
    """The smallest ratio of each case in at most ``tries`` rounds over the cases that are above their limit.

    Raises:
        ValueError: a case has no committed ratio.
    """
    if missing := [gate.name for gate in gates if gate.name not in committed]:
        raise ValueError(f"no committed ratio for {', '.join(missing)}: make bench-gate ARGS=--record")
    best: dict[str, float] = {}
    open_ = list(gates)
    for _ in range(tries):
        for gate in open_:
            best[gate.name] = min(measured(gate), best.get(gate.name, float("inf")))
        open_ = [gate for gate in open_ if best[gate.name] > LIMIT * committed[gate.name]]
    return best


def run(quick: bool, record: bool) -> int:
    """`scripts/bench_gate.py`: check or record this instruction set; returns the exit status."""
    torch.set_num_threads(1)
    keep_freed_memory()
    isa = sa.kernels.backend("native").instruction_set()
    known = json.loads(FILE.read_text()) if FILE.is_file() else {}
    gates = [gate for gate in GATES if gate.quick or not quick]
    if record:
        rounds = [[ratio(gate, SECONDS[False]) for gate in gates] for _ in range(RECORDED)]
        found = {gate.name: round(statistics.median(r), 3) for gate, r in zip(gates, zip(*rounds))}
        known[isa] = known.get(isa, {}) | found
        FILE.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
        print("\n".join(f"{name:34} {value:6.3f}" for name, value in found.items()), f"\nwritten to {FILE} ({isa})")
        return 0
    if isa not in known:
        print(f"bench-gate: no ratios were recorded for {isa}, so nothing is checked; make bench-gate ARGS=--record")
        return 0
    best = check(gates, known[isa], TRIES[quick], lambda gate: ratio(gate, SECONDS[quick]))
    print(f"{isa}, ratio to torch: {'':11} now, committed")
    slow = []
    for name, value in best.items():
        over = value > LIMIT * known[isa][name]
        slow += [name] if over else []
        print(f"{name:34} {value:6.3f} {known[isa][name]:6.3f}{'  SLOWER' if over else ''}")
    if slow:
        print(f"{len(slow)} of {len(best)} more than {LIMIT - 1:.0%} slower in {TRIES[quick]} tries", file=sys.stderr)
    return 1 if slow else 0
