"""Exported models that predict without this repository: in a process that cannot import it, they say what the cell says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import yaml

from repro import cell as cells
from repro.protocol import Metric
from repro.store import Store
from sparse_attention import registry
from tasks.config import models
from tasks.load import card, lines, load_cell, standalone
from tasks.load.export import export
from tasks.load.standalone import sources

# Starts as `python predict.py` does, but refuses to import this repository and packages that it needs; what
# `predict` returned follows on standard error.
CLEAN = """
import json, runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tasks", "repro", "scripts", "fairseq", "hydra", "omegaconf", "yaml", "scipy", "rich"):
            raise ImportError("refused: " + name)
sys.meta_path.insert(0, Refuse())
folder, site, *sys.argv[1:] = sys.argv[1:]
sys.path[:0] = [folder, site]
from model.load.standalone import opening
answer, found = opening.answer, []
opening.answer = lambda predict, *more, **named: answer(lambda x: found.extend(predict(x)) or found, *more, **named)
runpy.run_path(folder + "/predict.py", run_name="__main__")
print(json.dumps(found), file=sys.stderr)
"""
PLUGIN = """
import torch
import sparse_attention as sa

@sa.register("half_sparsemax", paper="none", oracle="none", replace=True)
def half_sparsemax(scores, mask=None, share: float = 0.5):
    return sa.sparsemax(share * scores, mask=mask)
"""


@pytest.fixture(scope="module")
def alone(root, tmp_path_factory):
    """`alone(folder, raw, *arguments)`: run a copy of an exported folder on the bytes `raw`; the finished process."""
    site = tmp_path_factory.mktemp("site")
    (site / "sparse_attention").symlink_to(root / "sparse_attention")

    def run(folder: Path, raw: bytes, *more: str) -> subprocess.CompletedProcess:
        moved = shutil.copytree(folder, tmp_path_factory.mktemp("moved") / "m")
        command = [sys.executable, "-I", "-W", "ignore", "-c", CLEAN, str(moved), str(site), *more]
        return subprocess.run(command, input=raw, capture_output=True, cwd=site, check=False)

    return run


def inputs_of(model, vqa2_folder) -> str:
    """Twenty inputs from the model's vocabulary; among texts, an empty, an unknown and a long one."""
    draw = np.random.default_rng(0)
    if model.name == "multilabel":
        return "\n".join(" ".join(map(str, row)) for row in draw.random((20, model.encoding.features)))
    known = {"seq2seq": "source_vocab", "classification": "vocabulary", "vqa": "words"}[model.name]
    words = getattr(model.encoding, known)
    texts = [" ".join(draw.choice(words, size)) for size in draw.integers(1, 9, 36)] + [
        "",
        "never seen",
        "",
        " ".join(draw.choice(words, 70)),
    ]
    images = sorted(str(path) for kind in ("*.jpg", "*.png") for path in vqa2_folder.rglob(kind))
    if model.name == "vqa":
        return "\n".join(f"{images[i % len(images)]}\t{text}" for i, text in enumerate(texts[20:]))
    pairs = model.name == "classification" and "\t".join(lines.read_meta(model.encoding.folder)["fields"]).count("\t")
    return "\n".join(f"{a}\t{b}" if pairs else b for a, b in zip(texts, texts[20:]))


def agrees(done: subprocess.CompletedProcess, model, raw: bytes) -> None:
    assert done.returncode == 0, done.stderr.decode()
    theirs = model.predict(lines.parsed(raw, model))
    assert len(theirs) == 20
    assert done.stdout.decode().splitlines() == list(lines.printed(theirs, 1))
    ours = json.loads(done.stderr.decode().splitlines()[-1])
    assert [score for _, score in ours] == pytest.approx([p.score for p in theirs], abs=1e-5)


@pytest.mark.parametrize(
    "name", ["pairs", "transformer", "sentiment", "entailment", "esim", "multilabel", "vqa", "questions"]
)
def test_the_program_says_what_the_cell_says(alone, small_cell, vqa2_folder, tmp_path, name):
    entry = small_cell(name)[1]
    model = load_cell(entry.folder)
    raw = inputs_of(model, vqa2_folder).encode()
    folder = export(str(entry.folder), tmp_path / "out")
    agrees(alone(folder, raw), model, raw)
    assert not re.search(
        r"^\s*(from|import) (tasks|repro)\b", "".join(p.read_text() for p in folder.rglob("*.py")), re.M
    )
    assert load_cell(export(str(folder), tmp_path / "again")).config["model"] == model.config["model"]


def test_a_plugin_and_fixed_vectors_go_along(alone, prepared_cell, vqa2_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))  # the plugin's mapping stays in this test
    plugin = tmp_path / "own.py"
    plugin.write_text(PLUGIN)
    asked = [
        "task=imdb", "data=toy_reviews", "profile=demo", "runtime.device=cpu", "train.max_epochs=1", "train.batch_size=10",
        "data.limits={train: 60, dev: 20, test: 12}", "model.hidden_dim=8", "model.score_dim=8", "encode.vectors=ppmi",
        "encode.vector_dim=6", "model.fixed_vectors=true", f"plugins=[{plugin}]", "mapping=custom", "mapping.name=half_sparsemax",
        "+mapping.share=0.25",
    ]  # fmt: skip
    cell, store = prepared_cell(asked), Store(tmp_path / "store")
    assert cells.run(cell, store).state == "done"
    place = cell.entry(store).folder
    assert (place / "encoding" / "vectors.npy").is_file()
    model, folder = load_cell(place), export(str(place), tmp_path / "out")
    raw = inputs_of(model, vqa2_folder).encode()
    agrees(alone(folder, raw), model, raw)


@pytest.mark.parametrize(
    ("name", "raw", "why"),
    [
        ("entailment", b"no tab", "line 1 has 1 field"), ("vqa", b"nowhere.png\twhat", "'nowhere.png' cannot be read"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_one_sentence(alone, small_cell, tmp_path, name, raw, why):
    done = alone(export(str(small_cell(name)[1].folder), tmp_path / "out"), raw)
    assert done.returncode == 1 and why in done.stderr.decode() and "Traceback" not in done.stderr.decode()


def test_the_program_is_short_and_explains_itself(alone, small_cell, tmp_path, root):
    programs = [root / "tasks/load/standalone" / f"{family}.py" for family in standalone.FAMILIES]
    assert all(len(p.read_text().splitlines()) <= 30 for p in programs)
    folder = export(str(small_cell("multilabel")[1].folder), tmp_path / "out")
    asked, refused = alone(folder, b"", "--help"), alone(folder, b"", "reviews.txt")
    assert asked.returncode == 0 and b"python predict.py < input" in asked.stdout
    assert (
        refused.returncode == 1
        and b"'reviews.txt' is not used: the inputs are lines of standard input" in refused.stderr
    )


@pytest.mark.parametrize("name", ["sentiment", "multilabel", "vqa"])
def test_no_input_gives_no_output(alone, small_cell, tmp_path, name):
    done = alone(export(str(small_cell(name)[1].folder), tmp_path / "out"), b"")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()


def test_every_architecture_is_copied_without_its_options(tmp_path, root):
    known = [
        f"tasks.{family}.models.{name}"
        for family in ("seq2seq", "classification", "vqa")
        for name in models.names(family)
    ]
    assert len(known) >= 8
    files = sources.copied("tasks.load.standalone.multilabel", {module: ["Model"] for module in known})
    assert not [path for path in files if "config" in path]
    assert "class Options" not in "".join(files.values())
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]; sys.modules['tasks'] = None; "
    code += "; ".join(f"import {module.replace('tasks', 'model', 1)}" for module in known)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"tasks\.data\.symbols defines no 'NOTHING' at its top"):
        sources.copied("tasks.load.standalone.multilabel", {"tasks.data.symbols": ["NOTHING"]})


@pytest.mark.parametrize(
    ("config", "image", "why"),
    [
        ({"task": {"family": "fertility", "name": "fertility"}, "model": {}}, None, "no output of its own"),
        ({"task": {"family": "seq2seq"}, "model": {"fertility": "actual"}}, None, "needs the reference"),
        ({"task": {"family": "seq2seq"}, "model": {"fertility": "guided"}}, None, None),
        ({"task": {"family": "vqa"}, "model": {}}, {"kind": "features", "grid": [2, 2], "channels": 8}, "reads features"),
        ({"task": {"family": "vqa"}, "model": {}}, {"kind": "features", "grid": [2, 2], "channels": 1}, None),
        ({"task": {"family": "vqa"}, "model": {}}, {"kind": "pixels", "grid": [16, 16], "channels": 3}, None),
    ],
)  # fmt: skip
def test_what_needs_the_repository_is_named(tmp_path, config, image, why):
    (tmp_path / "meta.json").write_text(json.dumps({"image": image}))
    refused = standalone.refused(config, tmp_path)
    assert refused is None if why is None else why in refused


def test_a_refused_model_is_exported_as_before(small_cell, tmp_path, monkeypatch):
    entry, said = small_cell("pairs")[1], []
    first = export(str(entry.folder), tmp_path / "first")
    monkeypatch.setattr(standalone, "refused", lambda config, encoding: "it reads minds")
    folder = export(str(first), tmp_path / "out", say=said.append)
    assert said == [f"{folder} has no predict.py: it reads minds"]
    assert not [path for name in standalone.WRITTEN for path in folder.glob(name)]
    assert "This model needs its project: it reads minds." in (folder / "README.md").read_text()
    load_cell(folder)


def test_the_tokeniser_and_subwords_are_required(small_cell, tmp_path):
    cell = small_cell("pairs")[0]
    config = dict(cell.config) | {"encode": {"tokenizer": "moses_lower", "subword": "bpe"}}
    standalone.write(tmp_path, config)
    text = (tmp_path / "requirements.txt").read_text()
    (wheel,) = tmp_path.glob("*.whl")
    assert text.splitlines()[0] == f"./{wheel.name}"
    assert text.splitlines()[1:] == ["torch", "numpy", "safetensors", "sacremoses", "subword-nmt"]


def test_the_hub_reads_the_card(small_cell, tmp_path):
    cell, entry = small_cell("sentiment")
    page = export(str(entry.folder), tmp_path / "out") / "README.md"
    front = yaml.safe_load(page.read_text().split("---\n")[1])
    level = entry.evaluation(cell.evaluation_id(cell.tests[0]))
    right = np.array([r["sentence"]["accuracy"] for r in level.predictions()])
    half = 1.96 * right.std(ddof=1) / len(right) ** 0.5
    accuracy = front["model-index"][0]["results"][0]["metrics"][0]
    assert accuracy["value"] == level.read()["metrics"]["test/accuracy"] == pytest.approx(right.mean())
    assert accuracy["args"]["n"] == len(right) == 12
    assert accuracy["args"]["interval_95_over_examples"] == pytest.approx(
        [right.mean() - half, right.mean() + half], rel=1e-4
    )
    assert f"{right.mean() - half:.1f}, {right.mean() + half:.1f} | 12 |" in page.read_text()
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    data = hub.ModelCard.load(page).data
    assert (data.pipeline_tag, data.datasets, data.library_name) == (
        "text-classification",
        ["toy_reviews"],
        "sparse-attention",
    )
    assert [(r.metric_type, r.metric_args["n"]) for r in data.eval_results] == [("accuracy", 12), ("loss", 12)]


def test_an_interval_needs_values_that_differ():
    metrics = {"a": Metric("a", "", 1, 1, None, "", "mean"), "b": Metric("b", "", 1, 1, None, "", "bleu")}
    ten = [[4, 3, 2, 1, 5, 4, 3, 2, 5, 5], [5, 4, 3, 2, 5, 4, 3, 2, 5, 5], [3, 2, 1, 1, 5, 4, 3, 2, 5, 5]]
    records = [{"sentence": {"a": 1.0, "b_statistics": row}} for row in ten]
    found = card.intervals(metrics, {"metrics": {"test/a": 1.0, "test/b": 60.0, "test/c": 0.0}}, records)
    assert list(found) == ["test/b"]
    low, high = found["test/b"]
    assert low < 60 < high and high - 60 == pytest.approx(60 - low)


def closure(names) -> set[str]:
    """The installed distributions that the packages `names` need, themselves included."""
    from packaging.requirements import Requirement

    found, todo = set(), [Requirement(name) for name in names]
    while todo:
        asked = todo.pop()
        key = asked.name, *sorted(asked.extras)
        if key in found or (dist := distribution(asked.name)) is None:
            continue
        found.add(key)
        for needed in map(Requirement, dist.requires or ()):
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in ("", *asked.extras)):
                todo.append(needed)
    return {name for name, *_ in found}


def distribution(name):
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


@pytest.mark.slow
def test_the_card_s_commands_work_in_an_environment_of_torch_alone(small_cell, vqa2_folder, tmp_path):
    """A new environment; torch, numpy, safetensors and what these need are linked into it, nothing else is in reach."""
    entry = small_cell("sentiment")[1]
    model, folder = load_cell(entry.folder), export(str(entry.folder), tmp_path / "here" / "out")
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    for name in closure(["torch", "numpy", "safetensors"]):
        for top in {
            path.parts[0] for path in metadata.distribution(name).files if path.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(metadata.distribution(name).locate_file(top))
    card = (moved / "README.md").read_text()
    install, run = re.search(r"```\n(pip install .*)\n(python predict.py < input)\n```", card).groups()
    (moved / "input").write_text(raw := inputs_of(model, vqa2_folder))
    own = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "OMP_NUM_THREADS": "1"}
    done = [
        subprocess.run(["bash", "-c", c], cwd=moved, env=own, capture_output=True, text=True, check=False)
        for c in (install, run)
    ]
    assert [d.returncode for d in done] == [0, 0], "".join(d.stderr for d in done)
    assert done[1].stdout.splitlines() == list(lines.printed(model.predict(lines.parsed(raw.encode(), model)), 1))
    where = subprocess.run(
        [python, "-c", "import sparse_attention; print(sparse_attention.__file__)"],
        env=own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(tmp_path / "venv"))
