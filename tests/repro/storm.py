"""A storm over real small cells: processes killed, bits flipped, clocks ahead; afterwards every number as if nothing had been.

`python storm.py STORE ROWS` is one command that runs the cells; `run` starts two of them at a time in one store, disturbs them
for a while, lets both finish and holds the store against one where nobody disturbed anything.
"""

import csv
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from repro.files import read_json  # noqa: E402
from repro.store import Store, locks  # noqa: E402

TOY = """train.max_epochs=4 train.batch_size=4 model.embed_dim=8 model.hidden_dim=8 model.layers=1 decode.beam=2
    decode.max_len_b=8 runtime.save_minutes=0.005""".split()
TOY += ["task=toy", "data.limits={train: 64, dev: 16, test: 8}"]
MULTILABEL = ["task=multilabel", "data.sizes={train: 120, dev: 40, test: 60}", "task.tune.penalties=[0.1,0.001]"]
SHOW = {name: {"metric": f"test/{name}", "label": name} for name in ("bleu", "f1")}
SHOW["loss"] = {"metric": "dev/loss", "label": "loss"}
PAGE = {
    "title": "A storm",
    "rows": [{"label": m, "mapping": m} for m in ("softmax", "sparsemax", "sparsehourglass")],
    "columns": {
        "toy": {"label": "toy", "overrides": TOY, "show": [SHOW["bleu"], SHOW["loss"]]},
        "multilabel": {"label": "multilabel", "overrides": MULTILABEL, "show": [SHOW["f1"]]},
    },
    "profiles": {"demo": {"columns": ["toy", "multilabel"], "seeds": [1, 2]}},
}
TIMED = ("seconds", "per_second")


def command(store: str, rows: int) -> int:
    """One reproduce.py over the first rows of the page."""
    from repro.plan.experiment import read
    from tasks.commands import driver, reproduce

    driver.POLL_SECONDS = 0.5
    overrides = [f"paths.outputs={store}", f"paths.data={Path(store).parent / 'data'}", "runtime.workers=1"]
    page = PAGE | {"rows": PAGE["rows"][:rows]}  # type: ignore[index]
    loaded = [read(page, "storm", "demo")]
    made = reproduce.prepared(reproduce.outline(loaded, overrides))
    return reproduce.Driver(made, Store(store)).run()


def start(store: Path, rows: int) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with (store.parent / f"{store.name}.log").open("a") as log:
        line = [sys.executable, str(Path(__file__)), str(store), str(rows)]
        return subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True, env=environment)


def numbers(store: Store) -> dict[str, Any]:
    """Everything that was computed, without times: cell or evaluation -> metrics, hashes of weights, outputs, curves."""
    found: dict[str, Any] = {}
    for entry in store:
        for folder in (entry.folder, *sorted(entry.path("evaluations").glob("[0-9a-f]*"))):
            if "damaged" not in folder.name:
                files = [folder / n for n in ("weights.safetensors", "predictions.jsonl.gz", "attention.safetensors")]
                told = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.is_file()}
                told |= untimed((read_json(folder / "metrics.json") or {}).get("metrics", {}))
                curves = folder / "curves.csv"
                rows = csv.DictReader(curves.read_text().splitlines() if curves.is_file() else [])
                found[str(folder.relative_to(store.root))] = told | {"curves": [*map(untimed, rows)]}
    return found


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if not any(t in k for t in TIMED)}


class Storm:
    """What may happen to a store; every deed is counted."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.rng, self.done = store, random.Random(seed), Counter[str]()
        self.running: list[subprocess.Popen] = []

    def kill_command(self) -> None:
        self.done["commands killed"] += _killed(self.rng.choice(self.running))

    def kill_cell(self) -> None:
        """One of the processes that own a cell; they belong to the groups that were started here."""
        groups = {process.pid for process in self.running if process.poll() is None}
        pids = [int((read_json(p) or {}).get("pid", 0)) for p in self.store.root.glob("cells/*/*/*/claim")]
        for pid in self.rng.sample(pids, len(pids)):
            try:
                if pid and os.getpgid(pid) in groups:
                    os.kill(pid, signal.SIGKILL)
                    self.done["cells killed"] += 1
                    return
            except ProcessLookupError:
                continue

    def _idle(self, pattern: str) -> Path | None:
        """A file of a cell that nobody works on."""
        found = [p for entry in self.store if not entry.busy() for p in entry.folder.glob(pattern) if p.is_file()]
        found = [p for p in found if p.stat().st_size and "damaged-" not in str(p) and p.name != locks.NAME]
        return self.rng.choice(found) if found else None

    def flip(self, pattern: str = "**/*") -> None:
        if path := self._idle(pattern):
            data = bytearray(path.read_bytes())
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            path.write_bytes(data)
            self.done["bits flipped"] += 1

    def flip_checkpoint(self) -> None:
        self.flip("checkpoints/*.pt")

    def jump(self) -> None:
        """A clock that was ahead has left its time."""
        ahead = time.time() + self.rng.choice([3600.0, 3e8])
        if path := self._idle("**/*"):
            os.utime(path, (ahead, ahead))
            self.done["clocks ahead"] += 1

    def blow(self, seconds: float, rows: int) -> None:
        """Two commands at a time, one deed after the other; the time counts from the first cell on."""
        often = {self.kill_command: 1, self.kill_cell: 4, self.flip: 2, self.flip_checkpoint: 2, self.jump: 2}
        until = None
        while until is None or time.monotonic() < until:
            self.running = [process for process in self.running if process.poll() is None]
            while len(self.running) < 2:
                self.running.append(start(self.store.root, rows))
                self.done["commands started"] += 1
            time.sleep(self.rng.uniform(0.1, 2.0))
            if until is None and any(self.store):
                until = time.monotonic() + seconds
            if until is not None:
                self.rng.choices(list(often), list(often.values()))[0]()


def _killed(process: subprocess.Popen) -> bool:
    """Kill the whole group, unless it has ended: the command, its fork server, its cells."""
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def run(folder: Path, seconds: float, rows: int = 3, seed: int = 1) -> list[str]:
    """Storm for `seconds` in `folder`; what is wrong afterwards, nothing when all is as it should be."""
    calm, stormy = Store(folder / "calm"), Store(folder / "stormy")
    if code := start(calm.root, rows).wait():
        return [f"the undisturbed command ended with {code}: {(folder / 'calm.log').read_text()[-2000:]}"]
    wanted, storm = numbers(calm), Storm(stormy, seed)
    print(f"undisturbed: {len(list(calm))} cells", flush=True)
    try:
        storm.blow(seconds, rows)
    finally:
        for process in storm.running:
            _killed(process)
    last = [start(stormy.root, rows) for _ in range(2)]
    codes = [process.wait() for process in last]
    wrong = [f"the last two commands ended with {codes}: see {folder / 'stormy.log'}"] if any(codes) else []
    print(dict(storm.done), len(list(stormy.root.rglob("*.damaged-*"))), "folders moved aside", flush=True)
    found = numbers(stormy)
    for place in sorted(wanted.keys() | found.keys()):
        mine, theirs = found.get(place, {}), wanted.get(place, {})
        wrong += [f"{place}: {k} differs" for k in sorted(mine.keys() | theirs.keys()) if mine.get(k) != theirs.get(k)]
    return wrong


if __name__ == "__main__":
    sys.exit(command(sys.argv[1], int(sys.argv[2])))
