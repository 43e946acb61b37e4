"""Cells that came from someone else: whole by their hashes, and senseless or with code of their own. Nothing of them runs, and one
sentence names what is wrong."""

import hashlib
import importlib.util
import io
import json
import py_compile
import shutil
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from repro import cell as cells
from repro.errors import StoreError
from repro.store import Entry, Level, Store
from tasks.commands import compare
from tasks.config.request import Request
from tasks.use import evaluate, load_cell
from tasks.use.export import export


@pytest.fixture
def received(small_cell, tmp_path):
    """A store with a good cell of softmax and one of sparsemax that a test makes senseless: (store, folder)."""
    cell, entry = small_cell("pairs")
    store = Store(tmp_path / "outputs")
    folder = shutil.copytree(entry.folder, cell.entry(store).folder)
    good = shutil.copytree(entry.folder, store.root / "cells" / "toy" / "softmax" / "0123456789abcdef")
    page(good, lambda p: p["mapping"].update(name="softmax"))
    return store, folder


def page(folder, change):
    for path in (folder / "config.yaml", *folder.glob("evaluations/*/config.yaml")):
        told = yaml.safe_load(path.read_text())
        told = change(told) or told
        path.write_text(yaml.safe_dump(told))
    seal(folder)


def seal(folder):
    """Make every hash right again."""
    Entry(folder).finish(training=folder.name)
    for level in (folder / "evaluations").iterdir():
        Level(level).finish(training=folder.name, evaluation=level.name)


def first(state):
    return next(name for name, value in sorted(state.items()) if value.ndim == 2)


def changed(folder, place, change):
    """Change a page, weights, metrics or a file, and make every hash right again."""
    path = folder / place
    if place == "config.yaml" and callable(change):
        return page(folder, change)
    if place == "weights.safetensors" and callable(change):
        state = load_file(path)
        save_file(change(state) or state, path)
    elif place == "metrics.json":
        told = json.loads(path.read_text())
        change(told)
        path.write_text(json.dumps(told))
    else:
        shutil.rmtree(path) if change is None else path.write_bytes(change)
    seal(folder)


PAGE, WEIGHTS, METRICS = "config.yaml", "weights.safetensors", "metrics.json"
# kind -> (what is changed and how, words of the sentence, whether compare.py can still show its scores)
KINDS = {
    "no encoding": ("encoding", None, "encoding", True),
    "an encoding without options": ("encoding/encoding.json", b"{}", "options", True),
    "a short dictionary": ("encoding/dict.source.txt", b"a 1\nb 1\n", "size mismatch", True),
    "a weight is missing": (WEIGHTS, lambda s: s.pop(first(s)) is None, "Missing key", True),
    "weights that are nan": (WEIGHTS, lambda s: s[first(s)].fill_(torch.nan) is None, "not finite", True),
    "weights that are none": (WEIGHTS, b"evil", "", True),
    "a module that is no family": (PAGE, lambda p: p.update(module="this"), "unknown; import and `register` it", False),
    "another family's task": (PAGE, lambda p: p["task"].update(family="vqa"), "task.family", True),
    "an unknown mapping": (PAGE, lambda p: p["mapping"].update(name="sparsermax"), "sparsermax", False),
    "another mapping": (PAGE, lambda p: p["mapping"].update(name="softmax"), "toy/softmax", False),
    "a mapping's wrong parameter": (PAGE, lambda p: p["mapping"].update(lam="x"), "lam", True),
    "an unknown model": (PAGE, lambda p: p["model"].update(name="../x"), "model.name", True),
    "no model": (PAGE, lambda p: p.pop("model") and None, "model", False),
    "a node that is a number": (PAGE, lambda p: p.update(train=3), "train", False),
    "a page that is a list": (PAGE, lambda p: [1, 2], "not the configuration of a cell", False),
    "plugins that are a number": (PAGE, lambda p: p.update(plugins=3), "plugins", False),
    "a page that builds objects": (PAGE, b"!!python/object/apply:os.system [echo evil]", "cannot be read", False),
    "a score that is a text": (METRICS, lambda m: m["metrics"].update({"dev/loss": "x"}), None, False),
    "no hash of its data": (METRICS, lambda m: m.pop("data_sha256"), "data_sha256", True),
    "facts that are a text": (METRICS, lambda m: m.update(metrics=3), "metrics", False),
}


# one of each kind of damage: a weight, a number, a page, a score, a hash
FEW = {"a weight is missing", "a score that is a text"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k in FEW else pytest.mark.slow) for k in KINDS])
def test_a_senseless_cell_is_named_in_one_sentence_and_stops_no_table(received, kind, capsys, monkeypatch, command):
    store, folder = received
    place, change, said, shown = KINDS[kind]
    changed(folder, place, change)
    if said is not None:  # all but scores, which a model does not need
        for name, words in (("predict", said), ("evaluate", "")):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\n")))
            assert command(name, str(folder)) == 1
            text = capsys.readouterr().err
            assert text.startswith("error: ") and text.count("\n") == 1 and len(text) < 900
            assert str(folder) in text and words in text
        with pytest.raises(StoreError, match=str(folder)):  # not answered from what is stored
            evaluate(str(folder), ["decode.beam=1"])
    assert compare.main(Request.read(["task=toy", f"paths.outputs={store.root}", f"to={store.root / 'c'}"])) == 0
    told = capsys.readouterr()
    assert "softmax" in told.out
    assert ("2 finished cells" in told.out) == shown
    assert (str(folder) in told.err) != shown


# the plugin as the page names it, and where it is
PLACES = {"in its encoding": ("encoding/evil.py", "{folder}/encoding/evil.py"), "anywhere": ("{root}/evil.py",) * 2}
PLACES |= {"in the cell": ("{folder}/evil.py",) * 2, "beside the cell": ("{folder}/../evil.py",) * 2}


def forget(stem):
    """Forget the plugins that ran in this process, as a new one has."""
    for name in [n for n in sys.modules if n.startswith(f"_plugin_{stem}_")]:
        sys.modules.pop(name)


@pytest.mark.parametrize("place", [pytest.param(p, marks=[pytest.mark.slow] * (p != "in the cell")) for p in PLACES])
def test_code_of_a_received_cell_runs_only_when_the_command_names_it(received, place, tmp_path, capsys, command):
    store, folder = received
    named, where = (text.format(folder=folder, root=tmp_path) for text in PLACES[place])
    ran, evil = tmp_path / "ran", folder / where
    evil.parent.mkdir(exist_ok=True)
    evil.write_text(f"open({str(ran)!r}, 'a').write('x')  # {place}\n")
    page(folder, lambda p: p.update(plugins=[named]))
    doors = ((load_cell,), (evaluate, ["decode.beam=1"]), (export, tmp_path / "out"))
    (other := tmp_path / "other.py").write_text(evil.read_text() + "# edited")
    for door, *more in doors:
        with pytest.raises(StoreError, match=r"evil.*does not name it.*plugins=\["):
            door(str(folder), *more)
        with pytest.raises(StoreError, match=r"evil.*other\.py is absent or not as in the training"):
            door(str(folder), *more, plugins=[str(other)])
    for name in ("predict", "evaluate"):
        assert command(name, str(folder)) == 1 and "plugins=[" in capsys.readouterr().err
    assert compare.main(Request.read(["task=toy", f"paths.outputs={store.root}", f"to={tmp_path / 'c'}"])) == 0
    assert not ran.exists()
    if evil.is_relative_to(folder) and ".." not in where:  # the manifest has its content
        assert load_cell(folder, plugins=[str(evil)]).config["plugins"] == [str(evil)] and ran.read_text() == "x"
        forget("evil")
        with pytest.raises(StoreError):  # named once, not for ever
            load_cell(folder)
    else:
        with pytest.raises(StoreError):  # nothing says with which content it was trained
            load_cell(folder, plugins=[str(evil)])


def test_the_module_of_a_received_cell_is_not_imported(received, tmp_path, monkeypatch, capsys):
    (store, folder), ran = received, tmp_path / "ran"
    metrics = "METRICS, RECIPE, EVALUATION_KEYS = {}, (1, 1), ()"
    (tmp_path / "evilmod.py").write_text(f"open({str(ran)!r}, 'w').write('x')\n{metrics}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    page(folder, lambda p: p.update(module="evilmod"))
    assert compare.main(Request.read(["task=toy", f"paths.outputs={store.root}", f"to={tmp_path / 'c'}"])) == 0
    assert "evilmod" in capsys.readouterr().err and not ran.exists()


def test_a_manifest_that_names_files_elsewhere_is_damaged(received, tmp_path):
    _, folder = received
    (folder.parent / "secret").write_text("x")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../secret"] = hashlib.sha256(b"x").hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"'../secret', which is not in the folder"):
        export(str(folder), tmp_path / "out" / "made")
    assert not (tmp_path / "out" / "secret").exists()


def test_a_plugin_runs_by_the_content_of_the_training(prepared_cell, tiny, tmp_path, command, monkeypatch, capsys):
    """Wherever the file now is; a compiled file beside it is not read; an exported folder has a copy."""
    plugin, ran = tmp_path / "mine.py", tmp_path / "ran"
    plugin.write_text("import math\n")
    cell, store = prepared_cell([*tiny, "mapping=softmax", f"plugins=[{plugin}]"]), Store(tmp_path / "store")
    assert cells.run(cell, store).state == "done"
    folder = cell.entry(store).folder
    (tmp_path / "moved").mkdir()
    moved = plugin.rename(tmp_path / "moved" / "again.py")
    (evil := tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    compiled, never = importlib.util.cache_from_source(str(moved)), py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), compiled, invalidation_mode=never)
    out = export(str(folder), tmp_path / "out", plugins=[str(moved)])
    sent = shutil.copytree(out, tmp_path / "sent")
    for place, own in ((folder, moved), (sent, moved), (sent, sent / "plugins" / "again.py")):
        forget("again")
        assert load_cell(place, plugins=[str(own)]).config["plugins"] == [str(own)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\n")))
    for name, *more in (("evaluate", "decode.beam=1"), ("predict",), ("export", str(tmp_path / "again"))):
        assert command(name, str(folder), *more, f"plugins=[{moved}]") == 0
    assert "again.py]' < input" in capsys.readouterr().out
    assert not ran.exists()
    for place, named, said in (
        (folder, [], "the command does not name it"),
        (folder, [str(plugin)], "is absent or not as in the training"),
        (sent, [], r"plugins=\[.*sent/plugins/again\.py\]"),
        (folder, [str(moved), str(evil)], r"was trained without .*evil\.py"),
    ):
        with pytest.raises(StoreError, match=said):
            load_cell(place, plugins=named)
    moved.write_text("import cmath\n")
    with pytest.raises(StoreError, match="is absent or not as in the training"):
        load_cell(folder, plugins=[str(moved)])
