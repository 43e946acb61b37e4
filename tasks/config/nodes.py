"""Configuration nodes that do not depend on task, data set or model: training, optimisers, runtime and launchers."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from repro.options import LARGEST, choice, flag, integer, listing, number, option, text
from tasks.config.files import defaults

BEST = ("accuracy", "loss", "ppl", "f1", "macro_f1", "bleu", "chrf")  # dev scores that can select the epoch


def _devices(value: Any) -> str | list[int]:
    """`all`, `none`, or the numbers of the GPUs: one number, a list, or text such as `0,2`."""
    if value in ("all", "none"):
        return value
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    found = [int(n) for n in text.split(",")] if re.fullmatch(r" *\d{1,4} *(, *\d{1,4} *)*", text) else []
    if not found or len(set(found)) != len(found):
        raise ValueError("must be all, none, or different numbers of GPUs, as in [0,2]")
    return found


def _sharing(value: Any) -> str | int:
    """`auto`, or how many cells share a GPU."""
    if value != "auto" and (type(value) is not int or value < 1):
        raise ValueError("must be auto or a whole number of at least 1")
    return value


@defaults("main", "train")
class Train:
    """Length of the training, batches, and the choice of the epoch to keep."""

    max_epochs: int = integer(low=1, help="epochs")
    batch_size: int | None = integer(low=1, optional=True, help="maximum examples per batch; null: only max_tokens")
    batch_size_valid: int = integer(low=1, help="examples of a batch of dev data")
    max_tokens: int | None = integer(
        low=1, optional=True, help="maximum tokens per batch, at least those of the longest example"
    )
    update_freq: int = integer(low=1, help="batches accumulated per update")
    best_metric: str = choice(
        *BEST,
        help="dev score that selects the epoch; bleu, chrf: only for pairs; each epoch decodes dev (greedy search)",
    )
    average: int | None = integer(low=1, optional=True, help="keep the mean of the weights of that many last epochs")
    class_weights: str | None = choice(
        "balanced", optional=True, help="class weights in a classifier's loss; balanced: each class counts the same"
    )
    precision: str = choice("fp32", "fp16", "bf16", help="fp16 (on a GPU), bf16: autocast over fp32 weights")
    processes: int = integer(
        low=1, high=1024, help="data-parallel: GPUs, or CPU processes over gloo; they share each update"
    )

    def problems(self) -> list[str]:
        if self.batch_size is None and self.max_tokens is None:
            return ["batch_size=null needs max_tokens: one of them must set the size of a batch"]
        if (self.average or 0) > self.max_epochs:
            return [f"average={self.average} must be at most max_epochs={self.max_epochs}"]
        shares(asdict(self))  # raises ValueError
        return []


def shares(train: Mapping[str, Any]) -> tuple[int | None, int | None, int]:
    """(batch_size, max_tokens, update_freq) for each of `train.processes`.

    They are chosen so that an update has as many examples as with one process. The accumulated batches of an update are
    first distributed over the processes, which leaves each batch unchanged. Batches are divided only if there are more
    processes than that can keep busy. Raises ValueError if the examples of an update, or the tokens of a batch, cannot
    be divided evenly.
    """
    processes, every = train["processes"], train["update_freq"]
    shared = math.gcd(processes, every)
    parts = processes // shared
    for key in ("batch_size", "max_tokens"):
        if train[key] and train[key] % parts:
            possible = [n for n in range(1, processes) if train[key] % (n // math.gcd(n, every)) == 0]
            told = f"processes={processes} cannot divide an update of update_freq={every} batches of "
            told += f"{key}={train[key]} evenly"
            others = f"possible: processes={', '.join(map(str, possible[-4:]))}, or another {key}"
            raise ValueError(f"{told}; {others}")
    batch_size, max_tokens = (train[key] and train[key] // parts for key in ("batch_size", "max_tokens"))
    return batch_size, max_tokens, every // shared


@defaults("optim/sgd")
class Sgd:
    """Stochastic gradient descent without momentum."""

    lr: float = number(above=0, high=100, help="base rate; the schedule changes it")
    clip: float = number(low=0, high=1e6, help="maximum norm of the gradient; 0: no clipping")
    normalize: str = choice("sentences", "tokens", help="what a batch's summed loss is divided by")
    label_smoothing: float = number(low=0, below=1, help="share of the target probability spread over the vocabulary")
    weight_decay: float = number(low=0, below=1, help="decoupled from the gradient")


@defaults("optim/adam")
class Adam(Sgd):
    """Adam (Kingma & Ba 2015)."""

    betas: list = listing(number(low=0, below=1), length=2, help="decay rates of the two moments")
    eps: float = number(above=0, high=1, help="added to the root of the second moment")


@dataclass
class Profile:
    """The size of the setting: demo, cpu, gpu or paper."""

    name: str = choice("demo", "cpu", "gpu", "paper", help="demo, cpu, gpu or paper")


@defaults("main", "runtime")
class Runtime:
    """Where and how a cell runs; not part of its identity."""

    device: str = choice("auto", "cpu", "cuda", help="auto: a GPU where there is one")
    threads: int = integer(low=1, help="CPU threads of each cell")
    workers: int = integer(low=1, help="cells at a time")
    devices: Any = option(object, _devices, "GPUs of the workers: all, none or numbers")
    workers_per_device: int = option(
        object, _sharing, "cells that share a GPU, or train.processes of them; auto: as memory and cores allow"
    )
    data_workers: int = integer(low=0, help="processes that collate batches")
    save_minutes: float = number(above=0, high=10_000, help="minutes between checkpoints within an epoch")
    keep_checkpoints: bool = flag(
        help="keep all checkpoints after training, with the optimiser's state; otherwise only the best weights"
    )
    tf32: bool = flag(help="compute fp32 matrix products in TF32 on a GPU that has it; recorded with every cell")
    verbose: bool = flag(help="print tracebacks")


@dataclass
class Paths:
    """The folders for outputs and data."""

    outputs: str = text(help="the store: cells, tables, reports")
    data: str = text(help="downloads and encoded data")


@defaults("main")
class Top:
    """The keys at the top level that are not nodes."""

    seed: int = integer(low=0, high=LARGEST, help="seed of all random numbers")
    plugins: list = listing(text(), help="Python files that register the user's own mappings")


@dataclass
class Nothing:
    """There is nothing to set: of the logger csv, or of a family, a model or a schedule without options."""


@defaults("launcher/local")
class Local:
    """Run cells on this machine."""

    retries: int = integer(low=0, help="restarts of a cell whose process was killed")


@defaults("launcher/slurm")
class Slurm:
    """Run cells as one Slurm array job, with one array element per cell."""

    wait: bool = flag(help="wait and show progress; false: return, and the same command shows progress later")
    retries: int = integer(low=0, help="resubmissions of a cell whose machine failed")
    partition: str | None = text(optional=True, help="null: the cluster's default")
    account: str | None = text(optional=True)
    qos: str | None = text(optional=True)
    time: int = integer(low=1, help="minutes; a cell that needs more is saved and queued again")
    notice: int = integer(low=1, help="seconds before the time limit when a cell is asked to save")
    mem: str | None = text(optional=True, help="memory per cell, e.g. 8GB; null: the cluster's default")
    cpus: int = integer(low=1, help="processors per cell")
    gres: str | None = text(optional=True, help="devices per cell, e.g. gpu:1 or gpu:a100:4")
    parallel: int = integer(low=1, help="elements of the array at a time")
    exclude: str | None = text(optional=True, help="nodes not to use")
    setup: list = listing(text(), help="shell commands to run before Python, e.g. module load cuda")
    python: str | None = text(optional=True, help="Python on the nodes; null: the one you submit with")
    sbatch: list = listing(text(), help="more options for sbatch, e.g. constraint=a100")

    def problems(self) -> list[str]:
        wrong = [o for o in self.sbatch if not re.fullmatch(r"[\w-]+=.+", o)]
        found = [f"sbatch has {o!r}; each item must be OPTION=VALUE" for o in wrong]
        if self.mem and not re.fullmatch(r"\d+(?:[KMGT]B?)?", self.mem):
            found.append(f"mem={self.mem!r} must be a number with a unit, as 8GB")
        if self.notice >= 60 * self.time:
            found.append(f"notice={self.notice} must be less than the {60 * self.time} seconds of time={self.time}")
        return found


SINGLE = {"train": Train, "profile": Profile, "runtime": Runtime, "paths": Paths}
NAMED = {"optim": {"sgd": Sgd, "adam": Adam}, "launcher": {"local": Local, "slurm": Slurm}}
