"""Small decoders, trained on sequences of 4 to 16 symbols and tested on longer ones.

The tasks, the position encoding (NAPE) and ASEntmax are those of Vasylenko et al. (ICLR 2026, arXiv 2506.16640), SSMax is
that of Nakanishi (2025, arXiv 2501.19399). The sizes are ours.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sparse_attention as sa
from repro.store import provenance

Made = tuple[Tensor, Tensor]
Rows = list[dict[str, Any]]  # one for each trained model
IGNORED = -100  # a target that does not count (as in torch's cross-entropy)
SYMBOLS = 4  # of sort
LONGER = " (longer training)"

# attention -> (mapping, its parameters, scale of the scores)
ATTENTIONS: dict[str, tuple[str, dict[str, float], str]] = {
    "softmax": ("softmax", {}, ""),
    "SSMax": ("softmax", {}, "log"),
    "sparsemax": ("sparsemax", {}, ""),
    "entmax 1.5": ("entmax", {"alpha": 1.5}, ""),
    "ASEntmax": ("entmax", {"alpha": 1.5}, "adaptive"),
    "entmax 1.5 log n": ("entmax", {"alpha": 1.5}, "log"),
}


# ---- tasks: inputs and targets, [batch, positions] each


def written(answer: Callable[[Tensor], Tensor], batch: int, n: int, g: torch.Generator) -> Made:
    """``begin x_1 ... x_n separator``, then the n symbols of the answer; the last target is the end."""
    x = torch.randint(SYMBOLS, (batch, n), generator=g)
    y = answer(x)
    begin, separator, end = (torch.full((batch, 1), SYMBOLS + i) for i in range(3))
    unscored = torch.full((batch, n + 1), IGNORED)
    return torch.cat([begin, x, separator, y], 1), torch.cat([unscored, y, end], 1)


def flip_flop(batch: int, n: int, g: torch.Generator) -> Made:
    """n / 2 commands, each before a bit: write (2), ignore (3) or, as the last, read (4).

    The first command is a write, each other one with probability .1. The target at the read is the bit of the last write.
    """
    commands = torch.where(torch.rand(batch, n // 2, generator=g) < 0.1, 2, 3)
    commands[:, 0], commands[:, -1] = 2, 4
    bits = torch.randint(2, commands.shape, generator=g)
    x = torch.stack([commands, bits], -1).flatten(1)[:, :-1]
    last = ((commands == 2) * torch.arange(1, n // 2 + 1)).argmax(1, keepdim=True)
    y = torch.full_like(x, IGNORED)
    y[:, -1:] = bits.gather(1, last)
    return x, y


Task = Callable[[int, int, torch.Generator], Made]
sort = partial(written, lambda x: x.sort(1).values)  # the symbols in ascending order
reverse = partial(written, lambda x: x.flip(1))
TASKS: dict[str, Task] = {"sort": sort, "flip-flop": flip_flop}
TASKS |= {"flip-flop" + LONGER: flip_flop, "sort" + LONGER: sort, "reverse": reverse}


# ---- models


@dataclass(frozen=True)
class Options:
    """Sizes of a model and of its training."""

    steps: int = 1000
    batch: int = 16
    warmup: int = 50
    width: int = 32
    layers: int = 2
    heads: int = 4
    shortest: int = 4
    longest: int = 16


class Decoders:
    """M models of one shape, side by side: a step of all costs little more than one of a single small model.

    Pre-norm blocks without biases. Positions are NAPE: the first half of the heads has ALiBi with the slopes 1, 1/2, ..., the
    others have no positions. Only the scores of the others are scaled, with n the query's position, from 2: by ``s log n``
    (SSMax; s is one number per head), or by ``1 + beta (log n) ** gamma`` (ASEntmax; beta and gamma follow from the input).

    Attributes:
        flat: the parameters, ``[M, P]``.
    """

    def __init__(self, attention: str, o: Options, seeds: Sequence[int]):
        self.mapping, self.params, self.scaling = ATTENTIONS[attention]
        self.o, w, h = o, o.width, o.heads
        scales = {"": {}, "log": {"s": (h, 1)}, "adaptive": {"adapt": (w, 2 * h), "bias": (1, 2 * h)}}[self.scaling]
        block = {"qkv": (w, 3 * w), "out": (w, w), "up": (w, 4 * w), "down": (4 * w, w), **scales}
        self.shapes = {f"{name}{i}": shape for i in range(o.layers) for name, shape in block.items()}
        self.shapes |= {"embed": (SYMBOLS + 3, w), "head": (w, SYMBOLS + 3)}
        self.plain = torch.arange(h) >= h // 2
        self.slopes = torch.where(self.plain, 0.0, 1.0 / torch.arange(1, h + 1))
        self.flat = torch.stack([self._drawn(torch.Generator().manual_seed(seed)) for seed in seeds]).requires_grad_()

    def _drawn(self, g: torch.Generator) -> Tensor:
        """Parameters ``[P]``: 1 for s, 0 for beta and gamma, embeddings of variance 1, the others normal with small scores."""
        parts = []
        for name, (rows, columns) in self.shapes.items():
            std = {"s": 0.0, "a": 0.0, "b": 0.0, "e": 1.0}.get(name[0], 0.5 * rows**-0.5)
            parts.append(std * torch.randn(rows * columns, generator=g) + (name[0] == "s"))
        return torch.cat(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """``[M, B, n] -> [M, B, n, symbols]``: scores of the next symbol."""
        m, b, n = x.shape
        parts = self.flat.split([r * c for r, c in self.shapes.values()], 1)
        p = {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts)}
        h = p["embed"].flatten(0, 1)[x + len(p["embed"][0]) * torch.arange(m).view(m, 1, 1)].flatten(1, 2)
        for i in range(self.o.layers):
            of = {name.removesuffix(str(i)): value for name, value in p.items() if name.endswith(str(i))}
            inner = F.rms_norm(h, h.shape[-1:])
            q, k, v = (inner @ of["qkv"]).view(m * b, n, 3, self.o.heads, -1).permute(2, 0, 3, 1, 4)
            read = self.attend(q, k, v, self.scale(inner.unflatten(1, (b, n)), of))
            h = h + read.transpose(1, 2).reshape(m, b * n, -1) @ of["out"]
            h = h + F.gelu(F.rms_norm(h, h.shape[-1:]) @ of["up"]) @ of["down"]
        return (F.rms_norm(h, h.shape[-1:]) @ p["head"]).view(m, b, n, -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        given: dict[str, Any] = {"slopes": self.slopes, "scale": scale, **self.params}
        return sa.sparse_attention(q, k, v, self.mapping, causal=True, **given)

    def scale(self, x: Tensor, of: dict[str, Tensor]) -> Tensor:
        """The factors of the scores, ``[M B or 1, heads, n or 1, 1]``, from the input of the attention, ``[M, B, n, width]``."""
        m, b, n, w = x.shape
        log_n = torch.arange(2.0, n + 2).log().unsqueeze(-1)
        factor = torch.ones(1, self.o.heads, 1, 1)
        if self.scaling == "log":
            factor = (of["s"].unsqueeze(-1) * log_n).repeat_interleave(b, 0)
        elif self.scaling == "adaptive":
            drawn = x.flatten(1, 2) @ of["adapt"] + of["bias"]  # [M, B n, 2 heads]
            beta, gamma = drawn.view(m * b, n, -1).mT.unsqueeze(-1).chunk(2, 1)
            factor = 1 + F.softplus(beta) * log_n ** (2 * gamma.tanh())
        return torch.where(self.plain.view(-1, 1, 1), factor, 1.0) * (w // self.o.heads) ** -0.5


def losses(scores: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of every model, ``[M]``, from ``[M, B, n, symbols]`` and ``[M, B, n]``."""
    each = F.cross_entropy(scores.flatten(0, 2), y.flatten(), reduction="none").view(y.shape)
    return each.sum((1, 2)) / (y != IGNORED).sum((1, 2))


def train(task: str, attention: str, o: Options, seeds: Sequence[int], rates: Sequence[float]) -> Decoders:
    """Models with these seeds and learning rates, trained with Adam after a warm-up, down to 0 along a cosine.

    A model sees data of its seed. The lengths are the same for all models. Gradients are clipped to norm 1, model by model.
    """
    models, lengths = Decoders(attention, o, seeds), torch.Generator().manual_seed(0)
    draws = [torch.Generator().manual_seed(1000 + seed) for seed in seeds]
    rows = models.flat.detach().unbind()  # they share their memory with flat
    adam = torch.optim.Adam([{"params": [row], "lr": rate} for row, rate in zip(rows, rates)], betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda done: min((done + 1) / o.warmup, 0.5 + 0.5 * math.cos(math.pi * (done + 1) / o.steps))
    )
    for _ in range(o.steps):
        n = 2 * int(torch.randint(o.shortest // 2, o.longest // 2 + 1, (), generator=lengths))
        x, y = (torch.stack(parts) for parts in zip(*(TASKS[task](o.batch, n, draw) for draw in draws)))
        (grad,) = torch.autograd.grad(losses(models(x), y).sum(), models.flat)
        for row, of in zip(rows, grad / grad.norm(dim=1, keepdim=True).clamp_min(1.0)):
            row.grad = of
        adam.step()
        schedule.step()
    return models


@torch.no_grad()
def evaluate(models: Decoders, task: str, n: int, count: int, seed: int) -> Tensor:
    """Exact match and token accuracy of every model in per cent, ``[M, 2]``, on ``count`` sequences of n symbols.

    The models read the right answers so far. So exact match is that of greedy decoding: both are right up to the first error.
    """
    g, m, found = torch.Generator().manual_seed(seed), len(models.flat), []
    at_once = max(1, 4096 // (2 * n * m))
    for done in range(0, count, at_once):
        x, y = TASKS[task](min(at_once, count - done), n, g)
        right = models(x.expand(m, -1, -1)).argmax(-1) == y
        found.append(right[..., y[0] != IGNORED])
    hits = torch.cat(found, 1).double()  # [M, count, targets]
    return 100 * torch.stack([hits.amin(2).mean(1), hits.mean((1, 2))], 1)


# ---- the experiment

OPTIONS = {"sort": Options(steps=1500), "flip-flop": Options(steps=400), "reverse": Options(steps=12_000)}
OPTIONS |= {"sort" + LONGER: Options(steps=4000), "flip-flop" + LONGER: Options(steps=1500)}
RATES: dict[str, tuple[float, ...]] = {
    task: (3e-4, 1e-3, 3e-3) if task.endswith(LONGER) else (1e-3, 3e-3, 1e-2) for task in TASKS
}
RATES["reverse"] = (1e-3, 3e-3)
SEEDS = {task: (6, 7, 8, 9, 10) if task.endswith(LONGER) else (1, 2, 3, 4, 5) for task in TASKS}
DEV, TESTS = (16, 24), (16, 24, 32, 48, 64, 128)
COUNT = 128  # sequences of each length
DESIGNED = "2026-11-29"  # the day of the commit that fixed all of this


def those(rows: Rows, task: str, attention: str, stage: str) -> Rows:
    """The models of one stage."""
    return [row for row in rows if (row["task"], row["attention"], row["stage"]) == (task, attention, stage)]


def chosen(rows: Rows, task: str, attention: str) -> float:
    """The learning rate with the highest token accuracy on dev, on average over its lengths; the smallest of equals."""
    found = those(rows, task, attention, "rate")
    return min(found, key=lambda row: (-sum(token for _, token in row["found"].values()), row["rate"]))["rate"]


def read(file: Path) -> Rows:
    """The finished models of a file of JSON lines that had today's options."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row["options"] == asdict(OPTIONS[row["task"]])]


def run(file: Path, say: Callable[[str], None]) -> None:
    """Train and test all models. Finished ones are appended to ``file``, and a rerun skips them."""
    code = provenance.code_version()
    for task, attention in itertools.product(TASKS, ATTENTIONS):
        o, rows = OPTIONS[task], read(file)
        for stage, lengths, data in (("rate", DEV, 70_000), ("test", TESTS, 80_000)):
            if stage == "rate":
                models = [(0, rate) for rate in RATES[task]]
            else:
                models = [(seed, chosen(rows, task, attention)) for seed in SEEDS[task]]
            known = {(row["seed"], row["rate"]) for row in those(rows, task, attention, stage)}
            if not (left := [one for one in models if one not in known]):
                continue
            began = time.process_time()
            trained = train(task, attention, o, *zip(*left))
            found = {n: evaluate(trained, task, n, COUNT, data + n).tolist() for n in lengths}
            each = round((time.process_time() - began) / len(left), 1)
            for i, (seed, rate) in enumerate(left):
                row = {"task": task, "attention": attention, "stage": stage, "seed": seed, "rate": rate}
                row |= {"found": {str(n): [round(x, 2) for x in found[n][i]] for n in lengths}, "cpu_seconds": each}
                rows.append(row | {"code": code, "options": asdict(o)})
            with file.open("a") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows[-len(left) :])
            say(f"{task}, {attention}, {stage}: {each * len(left):.0f} CPU seconds")


def record(file: Path) -> dict[str, Any]:
    """What the page is written from: the design, the machine, and the models of the tasks that a file has in full.

    Raises:
        ValueError: no task is whole.
    """
    rows = read(file)
    whole = [task for task in sorted(TASKS) if all(those(rows, task, attention, "test") for attention in ATTENTIONS)]
    if not whole:
        raise ValueError(f"{file} has no task with all attentions; next: python scripts/bench.py length")
    design = {"rates": RATES, "seeds": SEEDS, "dev": DEV, "lengths": TESTS, "count": COUNT, "designed": DESIGNED}
    design |= {"symbols": SYMBOLS, "unfinished": [task for task in TASKS if task not in whole]}
    options = {task: asdict(OPTIONS[task]) for task in whole}
    ordered = itertools.product(whole, ATTENTIONS, ("rate", "test"))
    rows = [{name: row[name] for name in row if name != "options"} for one in ordered for row in those(rows, *one)]
    versions = {"torch": torch.__version__, "machine": provenance.collect()["machine"]["cpu"]}
    return {**design, "options": options, **versions, "rows": rows}
