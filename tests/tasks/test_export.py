"""A cell exported as a folder that stands alone, read back, refused when damaged; what stays of a finished training."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from repro import cell as cells
from repro.store import Damaged, Store, StoreError
from tasks.load import NoCell, evaluate, load_cell
from tasks.load.export import export


@pytest.fixture(scope="module")
def exported(small_cell, tmp_path_factory):
    """`exported(name)`: (folder, cell, entry)."""
    done = {}

    def run(name: str):
        if name not in done:
            cell, entry = small_cell(name)
            folder = tmp_path_factory.mktemp("exported") / name
            done[name] = export(str(entry.folder), folder), cell, entry
        return done[name]

    return run


def inputs_of(cell, entry) -> list[str]:
    return [r["source"] for r in entry.evaluation(cell.evaluation_id(cell.tests[0])).predictions()]


def test_it_says_what_the_cell_says_without_the_store(exported, tmp_path):
    folder, cell, entry = exported("pairs")
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    sources = inputs_of(cell, entry)
    ours, theirs = (load_cell(place).translate(sources) for place in (moved, entry.folder))
    assert [p.output for p in ours] == [p.output for p in theirs]
    assert all(torch.equal(a.attention, b.attention) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("name", ["sentiment", "multilabel"])
def test_other_tasks_are_read_back(exported, name):
    folder, _, entry = exported(name)
    ours = load_cell(folder)
    raw = torch.eye(6, ours.encoding.features).numpy() if name == "multilabel" else ["nice film", "bad"]
    assert [str(p) for p in ours.predict(raw)] == [str(p) for p in load_cell(entry.folder).predict(raw)]


def test_nothing_of_the_machine_goes_along(exported):
    folder, _, entry = exported("pairs")
    store = str(entry.folder.parents[3])
    for path in folder.rglob("*"):
        if path.suffix in (".yaml", ".json", ".md", ".csv"):
            assert store not in path.read_text(), path
    page = yaml.safe_load((folder / "config.yaml").read_text())
    assert page["paths"] == {"outputs": "outputs", "data": "data/cache"} and page["runtime"]["device"] == "auto"
    assert not list(folder.rglob("*.pt"))


def test_the_card_has_the_row_and_the_data(exported):
    folder, cell, entry = exported("pairs")
    text = (folder / "README.md").read_text()
    metrics = entry.evaluation(cell.evaluation_id(cell.tests[0])).read()["metrics"]
    assert f"| test | bleu | {metrics['test/bleu']:.2f} BLEU points | " in text
    assert "attention by sparsemax" in text and cell.training_id in text and "Licence of the data: " in text
    assert entry.read()["data_sha256"] in text and "'beam': 2" in text


@pytest.mark.parametrize("name", ["weights.safetensors", "encoding/dict.source.txt", "config.yaml"])
def test_a_damaged_export_is_refused(exported, tmp_path, name):
    folder = shutil.copytree(exported("pairs")[0], tmp_path / "damaged")
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole.replace(b"lr: 0.01", b"lr: 0.02") if name == "config.yaml" else whole[:-1] + b"?")
    assert (folder / name).read_bytes() != whole
    with pytest.raises(Damaged, match=re.escape(f"{name} is not what was written")):
        load_cell(folder)
    (folder / name).unlink()
    with pytest.raises((Damaged, NoCell), match=re.escape(name) if name != "config.yaml" else "has no config.yaml"):
        load_cell(folder)


def test_the_card_may_be_edited(exported, tmp_path):
    folder = shutil.copytree(exported("pairs")[0], tmp_path / "edited")
    (folder / "README.md").write_text("ours")
    load_cell(folder)


def test_a_folder_that_is_there_is_not_written_over(exported, tmp_path):
    with pytest.raises(StoreError, match="exists already"):
        export(str(exported("pairs")[2].folder), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_scored_in_a_store_alone(exported, tmp_path):
    folder, cell, entry = exported("pairs")
    with pytest.raises(NoCell, match=r"copy it to OUTPUTS/cells/toy/sparsemax/ID"):
        evaluate(str(folder))
    place = shutil.copytree(folder, tmp_path / "cells" / "toy" / "sparsemax" / cell.training_id)
    data = cell.config["paths"]["data"]
    found = evaluate(str(place), [f"paths.data={data}"])
    assert found.metrics["test/bleu"] == cell.found(Store(entry.folder.parents[3])).metrics["test/bleu"]


def test_an_export_is_exported_again_with_its_scores(exported, tmp_path):
    folder, *_ = exported("pairs")
    again = export(str(folder), tmp_path / "again")
    assert (again / "evaluations.json").read_bytes() == (folder / "evaluations.json").read_bytes()


@pytest.mark.slow
def test_fairseq_generate_reads_it(small_cell, tmp_path, root):
    cell, entry = small_cell("pairs")
    sources = inputs_of(cell, entry)
    (tmp_path / "sources").write_text("\n".join(sources) + "\n")
    command = [sys.executable, str(root / "scripts/export.py"), str(entry.folder), str(tmp_path / "out"),
               "--fairseq", str(tmp_path / "sources")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    decode = cell.config["decode"]
    command = [
        str(Path(sys.executable).parent / "fairseq-generate"), str(tmp_path / "out/fairseq/data"), "--path",
        str(tmp_path / "out/fairseq/model.pt"), "--task", "sa_pairs", "--user-dir", str(root / "tasks/fairseq_plugin"), "--cpu",
        "--beam", str(decode["beam"]), "--max-len-a", str(decode["max_len_a"]), "--max-len-b", str(decode["max_len_b"]),
        "--lenpen", str(decode["len_penalty"]),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = {int(i): line.split() for i, line in re.findall(r"^H-(\d+)\t\S+\t(.*)$", done.stdout, re.M)}
    ours = load_cell(entry.folder, overrides=["decode.replace_unk=false"]).translate(sources)
    assert [said[i] for i in range(len(sources))] == [p.output_tokens[:-1] for p in ours]
    load_cell(tmp_path / "out")


def test_the_best_weights_alone_stay(small_cell, prepared_cell, tiny, tmp_path):
    cell, entry = small_cell("pairs")
    assert not entry.path("checkpoints").exists() and entry.path("weights.safetensors").is_file()
    kept = prepared_cell([*tiny, "mapping=sparsemax", "runtime.keep_checkpoints=true"])
    assert kept.training_id == cell.training_id, "it says nothing of what is computed"
    assert cells.run(kept, Store(tmp_path)).state == "done"
    names = sorted(p.name for p in kept.entry(Store(tmp_path)).path("checkpoints").iterdir())
    assert names == ["last.pt"]
