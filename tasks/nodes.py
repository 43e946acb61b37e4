"""The nodes of a configuration that belong to no task, data set or model: training, optimisers, runtime, loggers."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.options import LARGEST, REQUIRED, choice, flag, integer, listing, number, text


@dataclass
class Train:
    """How long, in what batches, and which epoch is kept."""

    max_epochs: int = integer(13, low=1, high=10_000, help="epochs")
    batch_size: int = integer(64, low=1, high=1_000_000, help="examples of a batch")
    batch_size_valid: int = integer(128, low=1, high=1_000_000, help="examples of a batch of dev")
    max_tokens: int | None = integer(None, low=1, high=10_000_000, optional=True, help="most tokens of a batch")
    update_freq: int = integer(1, low=1, high=10_000, help="batches whose gradients make one update")
    best_metric: str = choice("accuracy", "accuracy", "loss", "ppl", "f1", help="dev score that picks the epoch")
    precision: str = choice("fp32", "fp32", "fp16", "bf16", help="fp16, bf16: mixed, on a GPU")
    processes: int = integer(1, low=1, high=1024, help="data-parallel: GPUs, or CPU processes over gloo")


@dataclass
class Sgd:
    """Stochastic gradient descent without momentum."""

    lr: float = number(1.0, above=0, high=100, help="base rate; the schedule changes it")
    clip: float = number(5.0, low=0, high=1e6, help="largest norm of the gradient; 0: any")
    normalize: str = choice("sentences", "sentences", "tokens", help="what a batch's summed loss is divided by")
    label_smoothing: float = number(0.0, low=0, below=1, help="share of the target spread over the vocabulary")
    weight_decay: float = number(0.0, low=0, below=1, help="decoupled")


@dataclass
class Adam(Sgd):
    """Adam (Kingma & Ba 2015)."""

    betas: list = listing([0.9, 0.98], number(low=0, below=1), length=2, help="of the two moments")
    eps: float = number(1e-8, above=0, high=1, help="beside the root of the second moment")


@dataclass
class Profile:
    """How large, named by the page: demo, cpu, paper."""

    name: str = choice(REQUIRED, "demo", "cpu", "paper", help="demo, cpu or paper")


@dataclass
class Runtime:
    """Where and how; no part of what is computed."""

    device: str = choice("auto", "auto", "cpu", "cuda", help="auto: a GPU where there is one")
    threads: int = integer(1, low=1, high=1024, help="of each cell")
    workers: int = integer(2, low=1, high=1024, help="cells at a time")
    data_workers: int = integer(0, low=0, high=256, help="processes that collate batches")
    save_minutes: float = number(10, above=0, high=10_000, help="between checkpoints inside an epoch")
    verbose: bool = flag(False, help="print tracebacks")


@dataclass
class Paths:
    """Folders."""

    outputs: str = text(help="the store: cells, tables, reports")
    data: str = text(help="downloads and encoded data")


@dataclass
class Top:
    """What stands at the top by itself."""

    seed: int = integer(1, low=0, high=LARGEST, help="of everything that is drawn")
    plugins: list = listing([], text(), help="Python files that register mappings of one's own")


@dataclass
class Csv:
    """curves.csv in the cell's folder alone."""


@dataclass
class Wandb:
    """One wandb run a cell."""

    project: str = text("sparse-attention", help="of the account")
    entity: str | None = text(None, optional=True, help="team or user; null: the account's own")
    mode: str = choice("auto", "auto", "online", "offline", help="auto: online with a key, offline without")


@dataclass
class Local:
    """Cells run on this machine."""


SINGLE = {"train": Train, "profile": Profile, "runtime": Runtime, "paths": Paths}
NAMED = {
    "optim": {"sgd": Sgd, "adam": Adam},
    "logger": {"csv": Csv, "wandb": Wandb},
    "launcher": {"local": Local},
}
