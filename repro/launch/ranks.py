"""One cell in several tasks of a job, on one machine or several: `srun` or `torchrun` starts as many as train.processes.

    torchrun --nnodes 2 --nproc-per-node 4 ... -m repro.launch.ranks outputs/cells/TASK/MAPPING/ID

The first task runs the cell: it alone has the claim, writes and evaluates. The others wait until it calls them to its
training, have their share of that and end; when the first one has nothing to train, or dies, they end too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro import plugins, signals

PATIENCE = timedelta(days=30)  # of those who wait to be called
FAREWELL_SECONDS = 30.0


@dataclass(frozen=True)
class Rank:
    """number of world tasks, local among the `here` of this machine; host and port of the first task's store."""

    number: int
    world: int
    local: int
    here: int
    host: str
    port: int

    @property
    def method(self) -> str:
        """Where torch's process group meets."""
        return f"tcp://{self.host}:{self.port + 1}"

    def call(self) -> None:
        """The first task calls the others to its training."""
        _state["store"].set("called", "train")


_state: dict[str, Any] = {}


def current() -> Rank | None:
    """Of this process, while `together` runs; None for a process that was started alone."""
    return _state.get("rank")


def read(environment: Mapping[str, str]) -> Rank | None:
    """What Slurm or torchrun says; None when the process is its job's only task."""
    if int(environment.get("WORLD_SIZE", "1")) > 1:
        number, world, local, here = (
            int(environment[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        )
        return Rank(number, world, local, here, environment["MASTER_ADDR"], int(environment["MASTER_PORT"]) + 1)
    if "SLURM_PROCID" not in environment or (world := int(environment.get("SLURM_NTASKS", "1"))) == 1:
        return None
    shown = ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]]
    hosts = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
    here = int(environment["SLURM_TASKS_PER_NODE"].split("(")[0].split(",")[0])
    # a port of the job's own: two jobs may share a machine
    port = 10_000 + 2 * (int(environment["SLURM_JOB_ID"]) % 20_000)
    return Rank(int(environment["SLURM_PROCID"]), world, int(environment["SLURM_LOCALID"]), here, hosts[0], port)


@contextlib.contextmanager
def together(rank: Rank) -> Iterator[None]:
    """The tasks' common store is there while the block runs; at its end the first task sends the others home."""
    import torch.distributed as dist

    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # torchrun's store is not ours
    _state["store"] = dist.TCPStore(
        rank.host, rank.port, None, rank.number == 0, timeout=PATIENCE, wait_for_workers=False
    )
    _state["rank"] = rank
    try:
        yield
    finally:
        store = _state["store"]
        _state.clear()
        if rank.number:
            store.add("left", 1)
        else:
            store.set("called", "over")
            until = time.monotonic() + FAREWELL_SECONDS  # the store ends with this process
            while store.add("left", 0) < rank.world - 1 and time.monotonic() < until:
                time.sleep(0.05)


def follow(folder: str | Path) -> None:
    """Wait for the first task's call; have a share of the training of the cell in `folder` if it comes to one."""
    _state["store"].wait(["called"])
    if _state["store"].get("called") != b"train":
        return
    cell = cells.from_folder(folder)
    plugins.load(cell.config.get("plugins") or [])
    with contextlib.suppress(signals.Stopped), signals.listening():
        cell.family.train(cell.config, cell.prepared, Path(folder), Quiet())


class Quiet:
    """The monitor of a task that has nothing to tell."""

    def stage(self, name: str, fraction: float, **stats: float) -> None: ...
    def curve(self, rows: list[dict[str, float]]) -> None: ...
    def note(self, text: str) -> None: ...


def main(folder: str) -> int:
    """The cell of a folder, in this task of several. Exit status: 0, or 1 when it failed."""
    if (rank := read(os.environ)) is None:
        raise SystemExit("start it in several tasks, by torchrun or srun; one task alone needs none of this")
    with together(rank):
        if rank.number:
            follow(folder)
            return 0
        outcome = cells.run_folder(folder)
    print(outcome.error or outcome.state)
    return int(outcome.state not in ("done", "skipped"))


if __name__ == "__main__":
    import repro.launch.ranks as ranks  # the module that the training asks, not its twin `__main__`

    sys.exit(ranks.main(*sys.argv[1:]))
