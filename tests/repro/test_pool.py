"""Many cells in isolated processes: a death is an outcome, not an end."""

import os
import signal
import time

import pytest
from fake_family import cured, ran

from repro import cell as cells
from repro import launch
from repro.launch import pool


def outcomes(events) -> dict[int, object]:
    return {e.cell.seed: e.outcome for e in events if e.outcome is not None}


@pytest.mark.parametrize("behaviour, said", [("kill", "signal 9"), ("exit", "exit code 3"), ("raise", "the cat sat")])
def test_a_dead_worker_is_reported_and_the_rest_finishes(cell, store, behaviour, said):
    cells = [cell(seed=s, task__behaviour=behaviour, mapping__only=2) for s in (1, 2, 3)]
    events = list(pool.run(cells, store, [None] * 2, threads=1))
    ended = outcomes(events)
    assert {s: o.state for s, o in ended.items()} == {1: "done", 2: "failed", 3: "done"}
    assert said in ended[2].error
    assert cells[1].entry(store).state() == "failed"
    assert said in cells[1].entry(store).status()["error"]
    assert [c.state(store) for c in cells] == ["done", "failed", "done"]
    processes = {ran(one, store)[0][0] for one in cells}
    assert len(processes) == 3 and str(os.getpid()) not in processes, "more than the two at a time"
    for seed in (1, 2, 3):
        said = [(e.text, e.fraction, dict(e.stats)) for e in events if (e.kind, e.cell.seed) == ("stage", seed)]
        assert ("training", 0.425, {"loss": 1.0}) in said, said
    assert any(e.kind == "note" and e.text == "measured" for e in events)
    assert os.environ.get("OMP_NUM_THREADS") == "1"


def test_a_cell_killed_behind_its_last_file_is_done(cell, store):
    cells.run(whole := cell(), store)
    whole.entry(store).set_status("running", attempt=1)
    assert pool._died(whole, store, -9, 1.0).state == "done" and whole.entry(store).state() == "done"


@pytest.mark.parametrize("terminal", [False, True])
def test_interrupting_ends_the_workers_and_leaves_a_store_to_go_on_with(cell, store, capfd, terminal):
    """A terminal sends it to both: the worker saves what it has, and prints no traceback beside the command's sentence."""
    hanging = cell(task__behaviour="hang")
    events = pool.run([hanging], store, [None], threads=1)
    assert next(events).kind == "stage"
    pid = int(ran(hanging, store)[0][0])
    if terminal:
        os.kill(pid, signal.SIGINT)
        time.sleep(0.5)
        assert hanging.entry(store).busy(), "it waits for what the command asks"
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt)
    assert not alive(pid) and "Traceback" not in capfd.readouterr().err
    assert hanging.entry(store).state() == "lost" and not (terminal and hanging.entry(store).path("claim").read_bytes())
    assert outcomes(pool.run([cured(hanging)], store, [None], 1))[1].state == "done"


def alive(pid: int) -> bool:
    for _ in range(50):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    return True


def test_one_cell_runs_in_this_process_and_tells_while_it_runs(cell, store):
    events = []
    cells = [cell(seed=1), cell(seed=2, task__behaviour="raise")]

    def show(event):
        events.append((event, event.cell.done(store)))

    ended = [launch.run_one(one, store, show) for one in cells]
    assert [o.state for o in ended] == ["done", "failed"]
    assert {s: o.state for s, o in outcomes(e for e, _ in events).items()} == {1: "done", 2: "failed"}
    assert ran(cells[0], store)[0] == (str(os.getpid()), "train")
    said = [f"{e.cell.seed} {e.kind}{' done' * done}" for e, done in events]
    assert said == ["1 stage", "1 note", "1 stage", "1 end done", "2 stage", "2 end"]
