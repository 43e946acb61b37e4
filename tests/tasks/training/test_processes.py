"""One training in several processes, compared with one process."""

from __future__ import annotations

import os
import signal

import pytest
from test_training import assert_same_training, curves, scores, trained

from repro import cell as cells
from repro.store import Store
from tasks.config.nodes import shares


@pytest.mark.parametrize(
    "processes, every, batch, tokens, expected",
    [
        (1, 2, 64, None, (64, None, 2)),
        (2, 2, 64, None, (64, None, 1)),
        (4, 2, 64, 4096, (32, 2048, 1)),
        (3, 6, 10, None, (10, None, 2)),
        (8, 1, 64, None, (8, None, 1)),
    ],
)
def test_the_shares_make_the_update(processes, every, batch, tokens, expected):
    train = {"processes": processes, "update_freq": every, "batch_size": batch, "max_tokens": tokens}
    assert shares(train) == expected
    assert expected[0] * expected[2] * processes == batch * every


@pytest.mark.slow
def test_two_processes_over_gloo(prepared_cell, learning, tmp_path):
    """Each process takes its share of every update: as many updates as alone, one history, and it learns."""
    (plugin := tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
    overrides = [*learning, f"plugins=[{plugin}]", "mapping=sparsemax", "runtime.keep_checkpoints=true"]
    overrides += ["train.processes=2", "train.batch_size=10"]
    alone = prepared_cell([*overrides, "train.processes=1"])
    assert alone.cell_id != prepared_cell(overrides).cell_id, "the number of processes changes the numbers"
    cell = prepared_cell(overrides)
    entry = trained(cell, Store(tmp_path))
    assert (tmp_path / "ran").read_text() == "xxx", "here and in both processes"
    rows = curves(entry)
    assert float(rows[-1]["updates"]) == len(rows) * 200 / 10
    assert "2 processes x 1 batches x 5 examples make an update of 10" in entry.path("log.txt").read_text()
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"]) - 0.5
    assert scores(cell, entry)["test/attention_zeros"] > 0.3
    assert sorted(p.name for p in entry.path("checkpoints").iterdir()) == ["last.pt", "previous.pt"]


@pytest.fixture(scope="module")
def shared(prepared_cell, tiny):
    """`shared(processes)`: an update is two batches of eight; two processes have one of them each."""
    more = ["data.limits={train: 96, dev: 16, test: 8}", "train.batch_size=8", "train.update_freq=2"]
    more += ["train.max_epochs=3", "runtime.keep_checkpoints=true"]
    return lambda processes, *others: prepared_cell([*tiny, *more, *others, f"train.processes={processes}"])


@pytest.fixture(scope="module")
def two(shared, tmp_path_factory):
    """An undisturbed training by two processes."""
    cell = shared(2)
    return cell, trained(cell, Store(tmp_path_factory.mktemp("two")))


@pytest.mark.slow
def test_an_update_has_the_same_examples_in_one_process_and_in_two(shared, two, tmp_path):
    one, both = curves(trained(shared(1), Store(tmp_path))), curves(two[1])
    for mine, theirs in zip(one, both, strict=True):
        assert mine["updates"] == theirs["updates"]
        for key in ("train/loss", "dev/loss", "train/gnorm"):
            assert float(mine[key]) == pytest.approx(float(theirs[key]), rel=1e-4), key


@pytest.mark.slow
def test_two_processes_asked_to_stop_save_and_end_the_same(shared, two, tmp_path, monkeypatch):
    from tasks.cells._training import TrainingMonitor

    cell, store, updated = shared(2), Store(tmp_path), TrainingMonitor.updated

    def warned(self, epoch, *rest):
        os.kill(os.getpid(), signal.SIGTERM)
        updated(self, epoch, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingMonitor, "updated", warned)
        outcome = cells.run(cell, store)
    assert outcome.machine and "SIGTERM" in outcome.error, outcome.error
    entry = trained(cell, store)
    assert "resuming from epoch" in entry.path("log.txt").read_text()
    assert_same_training(cell, entry, two[1])


@pytest.mark.slow
def test_a_mapping_of_ones_own_reaches_every_process(prepared_cell, tiny, tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text(
        "import sparse_attention as sa, torch\n"
        "@sa.register('halfmax', kind='simplex', paper='none', oracle='none', summary='sparsemax of half the scores')\n"
        "class Halfmax(torch.nn.Module):\n"
        "    def forward(self, scores, mask=None, dim=-1):\n"
        "        return sa.sparsemax(scores / 2, dim=dim, mask=mask)\n"
    )
    overrides = [*tiny, f"plugins=[{plugin}]", "mapping=custom", "mapping.name=halfmax", "train.processes=2"]
    trained(prepared_cell(overrides), Store(tmp_path / "store"))
