"""Measure the speed of training and beam search: every mapping against softmax.

All mappings take turns on the same batch, so that other work on the machine slows them equally; each result is the
median, over turns, of the ratio within a turn. Times are processor time of this process over all threads; on a GPU,
wall-clock time between two synchronizations. Texts are random, since the quality of the models is irrelevant.
"""

from __future__ import annotations

import importlib
import itertools
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

import sparse_attention as sa
from benchmarks import pages, table
from repro.options import read
from tasks.config import models
from tasks.config.compose import composer, module_of
from tasks.data.examples import padded
from tasks.data.progress import NullProgress
from tasks.seq2seq.encode import open_encoded
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import beam_search

MODELS = {
    "LSTM 128": ("model=lstm_demo",),
    "LSTM 256": ("model=lstm_demo", "model.embed_dim=256", "model.hidden_dim=256"),
    "LSTM 2x500 with input feeding": ("model=lstm_opennmt",),
    "Transformer 2x128": ("model=transformer_small",),
}
GOAL = 0.97  # the least speed that a mapping should have, relative to softmax
READ_EVERY = 20
Work = Callable[[], Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the search.

    Attributes:
        words: size of the vocabulary.
        batch: sentences per batch.
        shortest, longest: range of the number of words in a sentence.
        beam: beam size.
        output: maximum number of words in an output.
    """

    words: int = 2000
    batch: int = 32
    shortest: int = 5
    longest: int = 30
    beam: int = 5
    output: int = 25


@dataclass
class Table:
    """Results for one model.

    Attributes:
        work: training or beam search.
        ratios: label -> ratios to softmax, one per turn.
        seconds: median seconds of softmax.
        tokens: tokens (training) or sentences (search) that softmax processes in this time.
    """

    model: str
    work: str
    ratios: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    tokens: float = 0.0

    def quartiles(self, label: str) -> list[float]:
        """The quartiles of the speed relative to softmax, over turns."""
        values = self.ratios[label]
        return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


def names() -> list[str]:
    """Mappings that work in both architectures without further inputs, softmax first."""
    places = models.architecture("seq2seq", "transformer").PLACES
    plain = [n for n in sa.names("simplex") if not models.problems({"name": n, "at": {}}, places)]
    return ["softmax", *(n for n in plain if n != "softmax")]


def configuration(model: Sequence[str], mapping: str, sizes: Sizes, folder: Path, device: str) -> dict[str, Any]:
    """A configuration whose data are random pairs in `folder`; for other mappings, only the mapping differs."""
    files = folder / "pairs"
    if not files.exists():
        files.mkdir(parents=True)
        rng = random.Random(1)
        for split, count in (("train", 40 * sizes.batch), ("dev", sizes.batch), ("test", 1)):
            for side in ("fr", "en"):
                lengths = (rng.randint(sizes.shortest, sizes.longest) for _ in range(count))
                rows = (" ".join(f"w{rng.randrange(sizes.words)}" for _ in range(length)) for length in lengths)
                (files / f"{split}.{side}").write_text("".join(f"{row}\n" for row in rows))
    with composer() as compose:
        data = "task=toy data=files data.source_lang=fr data.target_lang=en encode.joint=true schedule=fixed".split()
        how = f"optim=adam optim.lr=0.0003 train.batch_size={sizes.batch} runtime.device={device}".split()
        places = [f"data.path={files}", f"paths.data={folder / 'data'}", f"paths.outputs={folder / 'outputs'}"]
        return compose([*data, *model, f"mapping={mapping}", *how, *places])


class Updates:
    """Our training of a translation model; each call makes one update.

    The updates cycle through the batches of the first epoch. Every READ_EVERY-th call also reads the logged values.
    """

    def __init__(self, config: dict[str, Any], encoded: Path, folder: Path) -> None:
        from tasks.fairseq_plugin.parts import Parts
        from tasks.training.job import Job
        from tasks.training.loop import Training
        from tasks.training.processes import Telling

        self.training = Training(Job(Parts("seq2seq", config, encoded), folder, 1), Telling())
        self.samples = itertools.chain.from_iterable(self.training.train.updates() for _ in itertools.count())
        self.rows: Sequence[Sequence[int]] = self.training.train.order(1)  # the example indices of each batch
        self.net: nn.Module = self.training.trainer.model.net
        self.updates = 0

    def __call__(self) -> None:
        self.training.update(next(self.samples))
        self.updates += 1
        if self.updates % READ_EVERY == 0:
            self.training.read()


def measure(
    model: str, mappings: Sequence[str], sizes: Sizes, folder: Path, device: str, count: int, say: Say = print
) -> list[Table]:
    """Measure one of `MODELS`. Returns the tables of training and of beam search."""
    configs = {m: configuration(MODELS[model], m, sizes, folder, device) for m in ("softmax", *mappings)}
    family = importlib.import_module(module_of(configs["softmax"]))
    path = Path(family.prepare(configs["softmax"], NullProgress()).folder)
    encoded = open_encoded(path)
    say(f"{model}: {len(configs)} mappings, {encoded.sizes[1]} words")
    clock = time.perf_counter_ns if device == "cuda" else time.process_time_ns

    def timed(work: str, contestants: Mapping[str, Work], tokens: float, block: int = 1) -> Table:
        taken = table.turns(contestants, 0.0, device, count, block, clock)
        base = taken.pop("softmax")
        ratios = {name: [whole / own for whole, own in zip(base, times)] for name, times in taken.items()}
        return Table(model, work, ratios, statistics.median(base) / 1e9, tokens)

    ours = {m: Updates(c, path, folder) for m, c in configs.items()}
    target = encoded.splits["train"].target
    tokens = statistics.mean(sum(len(target[int(i)]) + 1 for i in rows) for rows in ours["softmax"].rows)
    tables = [timed("training", ours, tokens, READ_EVERY if device == "cuda" else 1)]
    options = read(Decode, {"beam": sizes.beam, "max_len_b": sizes.output}, "decode")
    split = encoded.splits["dev"]
    source, lengths = padded(sorted((split.source[i] for i in range(len(split))), key=lambda row: -len(row)))
    source = source.to(device)
    searches: dict[str, Work] = {
        m: partial(beam_search, one.net.eval(), source, lengths, options, 1)  # type: ignore[arg-type]
        for m, one in ours.items()
    }
    return [*tables, timed("beam search", searches, float(len(split)))]


def markdown(tables: Sequence[Table], sizes: Sizes, device: str, machine: str) -> str:
    """The section for docs/reference/benchmarks.md; ratios below their goal are bold."""
    shown = {"tables": tables, "sizes": sizes, "device": device, "machine": machine}
    count = len(next(iter(tables[0].ratios.values())))
    return pages.page("training", **shown, section=pages.PARTS[2], goal=GOAL, turns=count)
