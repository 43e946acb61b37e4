"""A sweep on a real Slurm under every fault; `make test-slurm`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cluster
import pytest
import storm
import sweep

from repro.files import read_json
from repro.store import Entry, Store

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    try:
        with cluster.running(tmp_path_factory.mktemp("slurm")) as environment:
            yield environment | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    except cluster.Unavailable as why:
        pytest.skip(f"no Slurm here: {why}")


@pytest.fixture
def slurm(environment):
    """`slurm("squeue", ...)`: what a command of the cluster's says."""

    def ask(*command: str) -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    return ask


@pytest.fixture
def command(environment, tmp_path):
    """`command("wait=false")`: the sweep in a process of its own; `command.store`, `command.flags`."""
    started = []

    class Command:
        store, flags = Store(tmp_path / "outputs"), tmp_path / "flags"

        def __init__(self, *options: str, launcher: str = "slurm", outputs: Path | None = None) -> None:
            self.log = tmp_path / f"{time.monotonic()}.log"
            asked = [f"launcher={launcher}", *(f"launcher.{o}" for o in options)]
            line = [sys.executable, str(Path(sweep.__file__)), str(outputs or self.store.root), str(self.flags), *asked]
            with self.log.open("w") as log:
                self.process = subprocess.Popen(line, env=environment, stdout=log, stderr=log, cwd=tmp_path)
            started.append(self.process)

        def end(self, seconds: float = 600) -> tuple[int, str]:
            return self.process.wait(seconds), self.log.read_text()

    Command.flags.mkdir()
    yield Command
    for process in started:
        process.kill()


def until(what: Callable[[], object], seconds: float = 400) -> object:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError(f"did not come about: {what}")


def cells(store: Store) -> dict[tuple[float, int], Entry]:
    """(sharpness, seed) -> cell."""
    import yaml

    pages = {entry: yaml.safe_load(entry.path("config.yaml").read_text()) for entry in store}
    return {(page["mapping"]["sharpness"], page["seed"]): entry for entry, page in pages.items()}


def training(store: Store, key: tuple[float, int]) -> Callable[[], Entry | None]:
    """The cell, once it has a claim and a checkpoint."""

    def look() -> Entry | None:
        entry = cells(store).get(key)
        return entry if entry and entry.busy() and entry.path("checkpoints/last.pt").exists() else None

    return look


def text(entry: Entry) -> str:
    return entry.path("log.txt").read_text()


def elapsed(slurm: Callable[..., str], job: str) -> int:
    """Seconds that a job has run, which squeue says as [[days-]hours:]minutes:seconds."""
    parts = reversed(slurm("squeue", "-h", "-j", job, "-o", "%M").strip().split(":"))
    return sum(int(part) * 60**n for n, part in enumerate(parts))


def test_a_sweep_under_every_fault_ends_as_an_undisturbed_one(command, slurm, tmp_path):
    store, flags = command.store, command.flags
    for flag in ("hold-1.0", "hold-2.0", "hold-3.0", "raise-4.0"):
        (flags / flag).touch()
    first = command("time=30", "notice=25", "retries=0")
    cancelled, killed = (until(training(store, key)) for key in ((1.0, 1), (2.0, 1)))
    slurm("scancel", cancelled.status()["job"])
    os.kill(read_json(killed.path("claim"))["pid"], signal.SIGKILL)
    until(lambda: not (cancelled.busy() or killed.busy()))
    (flags / "hold-1.0").unlink()
    (flags / "hold-2.0").unlink()
    limited = until(training(store, (3.0, 1)))
    job = limited.status()["job"]
    # whole minutes; the warning comes 25 seconds before the limit or up to a minute earlier, so not at once with the end
    slurm("scontrol", "update", f"timelimit={(elapsed(slurm, job) + 45) // 60 + 1}", f"jobid={job}")
    until(lambda: "asked to stop by SIGUSR2" in (store.root / "jobs" / f"{job}_0_log.out").read_text())
    (flags / "hold-3.0").unlink()
    until(lambda: limited.status()["attempt"] > 1 or job in slurm("squeue", "-hrt", "PENDING", "-o", "%i").split())
    slurm("scontrol", "update", "timelimit=30", f"jobid={job}")
    code, said = first.end()
    assert code == 1 and "submitted as job" in said, said
    assert said.count("] FAILED ") == 4, said  # cancelled, killed, and both that raise
    assert "CANCELLED" in said and "RuntimeError: out of sorts" in said
    done = {key for key, entry in cells(store).items() if entry.finished()}
    assert done == {(1.0, 2), (2.0, 2), (3.0, 1), (3.0, 2)}, said
    assert limited.status()["attempt"] >= 2 and "resuming from epoch" in text(limited)
    attempts = {key: entry.status()["attempt"] for key, entry in cells(store).items()}

    (flags / "raise-4.0").unlink()
    code, said = command("time=30").end()
    assert code == 0 and "4 cells run, 4 reused, 0 failed" in said, said
    for key, entry in cells(store).items():
        assert entry.status()["attempt"] == attempts[key] + (key not in done), key
    for entry in (cancelled, killed):
        assert "resuming from epoch" in text(entry)

    calm = Store(tmp_path / "calm")
    code, said = command(launcher="local", outputs=calm.root).end()
    assert code == 0, said
    assert storm.numbers(store) == storm.numbers(calm) and len(storm.numbers(calm)) == 16
    tables = [(s.root / "tables" / "sweep_demo.csv").read_text() for s in (store, calm)]
    assert tables[0] == tables[1]


def test_without_waiting_the_same_command_submits_nothing_twice(command, slurm):
    held = [command.flags / f"hold-{s}" for s in sweep.SHARPNESS]
    for flag in held:
        flag.touch()
    code, said = command("wait=false", "parallel=1").end()
    assert code == 0 and "8 cell(s) submitted as job" in said and "8 not finished" in said, said
    code, said = command("wait=false").end()
    assert code == 0 and "8 cell(s) are in the queue already" in said and "submitted" not in said, said
    queue = slurm("squeue", "-h", "-r")
    assert len(queue.splitlines()) == 8
    for flag in held:
        flag.unlink()
    # another launcher at the same time: what one trains the other waits for
    code, said = command(launcher="local").end()
    assert code == 0 and "0 failed" in said, said
    assert all(entry.finished() and entry.status()["attempt"] == 1 for entry in command.store)
    slurm("scancel", "-u", "root")
