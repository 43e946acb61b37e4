"""wandb and TensorBoard: what they wrote is read back from their own files, or from a server that stands in for wandb's."""

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from repro import cell as cells
from repro.plan import experiment
from repro.store import Store
from tasks.config import compose
from tasks.loggers import about, make_loggers

pytest.importorskip("wandb")
KEY = "0123456789abcdef0123456789abcdef01234567"
NO_ONE = "does not answer .*without mode=online"
QUIET = {"WANDB_SILENT": "true"}


def records(path: Path):
    """The records of a .wandb file: LevelDB's log format (blocks of 32 KiB, parts of a record: whole, first, middle, last)."""
    from wandb.proto import wandb_internal_pb2

    data, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        held += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(held)
            held = b""
            yield record


def values(items) -> dict:
    return {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}


def read_run(folder: Path) -> dict:
    """One offline run: name, group, ..., configuration, history, summary, definitions of metrics."""
    (path,) = folder.glob("*.wandb")
    found: dict = {"history": [], "summary": {}, "metrics": {}, "config": {}}
    for one in records(path):
        if one.HasField("run"):
            run = one.run
            found |= {"id": run.run_id, "name": run.display_name, "group": run.run_group, "tags": list(run.tags)}
            found |= {key: getattr(run, key) for key in ("job_type", "host", "project", "entity")}
            found["config"] |= values(run.config.update)
        elif one.HasField("history"):
            found["history"].append(values(one.history.item))
        elif one.HasField("summary"):
            found["summary"] |= values(one.summary.update)
        elif one.HasField("metric"):
            found["metrics"][one.metric.name or one.metric.glob_name] = one.metric
    return found


def offline(folder: Path) -> list[dict]:
    return sorted((read_run(p) for p in folder.glob("wandb/offline-run-*")), key=lambda run: run["name"])


@pytest.fixture
def clean(monkeypatch, tmp_path):
    """No variable of wandb's from outside, and no netrc; wandb, which remembers them, reads the test's own."""
    import wandb

    for name in [n for n in os.environ if n.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def trained(script, prepared_cell, tiny, outputs) -> Path:
    """Two mappings trained, one by train.py, with a key, offline by the environment, into a WANDB_DIR that is not there yet."""
    folder = outputs.parent / "runs" / "deep"
    given = {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_PROJECT": "ours"}
    given |= {"WANDB_ENTITY": "us", "WANDB_TAGS": "night,h100"}
    logger = "logger=[wandb,tensorboard]" if importlib.util.find_spec("tensorboard") else "logger=wandb"
    asked = (*tiny, logger, "seed=3", f"paths.outputs={outputs}")
    done = script("train.py", *asked, "mapping=sparsemax", **given, **QUIET)
    assert done.returncode == 0, done.stderr
    assert "switched off" not in done.stderr
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**given, **QUIET}.items():
            patch.setenv(name, value)
        outcome = cells.run(prepared_cell([*asked, "mapping=fusedmax"]), Store(outputs), loggers=make_loggers)
    assert outcome.state == "done", outcome.error
    return folder


def test_the_environment_wins_and_runs_are_told_apart(trained, outputs):
    """Without the key and the name of the host anywhere."""
    fused, sparse = offline(trained)
    assert not (outputs / "wandb").exists()
    assert fused["name"] == "fusedmax(lam=0.1, gamma=1.0) on toy, seed 3"
    assert sparse["name"] == "sparsemax(gamma=1.0) on toy, seed 3"
    for run, mapping in ((fused, "fusedmax"), (sparse, "sparsemax")):
        assert (run["project"], run["entity"], run["job_type"], run["group"]) == ("ours", "us", mapping, "toy")
        assert sorted(run["tags"]) == ["demo", "h100", "night", "seed 3", "toy"]
        assert (outputs / "cells" / "toy" / mapping / run["id"] / "manifest.json").is_file()
    assert {"mapping/lam": 0.1, "train/max_epochs": 1, "seed": 3}.items() <= fused["config"].items()
    assert not any(isinstance(v, dict) for k, v in fused["config"].items() if k != "_wandb")
    files = [p for root in (trained, outputs) for p in root.rglob("*") if p.is_file()]
    assert len(files) > 30 and [p for p in files if KEY.encode() in p.read_bytes()] == []
    name = socket.gethostname()
    binary = (".png", ".safetensors", ".pt", ".gz")
    texts = [p for p in files if p.suffix not in binary and "tfevents" not in p.name]
    assert [p for p in texts if re.search(rb"\b%s\b" % re.escape(name.encode()), p.read_bytes())] == []
    assert fused["host"] == sparse["host"] == "" and not any(name in p.name for p in files)


def test_curves_scores_baselines_pictures_and_samples_of_wandb_and_tensorboard(trained, outputs):
    run = offline(trained)[1]
    folder = outputs / "cells" / "toy" / "sparsemax" / run["id"]
    stored = json.loads((folder / "metrics.json").read_text())["metrics"]
    (level,) = (folder / "evaluations").iterdir()
    scored = json.loads((level / "metrics.json").read_text())
    for key, value in {**stored, **scored["metrics"]}.items():
        assert run["summary"][key] == pytest.approx(value), key
    assert run["summary"]["baseline/constant/test/bleu"] == pytest.approx(scored["baselines"]["constant"]["test/bleu"])
    curve, last = run["history"]
    assert curve["epoch"] == 1 and curve["curve/dev/accuracy"] == pytest.approx(stored["dev/accuracy"], rel=1e-4)
    defined = run["metrics"]
    assert defined["curve/dev/accuracy"].step_metric == "epoch" and defined["curve/dev/accuracy"].summary.max
    assert defined["curve/dev/loss"].summary.min and not defined["curve/dev/loss"].summary.max
    assert last["attention/test/count"] == 3 and last["samples/test/nrows"] == 8
    (table,) = trained.glob(f"wandb/*{run['id']}/files/media/table/samples/*.json")
    shown = json.loads(table.read_text())
    assert shown["columns"][:4] == ["index", "source", "reference", "output"] and len(shown["data"]) == 8
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (outputs / "tensorboard" / "toy").glob("sparsemax*")
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    assert [e.step for e in events.Scalars("dev/accuracy")] == [1]
    assert events.Scalars("final/test/bleu")[0].value == pytest.approx(run["summary"]["test/bleu"], rel=1e-5)
    assert len([t for t in tags["images"] if t.startswith("attention/test/")]) == 3
    assert {"samples/test/text_summary", "configuration/text_summary"} <= {*tags["tensors"]}
    assert [p.name for p in folder.iterdir()] == [f"events.out.tfevents.{run['id']}"]


def test_tensorboard_writes_each_epoch_once(monkeypatch):
    pytest.importorskip("tensorboard")
    from tasks.loggers import tensorboard

    logger, steps = tensorboard.Logger(None, {"timeout": 1}), []
    logger.writer = SimpleNamespace(flush=lambda: None)
    monkeypatch.setattr(logger, "_write", lambda step, **content: steps.append(step))
    rows = [{"dev/loss": 3.0}, {"dev/loss": 2.0}, {"epoch": 7}]
    for upto in (1, 1, 3):
        logger.curve(rows[:upto])
    assert steps == [1, 2, 7], "without a number, an epoch follows the one before"


def test_no_path_anywhere_in_the_configuration(prepared_cell, tiny, tmp_path):
    """wandb's runs, uploads and TensorBoard's files take it from here."""
    for name in (f"{split}.{lang}" for split in ("train", "dev", "test") for lang in ("fr", "en")):
        (tmp_path / name).write_text(f"a b {name}\n" * 20)
    files = ["data=files", f"data.path={tmp_path}", "data.source_lang=fr", "data.target_lang=en"]
    found = about.config(prepared_cell([*(o for o in tiny if "limits" not in o), *files]))
    assert found["data/path"] == tmp_path.name and found["data/source_lang"] == "fr"
    assert not [key for key, value in found.items() if "/" in str(value)]


def test_a_cell_of_a_table_has_its_row_column_and_experiment(prepared_cell, tiny, tmp_path, clean):
    asked = {"sweep": "night", "row": "sparsegen-lin lam=-1.0", "column": "fren_demo"}
    mine = replace(prepared_cell([*tiny, "mapping=softmax", "logger=wandb", f"paths.outputs={tmp_path}"]), origin=asked)
    outcome = cells.run(mine, Store(tmp_path), loggers=make_loggers)
    assert outcome.state == "done", outcome.error
    (run,) = offline(tmp_path)  # without a key: offline
    assert (run["name"], run["group"]) == ("sparsegen-lin lam=-1.0, fren_demo, seed 1", "night")
    assert asked.items() <= run["config"].items() and run["project"] == "sparse-attention"


def test_a_server_that_never_answers_costs_the_timeout(script, tiny, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        given = {"WANDB_BASE_URL": url, "WANDB_API_KEY": KEY, "WANDB_MODE": "online"}
        asked = ("mapping=softmax", "logger=wandb", "logger.wandb.timeout=4", f"paths.outputs={tmp_path}")
        done = script("train.py", *tiny, *asked, **given)
        ended = time.time()  # nothing of wandb's may hold up the end of the process
    assert done.returncode == 0 and KEY not in done.stdout + done.stderr, done.stderr
    assert done.stderr.count("logger wandb failed in start and is switched off: ") == 1, done.stderr
    (log,) = tmp_path.glob("cells/*/*/*/log.txt")
    assert log.read_text().count("is switched off") == 1 and KEY not in log.read_text()
    assert ended - log.with_name("manifest.json").stat().st_mtime < 15


def test_a_silent_server_is_asked_once_for_a_few_seconds(prepared_cell, tiny, tmp_path, clean):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        clean.setenv("WANDB_API_KEY", KEY)
        clean.setenv("WANDB_BASE_URL", url)
        cell = prepared_cell((*tiny, "logger=wandb", "logger.wandb.timeout=6", f"paths.outputs={tmp_path}"))
        times = []
        for expected in (nullcontext(), pytest.raises(ConnectionError, match=NO_ONE)):
            started = time.monotonic()
            with expected:
                logger = make_loggers(cell)[0]
                logger.start()
                assert logger.run.offline and f"{url} does not answer" in logger.said
                logger.finish(None, "failed")
            times.append(time.monotonic() - started)
            clean.setenv("WANDB_MODE", "online")
    assert 3 <= times[0] < 20 and times[1] < 2  # half of the timeout, once


def test_a_run_without_a_server_is_kept_offline_whole_and_can_be_sent(prepared_cell, tiny, tmp_path, server, clean):
    """With the default timeout: wandb itself would try for 48 seconds and keep nothing."""
    clean.setenv("WANDB_API_KEY", KEY)
    clean.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    cell, said = prepared_cell((*tiny, "logger=wandb", f"paths.outputs={tmp_path / 'a b'}")), []
    started = time.monotonic()
    outcome = cells.run(cell, Store(tmp_path / "a b"), forward=lambda *told: said.append(told), loggers=make_loggers)
    assert outcome.state == "done" and time.monotonic() - started < 45, outcome.error
    (run,), (note,) = offline(tmp_path / "a b"), [one for one in map(str, said) if "kept offline" in one]
    results = cell.results(Store(tmp_path / "a b"))
    assert run["summary"]["test/bleu"] == results.metrics["test/bleu"] and len(run["history"]) >= 1
    assert "127.0.0.1:9 does not answer" in note
    python, *command = shlex.split(re.search("send it with: (.*?sync '.*?')", note)[1])
    env = {**os.environ, "WANDB_BASE_URL": server.url}
    how = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *command], check=False, **how)
    assert python == "python" and done.returncode == 0, done.stdout + done.stderr
    assert server.runs.pop(cell.training_id)["summary"]["test/bleu"] == results.metrics["test/bleu"]
    server.files.clear()


def test_a_server_that_answers_with_an_error_is_there(server, clean):
    from tasks.loggers import wandb

    clean.setenv("WANDB_BASE_URL", server.url)
    assert wandb.unanswered(5.0) == ""
    server.status = 404
    try:
        assert wandb.unanswered(5.0) == ""
    finally:
        del server.status


@pytest.fixture(scope="module")
def server():
    from server import Server

    running = Server()
    yield running
    running.shutdown()


@pytest.fixture
def online(server, tmp_path, clean):
    """With a key for the server."""
    for name, value in {"BASE_URL": server.url, "API_KEY": KEY, "MODE": "online", "DIR": str(tmp_path / "w")}.items():
        clean.setenv(f"WANDB_{name}", value)
    return clean


def test_upload_sends_a_finished_cell_once(trained, outputs, online, server, script, command, capsys):
    before = {p: p.read_bytes() for p in (outputs / "cells").rglob("*") if p.is_file()}
    asked = ("mapping=sparsemax", "seed=3", f"paths.outputs={outputs}")
    done = script("store.py", "upload", *asked)
    assert done.returncode == 0, done.stderr
    ((key, run),) = server.runs.items()
    assert done.stdout.strip() == f"[1/1] toy/sparsemax/{key}: sent"
    (same,) = [r for r in offline(trained) if r["id"] == key]
    assert (run["displayName"], run["groupName"], run["jobType"]) == (same["name"], same["group"], same["job_type"])
    numbers = {k: v for k, v in same["summary"].items() if isinstance(v, (int, float)) and "/" in k}
    shown = {k: v for k, v in numbers.items() if not k.startswith(("curve/", "_", "attention/", "samples/"))}
    assert len(shown) > 10 and {k: run["summary"][k] for k in shown} == pytest.approx(shown)
    assert [row["epoch"] for row in run["history"] if "epoch" in row] == [1]
    assert sum(name.endswith(".png") for name in server.files) == 3
    assert any(name.endswith(".table.json") for name in server.files)
    lines = len(run["history"])
    assert command("store", "upload", *asked) == 0
    assert capsys.readouterr().out.strip() == f"[1/1] toy/sparsemax/{key}: there already"
    assert len(server.runs[key]["history"]) == lines and run["summary"]["state"] == "done"
    assert {p: p.read_bytes() for p in (outputs / "cells").rglob("*") if p.is_file()} == before


def test_an_upload_without_a_server_says_so_and_ends(trained, outputs, online, command, capsys):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        online.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{gone.getsockname()[1]}")
    assert command("store", "upload", "seed=3", "logger.wandb.timeout=2", f"paths.outputs={outputs}") == 1
    told = capsys.readouterr().err
    assert "are not sent" in told and "to continue there" in told


@pytest.fixture
def page(tiny):
    """An experiment whose second and third column ask for the cells of `trained`."""
    columns = {"other": ["optim.lr=0.3"], "first": [], "second": []}
    show = [{"metric": "test/bleu", "label": "BLEU"}]
    made = {"title": "An experiment", "profiles": {"demo": {"columns": list(columns), "seeds": [3]}}}
    made["rows"] = [{"label": label, "mapping": f"{label}max"} for label in ("fused", "sparse")]
    made["columns"] = {k: {"label": k, "overrides": [*tiny, *more], "show": show} for k, more in columns.items()}
    return made


def test_upload_for_an_experiment_has_its_rows_and_goes_once(trained, outputs, page, command, clean, capsys, tmp_path):
    clean.setenv("WANDB_MODE", "offline")
    clean.setenv("WANDB_DIR", str(tmp_path / "w"))
    clean.setattr(compose, "page", lambda *_: page)
    clean.setattr(compose, "experiment", lambda name, profile: experiment.read(page, name, profile))
    call = ("store", "upload", "experiment=mine", f"paths.outputs={outputs}")
    for wanted in ("written to RUN (offline)", "here already (offline)"):
        assert command(*call) == 0
        lines = capsys.readouterr().out.splitlines()
        written = [Path(line.rpartition(": python -m wandb sync ")[2]) for line in lines]
        assert sorted(written) == sorted((tmp_path / "w" / "wandb").glob("offline-run-*")) and len(written) == 2
        for line, run in zip(lines, written):
            said = line.partition("] ")[2].partition(": ")[2].replace(f"to {run}", "to RUN")
            assert said == f"{wanted}; send it with: python -m wandb sync {run}"
    runs = offline(tmp_path / "w")
    assert [run["name"] for run in runs] == ["fused, first, seed 3", "sparse, first, seed 3"]
    for run in runs:
        (live,) = [r for r in offline(trained) if r["id"] == run["id"]]
        asked = {key: run["config"].pop(key) for key in ("experiment", "row", "column", "heading")}
        assert (run["group"], asked["experiment"], asked["column"]) == ("mine", "mine", "first")
        assert live["group"] == "toy"
        for one in (run, live):
            del one["config"]["_wandb"]
        assert all(run[key] == live[key] for key in ("job_type", "config"))


def test_dashboard_has_the_rows_columns_and_metrics_of_the_experiment(online, server, command, capsys):
    pytest.importorskip("wandb_workspaces")
    server.views.clear()
    assert command("store", "dashboard", "laha2018_table2", "entity=me") == 0
    told = capsys.readouterr().out
    one = compose.experiment("laha2018_table2", "demo")
    report, *workspaces = server.views
    assert [w["displayName"] for w in workspaces] == [f"laha2018_table2 demo: {c.key}" for c in one.columns]
    assert told.count("workspace ") == len(one.columns) and "report: http" in told
    for column, view in zip(one.columns, workspaces):
        spec = json.loads(view["spec"])["section"]
        (section,) = spec["panelBankConfig"]["sections"]
        assert section["name"] == column.label
        drawn = json.dumps(section["panels"])
        assert all(show.metric in drawn for show in column.show) and f"curve/{column.select.metric}" in drawn
        (runs,) = spec["runSets"]
        told = json.dumps(runs["filters"])
        assert column.key in told and one.name in told and one.profile in told
        assert "row" in json.dumps(runs["grouping"])
    text = report["spec"]
    assert all(c.label in text for c in one.columns) and "sparsehourglass" in text
    assert report["projectName"] == "sparse-attention" and report["entityName"] == "me"


REFUSED = """
upload maping=sparsemax | 'mapping'?; upload logger.wandb.projct=x | 'project'?; upload mapping=sparsmax | sparsmax
upload logger.wandb.timeout=0 | above 0; dashboard laha2018_tabel2 | laha2018_table2
dashboard demo profil=cpu | '--profile'; dashboard demo profile=cpux | cpux; dashboard | required: EXPERIMENT
"""


@pytest.mark.parametrize("line", REFUSED.strip().replace("\n", ";").split(";"))
def test_what_is_not_known_is_refused(trained, outputs, command, capsys, line):
    asked, said = line.split("|")
    name, *arguments = asked.split()
    place = [f"paths.outputs={outputs}"] if name == "upload" else []
    assert command("store", name, *arguments, *place) == 2
    assert said.strip() in capsys.readouterr().err


NO_ANSWER = pytest.param(KEY, "did not respond in time", id="no answer", marks=pytest.mark.slow)


@pytest.mark.parametrize("key, said", [pytest.param("", "not logged in", id="no key"), NO_ANSWER])
def test_a_dashboard_without_key_or_server_is_one_sentence(script, clean, key, said):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        given = {"WANDB_API_KEY": key, "WANDB_BASE_URL": url, "WANDB_HTTP_TIMEOUT": "1"}
        started = time.monotonic()
        done = script("store.py", "dashboard", "demo", "entity=me", **given)
    assert time.monotonic() - started < 40 and done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: wandb: ") and said in line and "WANDB_API_KEY" in line and KEY not in line
