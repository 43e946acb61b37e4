"""Kill processes, flip bits and turn clocks back for minutes; then compare every number with an undisturbed run.

    python tests/repro/storm.py [--minutes 5] [--seed 1] [--folder FOLDER]

Examples: python tests/repro/storm.py; python tests/repro/storm.py --minutes 1 --seed 7

It runs small cells of the toy and multilabel tasks, with two commands at a time in one store (`storm.py cells STORE ROWS` is one
of them). --seed: seed of the times and kinds of the faults. --folder: folder in which the stores are kept (default: a temporary
folder). Exit status 1 if anything differs.
"""

import contextlib
import csv
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from repro.files import read_json  # noqa: E402
from repro.store import Store, locks  # noqa: E402
from tasks.commands.entry import command  # noqa: E402

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


def cells(store: str, rows: int) -> int:
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
        line = [sys.executable, __file__, "cells", str(store), str(rows)]
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


Running = list[subprocess.Popen]


def kill_command(rng: random.Random, store: Store, running: Running) -> bool:
    return _killed(rng.choice(running))


def kill_cell(rng: random.Random, store: Store, running: Running) -> bool:
    """One of the processes that own a cell; they belong to the groups that were started here."""
    groups = {process.pid for process in running if process.poll() is None}
    pids = [int((read_json(p) or {}).get("pid", 0)) for p in store.root.glob("cells/*/*/*/claim")]
    for pid in rng.sample(pids, len(pids)):
        with contextlib.suppress(ProcessLookupError):
            if pid and os.getpgid(pid) in groups:
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def _idle(rng: random.Random, store: Store, pattern: str) -> Path | None:
    """A file of a cell that nobody works on."""
    found = [p for entry in store if not entry.busy() for p in entry.folder.glob(pattern) if p.is_file()]
    found = [p for p in found if p.stat().st_size and "damaged-" not in str(p) and p.name != locks.NAME]
    return rng.choice(found) if found else None


def flip(rng: random.Random, store: Store, running: Running, pattern: str = "**/*") -> bool:
    if path := _idle(rng, store, pattern):
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    return path is not None


def flip_checkpoint(rng: random.Random, store: Store, running: Running) -> bool:
    return flip(rng, store, running, "checkpoints/*.pt")


def jump(rng: random.Random, store: Store, running: Running) -> bool:
    """A clock that was ahead has left its time."""
    ahead = time.time() + rng.choice([3600.0, 3e8])
    if path := _idle(rng, store, "**/*"):
        os.utime(path, (ahead, ahead))
    return path is not None


OFTEN = {kill_command: 1, kill_cell: 4, flip: 2, flip_checkpoint: 2, jump: 2}


def blow(store: Store, seconds: float, rows: int, seed: int) -> Counter[str]:
    """Two commands at a time, one deed after the other; the time counts from the first cell on. How many were done of each."""
    rng, running, done, until = random.Random(seed), [], Counter[str](), None
    try:
        while until is None or time.monotonic() < until:
            running = [process for process in running if process.poll() is None]
            running += [start(store.root, rows) for _ in range(2 - len(running))]
            time.sleep(rng.uniform(0.1, 2.0))
            if until is None and any(store):
                until = time.monotonic() + seconds
            if until is not None:
                (deed,) = rng.choices(list(OFTEN), list(OFTEN.values()))
                done[deed.__name__] += deed(rng, store, running)
    finally:
        for process in running:
            _killed(process)
    return done


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
    wanted = numbers(calm)
    print(f"undisturbed: {len(list(calm))} cells", flush=True)
    done = blow(stormy, seconds, rows, seed)
    last = [start(stormy.root, rows) for _ in range(2)]
    codes = [process.wait() for process in last]
    wrong = [f"the last two commands ended with {codes}: see {folder / 'stormy.log'}"] if any(codes) else []
    print(dict(done), len(list(stormy.root.rglob("*.damaged-*"))), "folders moved aside", flush=True)
    found = numbers(stormy)
    for place in sorted(wanted.keys() | found.keys()):
        mine, theirs = found.get(place, {}), wanted.get(place, {})
        wrong += [f"{place}: {k} differs" for k in sorted(mine.keys() | theirs.keys()) if mine.get(k) != theirs.get(k)]
    return wrong


if __name__ == "__main__" and sys.argv[1:2] == ["cells"]:
    sys.exit(cells(sys.argv[2], int(sys.argv[3])))


@command
def main(*, minutes: float = 5.0, seed: int = 1, folder: Path | None = None) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        wrong = run(place, 60 * minutes, seed=seed)
    print("\n".join([*wrong, f"{len(wrong)} differences from the undisturbed run"]))
    return int(bool(wrong))
