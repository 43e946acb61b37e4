"""One training in several processes, compared with one process; which checkpoint a training resumes from."""

import os
import signal

import pytest
import torch
from test_training import assert_same_training, curves

from repro import cell as cells
from repro.store import Store
from tasks.config.nodes import shares
from tasks.training import checkpoints

# processes, batches an update, sizes of a batch, and the batches of each process
SHARES = [(1, 2, 64, None, (64, None, 2)), (2, 2, 64, None, (64, None, 1)), (4, 2, 64, 4096, (32, 2048, 1))]
SHARES += [(3, 6, 10, None, (10, None, 2)), (8, 1, 64, None, (8, None, 1))]


@pytest.mark.parametrize("processes, every, batch, tokens, expected", SHARES)
def test_the_shares_make_the_update(processes, every, batch, tokens, expected):
    train = {"processes": processes, "update_freq": every, "batch_size": batch, "max_tokens": tokens}
    assert shares(train) == expected
    assert expected[0] * expected[2] * processes == batch * every


@pytest.fixture(scope="module")
def shared(prepared_cell, tiny):
    """`shared(processes)`: an update is two batches of eight; two processes have one of them each."""
    more = ["data.limits={train: 96, dev: 16, test: 8}", "train.batch_size=8", "train.update_freq=2"]
    more += ["train.max_epochs=3", "runtime.keep_checkpoints=true"]
    return lambda processes, *others: prepared_cell([*tiny, *more, *others, f"train.processes={processes}"])


@pytest.fixture(scope="module")
def two(shared, ran, tmp_path_factory):
    """An undisturbed training by two processes."""
    cell = shared(2)
    return cell, ran(cell, Store(tmp_path_factory.mktemp("two")))


@pytest.mark.slow
def test_an_update_has_the_same_examples_in_one_process_and_in_two(shared, ran, two, tmp_path):
    assert shared(1).cell_id != shared(2).cell_id, "the number of processes changes the numbers"
    one, both = curves(ran(shared(1), Store(tmp_path))), curves(two[1])
    for mine, theirs in zip(one, both, strict=True):
        assert mine["updates"] == theirs["updates"]
        for key in ("train/loss", "dev/loss", "train/gnorm"):
            assert float(mine[key]) == pytest.approx(float(theirs[key]), rel=1e-4), key


@pytest.mark.slow
def test_two_processes_asked_to_stop_save_and_end_the_same(shared, ran, two, tmp_path, monkeypatch):
    cell, store, stage = shared(2), Store(tmp_path), cells.CellMonitor.stage

    def warned(self, name, *rest, **stats):
        if "loss" in stats:
            os.kill(os.getpid(), signal.SIGTERM)
        stage(self, name, *rest, **stats)

    with monkeypatch.context() as patch:
        patch.setattr(cells.CellMonitor, "stage", warned)
        outcome = cells.run(cell, store)
    assert outcome.machine and "SIGTERM" in outcome.error, outcome.error
    entry = ran(cell, store)
    assert "resuming from epoch" in entry.path("log.txt").read_text()
    assert_same_training(cell, entry, two[1])


@pytest.mark.slow
def test_a_mapping_of_ones_own_reaches_every_process(prepared_cell, ran, tiny, tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text("""
import sparse_attention as sa
@sa.register("halfmax", kind="simplex", paper="none", oracle="none", summary="sparsemax of half the scores")
def halfmax(scores, mask=None, dim=-1):
    return sa.sparsemax(scores / 2, dim=dim, mask=mask)
""")
    overrides = [*tiny, f"plugins=[{plugin}]", "mapping=custom", "mapping.name=halfmax", "train.processes=2"]
    ran(prepared_cell(overrides), Store(tmp_path / "store"))


BOTH = "last previous"
FILES = [(BOTH, "", "last.pt"), (BOTH, "last", "previous.pt"), (BOTH, BOTH, None), ("last", "", "last.pt")]
FILES += [("previous", "", "previous.pt"), ("", "", None)]


@pytest.mark.parametrize("files, damaged, chosen", FILES)
def test_the_newest_whole_one_is_chosen(tmp_path, files, damaged, chosen):
    history = [{"epoch": float(i), "dev/accuracy": i} for i in (1, 2)]
    written = {"model": {"w": torch.randn(50)}, "best": None, "history": history}
    for name in files.split():
        torch.save(written, path := tmp_path / f"{name}.pt")
        if name in damaged.split():
            path.write_bytes((whole := path.read_bytes())[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    (tmp_path / "saving.99999.pt").write_bytes(b"left by a writer that was killed")
    notes = []
    assert checkpoints.newest(tmp_path, notes.append) == chosen
    assert not chosen or [row["dev/accuracy"] for row in checkpoints.read(tmp_path / chosen)["history"]] == [1, 2]
    for name in damaged.split():
        assert (tmp_path / f"{name}.unreadable").exists() and any(f"{name}.pt cannot be read" in n for n in notes)
    assert not list(tmp_path.glob("saving.*"))
