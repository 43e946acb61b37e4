"""A cell exported as a folder that stands alone, read back, refused when damaged; what stays of a finished training."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from repro.errors import ConfigError, StoreError
from repro.protocol import Metric
from repro.store import Damaged, Store
from tasks.use import card, evaluate, lines, load_cell
from tasks.use.export import export

ALONE = """
import os, runpy, sys
absent, *sys.argv = sys.argv[1:]
sys.modules |= dict.fromkeys(absent.split(","))  # importing these raises ModuleNotFoundError
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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


def spelt(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(*names: str) -> set[str]:
    """The distributions `names` and all that they need, without extras."""
    found, todo = set(), [*names]
    while todo:
        if (name := spelt(todo.pop())) not in found:
            found.add(name)
            with suppress(metadata.PackageNotFoundError):
                asked = metadata.requires(name) or ()
                todo += [re.match(r"[\w.-]+", one)[0] for one in asked if "extra ==" not in one]
    return found


OTHERS = ("transformer", "vectors", "reviews", "esim", "vqa", "multilabel")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]


@pytest.mark.parametrize("name", ["pairs", *OTHERS])
def test_a_folder_predicts_with_the_packages_that_the_guide_names(exported, vqa2_folder, root, name):
    """In a process that can import nothing else, it says what the cell says."""
    folder, _, entry = exported(name)
    guide = (root / "docs/guides/predict.md").read_text()
    packages = re.search(r"^pip install (.*)$", guide, re.M)[1].split()
    packages += {"transformer": ["sacremoses", "subword-nmt"], "vqa": ["pillow"]}.get(name, [])
    assert all(f"`{one}`" in guide for one in packages[5:])
    kept = needed(*packages) | {"sparse-attention"}
    absent = [m for m, owners in metadata.packages_distributions().items() if kept.isdisjoint(map(spelt, owners))]
    assert {"fairseq", "hydra", "omegaconf", "wandb", "sklearn", "scipy", "pandas"} <= set(absent)

    overrides = ["decode.beam=3"] if name in ("pairs", "transformer") else []
    model = load_cell(entry.folder, overrides=overrides)
    text = " ".join(["nice", "film", *getattr(model.encoding, "source_vocab", ())[:4]])
    image = next(path for kind in ("*.jpg", "*.png") for path in vqa2_folder.rglob(kind))
    typed = {"esim": f"{text}\tbad", "vqa": f"{image}\twhat is it?", "multilabel": " ".join(["0.5"] * 10)}
    line = typed.get(name, text)
    command = [sys.executable, "-c", ALONE, ",".join(absent), str(root / "scripts/predict.py")]
    command += [str(folder), "--nbest=2", *overrides]

    def run(raw: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, input=raw, capture_output=True, text=True, check=False, cwd=folder.parent)

    done = run(line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*lines.printed(model.predict(lines.parsed(line.encode(), model), nbest=2), 2)]
    if name == "multilabel":
        done = run(f"{line}\n{line[3:]} nan\n")
        assert done.returncode == 1 and not done.stdout and "line 2:" in done.stderr


def test_nothing_of_the_machine_goes_along_and_the_best_weights_stay(exported, prepared_cell, ran, tiny, tmp_path):
    folder, cell, entry = exported("pairs")
    store = str(entry.folder.parents[3])
    for path in folder.rglob("*"):
        if path.suffix in (".yaml", ".json", ".md", ".csv"):
            assert store not in path.read_text(), path
    page = yaml.safe_load((folder / "config.yaml").read_text())
    assert page["paths"] == {"outputs": "outputs", "data": "data/cache"} and page["runtime"]["device"] == "auto"
    assert not list(folder.rglob("*.pt"))
    text = (folder / "README.md").read_text()
    metrics = entry.evaluation(cell.evaluation_id(cell.tests[0])).read()["metrics"]
    assert f"| test | bleu | {metrics['test/bleu']:.2f} BLEU points | " in text
    assert "attention by sparsemax" in text and cell.training_id in text and "Licence of the data: " in text
    assert entry.read()["data_sha256"] in text and "'beam': 2" in text
    assert not entry.path("checkpoints").exists() and entry.path("weights.safetensors").is_file()
    kept = prepared_cell([*tiny, "mapping=sparsemax", "runtime.keep_checkpoints=true"])
    assert kept.training_id == cell.training_id, "it says nothing of what is computed"
    assert [p.name for p in ran(kept, Store(tmp_path)).path("checkpoints").iterdir()] == ["last.pt"]


def test_the_hub_reads_the_card(exported):
    folder, cell, entry = exported("sentiment")
    page = folder / "README.md"
    level = entry.evaluation(cell.evaluation_id(cell.tests[0]))
    right = np.array([r["sentence"]["accuracy"] for r in level.predictions()])
    half = 1.96 * right.std(ddof=1) / len(right) ** 0.5
    assert f"{right.mean() - half:.1f}, {right.mean() + half:.1f} | 12 |" in page.read_text()
    data = ModelCard.load(page).data
    kind = (data.pipeline_tag, data.datasets, data.library_name)
    assert kind == ("text-classification", ["toy_reviews"], "sparse-attention")
    accuracy, loss = data.eval_results
    assert [(r.metric_type, r.metric_args["n"]) for r in (accuracy, loss)] == [("accuracy", 12), ("loss", 12)]
    assert accuracy.metric_value == level.read()["metrics"]["test/accuracy"] == pytest.approx(right.mean())
    ends = pytest.approx([right.mean() - half, right.mean() + half], rel=1e-4)
    assert accuracy.metric_args["interval_95_over_examples"] == ends
    metrics = {"a": Metric("a", "", 1, 1, None, "", "mean"), "b": Metric("b", "", 1, 1, None, "", "bleu")}
    ten = [[4, 3, 2, 1, 5, 4, 3, 2, 5, 5], [5, 4, 3, 2, 5, 4, 3, 2, 5, 5], [3, 2, 1, 1, 5, 4, 3, 2, 5, 5]]
    records = [{"sentence": {"a": 1.0, "b_statistics": row}} for row in ten]  # values of a do not differ
    found = card.intervals(metrics, {"metrics": {"test/a": 1.0, "test/b": 60.0, "test/c": 0.0}}, records)
    assert list(found) == ["test/b"]
    low, high = found["test/b"]
    assert low < 60 < high and high - 60 == pytest.approx(60 - low)


@pytest.mark.parametrize("name", ["weights.safetensors", "encoding/dict.source.txt", "config.yaml"])
def test_a_damaged_export_is_refused(exported, tmp_path, name):
    folder = shutil.copytree(exported("pairs")[0], tmp_path / "damaged")
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole.replace(b"lr: 0.01", b"lr: 0.02") if name == "config.yaml" else whole[:-1] + b"?")
    assert (folder / name).read_bytes() != whole
    with pytest.raises(Damaged, match=re.escape(f"{name} is not what was written")):
        load_cell(folder)
    (folder / name).unlink()
    said = re.escape(name) if name != "config.yaml" else "has no config.yaml"
    with pytest.raises((Damaged, ConfigError), match=said):
        load_cell(folder)


def test_an_export_is_scored_in_a_store_alone_and_exported_again_into_a_new_folder(exported, tmp_path):
    """With its scores, also if its card was edited."""
    source, cell, entry = exported("pairs")
    with pytest.raises(ConfigError, match=r"copy it to OUTPUTS/cells/toy/sparsemax/ID"):
        evaluate(str(source))
    place = shutil.copytree(source, tmp_path / "cells" / "toy" / "sparsemax" / cell.training_id)
    found = evaluate(str(place), [f"paths.data={cell.config['paths']['data']}"])
    assert found.metrics["test/bleu"] == cell.results(Store(entry.folder.parents[3])).metrics["test/bleu"]
    folder = shutil.copytree(source, tmp_path / "edited")
    (folder / "README.md").write_text("ours")
    load_cell(folder)
    again = export(str(folder), tmp_path / "again")
    assert (again / "evaluations.json").read_bytes() == (folder / "evaluations.json").read_bytes()
    (full := tmp_path / "full").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        export(str(folder), full)
    assert list(full.iterdir()) == []


@pytest.mark.slow
def test_fairseq_generate_reads_it(small_cell, tmp_path, root):
    cell, entry = small_cell("pairs")
    sources = [r["source"] for r in entry.evaluation(cell.evaluation_id(cell.tests[0])).predictions()]
    (tmp_path / "sources").write_text("\n".join(sources) + "\n")
    command = [sys.executable, str(root / "scripts/export.py"), str(entry.folder), str(tmp_path / "out")]
    command += ["--fairseq", str(tmp_path / "sources")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    decode = cell.config["decode"]
    how = f"--beam {decode['beam']} --max-len-a {decode['max_len_a']} --max-len-b {decode['max_len_b']}".split()
    how += ["--lenpen", str(decode["len_penalty"]), "--user-dir", str(root / "tasks/fairseq_plugin"), "--cpu"]
    made = tmp_path / "out/fairseq"
    command = [str(Path(sys.executable).parent / "fairseq-generate"), str(made / "data"), "--task", "sa_pairs", *how]
    command += ["--path", str(made / "model.pt")]
    env = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    said = {int(i): line.split() for i, line in re.findall(r"^H-(\d+)\t\S+\t(.*)$", done.stdout, re.M)}
    ours = load_cell(entry.folder, overrides=["decode.replace_unk=false"]).translate(sources)
    assert [said[i] for i in range(len(sources))] == [p.output_tokens[:-1] for p in ours]
    load_cell(tmp_path / "out")
