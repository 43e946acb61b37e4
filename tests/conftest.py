"""Fixtures shared by all tests: temporary folders for everything that is written, toy configurations, cells trained once."""

import gc
import os
import runpy
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

# a runner in the background ignores Ctrl-C, and so would the commands that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted

    interpreted.by_trees()

# A model and a data set so small that an epoch takes a fraction of a second.
TINY = "task=toy profile=demo data.limits={train:48,dev:16,test:8} train.max_epochs=1 train.batch_size=16".split()
TINY += "model.embed_dim=8 model.hidden_dim=8 model.layers=1 decode.beam=2 decode.max_len_b=8".split()
TINY += "runtime.device=cpu".split()
# Enough of both to see what training does to the attention: a few seconds.
LEARNING = "task=toy profile=demo data.limits={train:200,dev:60,test:40} train.max_epochs=6".split()
LEARNING += "train.batch_size=20 model.embed_dim=32 model.hidden_dim=32 schedule.warmup_updates=20".split()
LEARNING += "decode.beam=2 runtime.device=cpu".split()


gc.disable()  # until thousands of tests are collected, of which nothing is garbage


def pytest_collection_finish(session):
    gc.enable(), gc.freeze()


def pytest_sessionfinish(session):
    gc.unfreeze()


def pytest_ignore_collect(collection_path, config):
    """Folders of which no test would be kept are not imported."""
    if collection_path.parent == ROOT / "tests" and f"not {collection_path.name}" in config.option.markexpr:
        return True


# The files of tests that take longest, first: at the end no worker waits for another.
LONGEST = ("test_training", "test_foreign_cells", "test_configs", "test_step", "test_commands", "test_sweep")
LONGEST += ("test_loggers", "test_launch", "test_driver", "test_processes", "test_experiment_step", "test_verdict")
LONGEST += ("test_report", "test_compare", "test_sweep_script", "test_train_script", "test_foreign_tensors")
LONGEST += ("test_triton", "test_build", "test_extending", "test_own_page", "test_multilabel_model")


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session", autouse=True)
def isolated(tmp_path_factory):
    """What a test forgets to place lands nowhere in the repository, wandb reaches no network, and output has one width."""
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSE_ATTENTION_OUTPUTS", str(folder / "outputs"))
        patch.setenv("SPARSE_ATTENTION_DATA", str(folder / "data"))
        patch.setenv("WANDB_MODE", "offline")
        patch.delenv("COLUMNS", raising=False)  # a narrow terminal has fewer columns of a table
        yield folder


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Mappings that a file of tests registers end with the file."""
    from sparse_attention import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_SPECS", dict(registry._SPECS))
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Hydra overrides of the smallest cell."""
    return list(TINY)


@pytest.fixture(scope="session")
def learning() -> list[str]:
    """Hydra overrides of a cell that learns something within seconds."""
    return list(LEARNING)


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The folder of real text; tests that need it are skipped without it."""
    folder = Path(os.environ.get("SPARSE_ATTENTION_TESTDATA", ROOT.parent / "shared" / "testdata"))
    if not folder.is_dir():
        pytest.skip(f"no test data folder ({folder}); set SPARSE_ATTENTION_TESTDATA")
    return folder


@pytest.fixture(scope="session")
def _mirror(tmp_path_factory):
    from made_mirror import write_manifests, write_mirror

    folder, pages = tmp_path_factory.mktemp("mirror"), tmp_path_factory.mktemp("manifests")
    write_mirror(folder)
    write_manifests(ROOT / "data" / "manifests", folder, pages)
    return folder, pages


@pytest.fixture
def mirror(_mirror, monkeypatch) -> Path:
    """A small mirror of every mirrored set (`made_mirror`), with manifests that ask for its files."""
    from tasks.data import manifests

    folder, pages = _mirror
    monkeypatch.setattr(manifests, "FOLDER", pages)
    return folder


@pytest.fixture(scope="session")
def composed():
    """`composed(overrides)`: the checked, plain configuration."""
    from tasks.config.compose import composer

    def composed(overrides=()):
        with composer() as compose:
            return compose(list(overrides))

    return composed


@pytest.fixture(scope="session")
def prepared_cell(composed):
    """`prepared_cell(overrides)`: a cell with its data encoded (in the session's data folder)."""
    from repro import cell
    from tasks.config.compose import module_of
    from tasks.data import NullProgress

    def prepared_cell(overrides):
        config = composed(overrides)
        return cell.prepare(cell.Cell(config, module_of(config)), NullProgress())

    return prepared_cell


@pytest.fixture(scope="session")
def ran():
    """`ran(cell, store)`: the entry of a cell after its training; fails with its traceback."""
    from repro import cell as cells

    def ran(cell, store):
        outcome = cells.run(cell, store)
        assert outcome.state == "done", outcome.error
        return cell.entry(store)

    return ran


@pytest.fixture(scope="session")
def learned(prepared_cell, ran, learning, tmp_path_factory):
    """`learned(mapping)`: (cell, entry) of a toy cell trained and scored once in this session.

    Its test set's evaluation is `entry.evaluation(cell.evaluation_id(cell.tests[0]))`.
    """
    from repro.store import Store

    store = Store(tmp_path_factory.mktemp("learned"))

    @cache
    def learned(mapping: str, *more: str):
        cell = prepared_cell([*learning, f"mapping={mapping}", *more])
        return cell, ran(cell, store)

    return learned


@pytest.fixture(scope="session")
def command(root):
    """`command("store", *arguments)`: the exit status of a script that is called in this process."""

    def run(name: str, *arguments: str) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(root / "scripts"))
            main = runpy.run_path(str(root / "scripts" / f"{name}.py"))["main"]
        return main(list(arguments))

    return run


@pytest.fixture(scope="session")
def script(tmp_path_factory, root, isolated):
    """`script("train.py", *arguments, **environment)`: run an entry point in a fork of this process; the finished process.

    Python starts anew if the environment sets what is read at its start.
    """
    import forked

    import tasks.training.processes  # noqa: F401

    data = isolated / "data"

    def run(name: str, *arguments: str, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(root / "scripts" / name), *arguments]
        env = os.environ | {"SPARSE_ATTENTION_DATA": str(data), "PYTHONWARNINGS": "ignore"} | environment
        folder = tmp_path_factory.mktemp("cwd")
        if not any(name.startswith(forked.AT_START) for name in environment):
            return forked.run(root / "scripts" / name, arguments, env, folder, timeout)
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=env, cwd=folder, check=False
        )

    return run
