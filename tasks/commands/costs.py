"""What trainings of the `paper` profile would take on a GPU: counted on one small batch of the model itself, no data read.

    FLOPs     of matrix products, forward and backward, by torch's FlopCounterMode, at the data set's mean lengths
    hours     an update takes the longer of: FLOPs / (utilisation x peak), launched kernels x LAUNCH
    memory    4 P (2 + s) + A      P parameters, s numbers the optimiser keeps of each, A what autograd keeps of a batch of the longest texts
    disk      4 P a cell, three checkpoints a running cell, int32 words of the encoded data, image features, PREDICTION bytes an output

A class of cells that differ in seed, data values and mapping parameters is counted once. What the table states as assumed, is.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import sparse_attention as sa
from repro.plan import Wanted
from tasks.config import models
from tasks.config.memory import BYTES, KEPT
from tasks.data.manifests import load_manifest
from tasks.data.symbols import FIRST
from tasks.vqa.sizes import ImageSpec

Config = Mapping[str, Any]
PEAKS = {"A100": {"fp32": 19.5e12, "TF32": 156e12, "bf16": 312e12}, "H100": {"fp32": 67e12, "TF32": 495e12, "bf16": 989e12}}  # fmt: skip
# of the peak, by matrix products of fp32 and of tensor cores
UTILISATION = {"recurrent": (0.35, 0.10), "attention": (0.50, 0.30)}
ATTENTION = ("transformer", "mcan")  # every other architecture is recurrent
LAUNCH = 10e-6  # seconds between two kernels of an eager step
SUBWORDS, PREDICTION, CHECKPOINTS = 1.2, 300, 3
FITTED = 1 / 60  # hours of a linear model
BATCH, FEW = 1, 97  # examples and vocabulary of the counted batch
ANSWERS = 3129  # VQA-v2 answers given at least nine times (Yu et al. 2019)
GRID = ImageSpec("features", (14, 14), 2048)


@dataclass(frozen=True)
class Lengths:
    """Of a data set, in words; `padded`: share of a batch that is padding.

    sides: mean of each text, by language or in order. longest: of a text, where the configuration sets no limit. words: vocabulary
    where the configuration leaves it open, or fewer than it allows. examples: of training, where the manifest does not say. told: whence.
    """

    sides: Mapping[str, float]
    told: str
    padded: float = 0.02
    longest: int = 0
    words: int = 50_000
    examples: int = 0
    features: int = 0  # images


LENGTHS = {
    "baseline_1m_enfr": Lengths({"fr": 25, "en": 22}, "1,000,000 pairs by its name; lengths assumed", examples=1_000_000),
    "gigaword": Lengths({"text": 31, "title": 8}, "about as Rush et al. 2015 say"),
    "iwslt2017": Lengths({"de": 20, "en": 21}, "assumed"),
    "multi30k": Lengths({"fr": 14, "de": 12, "en": 13}, "assumed", words=15_000),
    "snli": Lengths({"premise": 14, "hypothesis": 8}, "Bowman et al. 2015; vocabulary and longest assumed", 0.1, 80, 25_000),
    "imdb": Lengths({"text": 280}, "assumed", 0.05, 2800, 130_000),
    "vqa2": Lengths({"question": 6.2}, "Goyal et al. 2017; a batch is as long as encode.max_tokens", 0.56, 0, 18_000, features=123_287),
}  # fmt: skip


@dataclass(frozen=True)
class Counted:
    """Of a training step: FLOPs and kept bytes of an example, launches of an update, parameters."""

    flops: float
    launches: float
    kept: float
    parameters: float


@dataclass(frozen=True)
class Cost:
    """Of one cell: tokens of all epochs without padding, hours by card, bytes; `key`: its encoded data."""

    epochs: int
    tokens: float
    padded: float
    flops: float
    hours: Mapping[str, float]
    weights: float
    checkpoints: float
    encoded: float
    predictions: float
    memory: float
    key: str
    told: str
    speed: str


class Launches(TorchDispatchMode):
    """Counts operations that are no views; of a recurrence two kernels a step."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "rnn_layer" in func._schema.name:
            self.count += 2 * args[0].size(0) * (2 if "backward" in func._schema.name else 1)
        elif not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
            self.count += 1
        return func(*args, **(kwargs or {}))


def step(family: str, model: Config, mapping: Config, lengths: tuple[int, ...], words: int) -> Counted:
    """One training step of the model over `words` words on examples whose texts have these lengths; on the CPU.

    The model is built over FEW words. More of them lengthen its tables and, of a decoder's generator H -> V, the product and the
    log-probabilities that are kept: 6 T H and 4 T bytes for each word.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own settings where oneDNN is switched off
        net = models.build(family, model, mapping, *_given(family, FEW)).train()
        inputs = _inputs(family, model, lengths)

        def work() -> None:
            logits = net(**inputs)[0].flatten(0, -2)
            F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)).backward()

        flops, launches = FlopCounterMode(display=False), Launches()
        own = {p.untyped_storage().data_ptr() for p in (*net.parameters(), *net.buffers())}
        kept: dict[int, Tensor] = {}

        def keep(x: Tensor) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), launches:
            work()  # first: what a model computes once for each length is computed here
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), flops:
            work()  # a recurrence of oneDNN has no formula; as torch's own it is matrix products
        activations = sum(x.untyped_storage().nbytes() for at, x in kept.items() if at not in own)
        parameters = sum(p.numel() / FEW * words if len(p) == FEW else p.numel() for p in net.parameters())
        more = lengths[-1] * (words - FEW) if family == "seq2seq" else 0
        arithmetic = flops.get_total_flops() / BATCH + (6 * more * net.generator.in_features if more else 0)
    return Counted(arithmetic, launches.count, activations / BATCH + BYTES * more, parameters)


def _given(family: str, words: int) -> tuple[Any, ...]:
    """What the family's models are built from."""
    if family == "seq2seq":
        return words, words
    vectors: dict[str, Any] = {"vectors": None, "vector_rows": None}
    if family == "vqa":
        return (SimpleNamespace(word_count=words, answer_count=ANSWERS, image_spec=GRID, **vectors),)
    return (SimpleNamespace(size=words, classes=["a", "b", "c"], **vectors),)


def _inputs(family: str, model: Config, lengths: tuple[int, ...]) -> dict[str, Any]:
    """A batch of random words."""
    texts = [torch.randint(FIRST, FEW, (BATCH, n)) for n in lengths]
    sizes = [torch.full((BATCH,), n) for n in lengths]
    if family == "seq2seq":
        made = {"src_tokens": texts[0], "src_lengths": sizes[0], "prev_output_tokens": texts[1]}
        return made | ({"fertility": torch.ones(texts[0].shape)} if model.get("fertility") == "actual" else {})
    if family == "vqa":
        cells = GRID.grid[0] * GRID.grid[1]
        return {"tokens": texts[0], "images": torch.randn(BATCH, cells, GRID.channels), "image_of": torch.arange(BATCH)}
    return {"texts": texts, "lengths": sizes}


class Counter:
    """The costs of configurations; each architecture at each length is counted once."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost | None] = {}
        self.steps: dict[str, Counted] = {}

    def of(self, config: Config) -> Cost | None:
        """None where the model or the data set cannot be counted."""
        module = importlib.import_module(f"tasks.{config['task']['family']}.models.{config['model']['name']}")
        mapping = models.nodes_at(config["mapping"], module.PLACES)
        kinds = [sa.spec(node["name"]).over for node in mapping.values()]
        alike = [config[k] for k in ("data", "encode", "model", "train", "optim")]
        key = json.dumps([config["task"]["family"], kinds, config["runtime"]["tf32"], *alike], default=str)
        if key not in self.costs:
            self.costs[key] = self._cost(config, kinds)
        return self.costs[key]

    def hours(self, config: Config) -> tuple[float, str] | None:
        """Of a cell, and where they come from."""
        if config["task"]["family"] == "multilabel":
            return FITTED, f"assumed, {60 * FITTED:g} minutes each: fitted on a CPU in seconds to minutes"
        cost, where = self.of(config), f"{config['task']['name']}, profile {config['profile']['name']}"
        return cost and (cost.hours["A100"], f"counted on the model of {where}, for one A100 (above)")

    def _cost(self, config: Config, kinds: list[str]) -> Cost | None:
        family, data, encode, train = config["task"]["family"], config["data"], config["encode"], config["train"]
        about = LENGTHS.get(data["name"])
        if about is None or family not in ("seq2seq", "classification", "vqa"):
            return None
        sizes = load_manifest(data["name"]).get("sizes") or {}
        examples = (sizes.get("train") or about.examples) * (1 - (data.get("dev_share") or 0))
        sides = [about.sides[data[k]] for k in ("source_lang", "target_lang") if data.get(k)] or list(
            about.sides.values()
        )
        means = [m * (SUBWORDS if encode.get("subword", "none") != "none" else 1) for m in sides]
        means = [*means[:-1], means[-1] + (family == "seq2seq")]  # the end of the sentence
        full = [encode["max_tokens"]] if family == "vqa" else [round(m) for m in means]
        limits = (
            [encode.get("max_source_tokens"), encode.get("max_target_tokens")]
            if family == "seq2seq"
            else [encode.get("max_tokens")]
        )
        longest = sum((limit or about.longest or m) for limit, m in zip(limits * len(full), full)) / sum(full)
        words = min(encode.get("vocab_size") or about.words, about.words)
        shape = {k: v for k, v in config["model"].items() if type(v) is not float}  # rates and ranges count for nothing
        key = json.dumps([family, kinds, shape, full, words], default=str)
        if key not in self.steps:
            self.steps[key] = step(family, config["model"], config["mapping"], tuple(full), words)
        one = self.steps[key]
        epochs, batch = int(train["max_epochs"]), train["batch_size"] or train["max_tokens"] / max(full)
        filled = 1.0 if family == "vqa" else 1 / (1 - about.padded)  # its counted batch has its padding
        flops = examples * epochs * one.flops * filled
        kind = {"bf16": "bf16", "fp16": "bf16"}.get(train["precision"], "TF32" if config["runtime"]["tf32"] else "fp32")
        sort = "attention" if config["model"]["name"] in ATTENTION else "recurrent"
        used = UTILISATION[sort][kind != "fp32"]
        updates = examples * epochs / (batch * train["update_freq"])
        waiting = updates * train["update_freq"] * one.launches * LAUNCH
        hours = {card: max(flops / (used * peak[kind]), waiting) / 3600 for card, peak in PEAKS.items()}
        state = 1 + KEPT[config["optim"]["name"]]
        tests = sizes.get("test") or 0
        return Cost(
            epochs, sum(means) * examples * epochs, about.padded, flops, hours, BYTES * one.parameters,
            CHECKPOINTS * BYTES * one.parameters * state,
            BYTES * sum(means) * examples + about.features * GRID.grid[0] * GRID.grid[1] * GRID.channels * 2,
            PREDICTION * (max(tests) if isinstance(tests, list) else tests),
            BYTES * one.parameters * (1 + state) + one.kept * batch * max(longest, 1.0),
            json.dumps([data["name"], data.get("source_lang"), encode], default=str),
            f"{data['name']}: {examples:,.0f} examples, {' + '.join(f'{m:g}' for m in means)} tokens ({about.told}), {about.padded:.0%} padding",
            f"{sort} {used:g} of {kind}",
        )  # fmt: skip


@dataclass
class Sum:
    """Of the cells of a column."""

    cells: int = 0
    uncounted: int = 0
    costs: list[Cost] = field(default_factory=list)

    def add(self, cost: Cost | None) -> None:
        self.cells += 1
        self.uncounted += cost is None
        self.costs += [] if cost is None else [cost]

    def row(self, label: str) -> list[str]:
        if not self.costs:
            return [label, str(self.cells), *["-"] * 8]
        c, data = self.costs, {x.key: x.encoded for x in self.costs}
        disk = sum(x.weights + x.predictions for x in c) + sum(data.values()) + max(x.checkpoints for x in c)
        words = sum(x.tokens for x in c)
        padded = 1 - words / sum(x.tokens / (1 - x.padded) for x in c)
        return [
            label, str(self.cells), f"{sum(x.epochs for x in c):,}", f"{words / 1e9:,.2f}", f"{padded:.0%}", f"{sum(x.flops for x in c) / 1e18:,.3g}",
            *(f"{sum(x.hours[card] for x in c):,.1f}" for card in PEAKS), f"{disk / 1e9:,.1f}", f"{max(x.memory for x in c) / 1e9:,.1f}",
        ]  # fmt: skip


HEAD = (
    "what",
    "cells",
    "epochs",
    "10^9 tokens",
    "padded",
    "10^18 FLOPs",
    *(f"h {c}" for c in PEAKS),
    "GB disk",
    "GB GPU",
)


def text(cells: Iterable[tuple[str, Wanted]], of: Callable[[Config], Cost | None]) -> str:
    """The table by column and in all, with everything that it assumes. `cells`: with the labels of their columns."""
    sums: dict[str, Sum] = {}
    all_of = Sum()
    for label, wanted in cells:
        cost = of(wanted.config)
        sums.setdefault(label, Sum()).add(cost)
        all_of.add(cost)
    rows = [list(HEAD), *(s.row(label) for label, s in sums.items()), all_of.row("in all")]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    table = [
        "  " + row[0].ljust(widths[0]) + "".join(f"  {x:>{w}}" for x, w in zip(row[1:], widths[1:])) for row in rows
    ]
    peaks = "; ".join(f"{card} {', '.join(f'{k} {v / 1e12:g}' for k, v in p.items())}" for card, p in PEAKS.items())
    said = [
        "What training takes, every cell anew (decoding and dev scores are not in it); counted on a small batch of each model, no data read:",
        *table,
        f"Assumed: data, {'; '.join(dict.fromkeys(c.told for c in all_of.costs))}." if all_of.costs else "Nothing was counted.",
        f"Assumed: subwords are {SUBWORDS:g} times the words; pairs that are left out for their length are counted; FLOPs are matrix products at mean lengths.",
        f"Assumed: peaks in TFLOP/s, {peaks}; utilisation, {', '.join(dict.fromkeys(c.speed for c in all_of.costs)) or 'none'}; a kernel each "
        f"{LAUNCH * 1e6:g} microseconds, where that takes longer. No hour was measured on these cards; on one of them, all cells one after another.",
        f"Assumed: memory at the longest texts, without temporaries and torch's own; disk: fp32 weights of each cell, {CHECKPOINTS} checkpoints of the largest "
        f"running cell, int32 words, float16 features of images, {PREDICTION} bytes an output; downloads are not in it.",
    ]  # fmt: skip
    if all_of.uncounted:
        said.append(f"Not counted (-): {all_of.uncounted} cells whose data or model are not known here; multilabel ones are fitted on a CPU, seconds to minutes each.")  # fmt: skip
    return "\n".join(said)
