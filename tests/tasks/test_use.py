"""Finished cells found, loaded and scored anew."""

from __future__ import annotations

import io
import re
import shutil
import sys

import pytest

from repro import protocol
from repro.store import Store
from tasks.config import compose
from tasks.config.compose import ConfigError
from tasks.use import evaluate, evaluation_config, find_cell, finding, load_cell
from tasks.use.model import Loaded


def test_every_family_has_what_the_protocol_lists_and_says_how_its_models_are_used():
    methods = [name for name, value in vars(protocol.Family).items() if callable(value) and name[0] != "_"]
    assert len(protocol.families()) == 5 and len(methods) > 4
    for module in protocol.families():
        of = protocol.family(module)
        wanted = {*protocol.Family.__annotations__, *methods} - ({"predict"} if not of.WAYS else set())
        assert {name for name in wanted if not hasattr(of, name)} == set(), module
        called = re.match(r"model\.(\w+)\(", of.EXAMPLE)[1]
        assert called in of.WAYS if of.WAYS else called == "model" and of.USED_BY
        assert {way for way in of.WAYS if not hasattr(Loaded, way)} == set()
        assert hasattr(of, "graph") != hasattr(of, "NO_GRAPH")


@pytest.fixture(scope="module")
def trained(learned, tmp_path_factory):
    """(cell, outputs folder): a finished toy cell, and one of another mapping."""
    outputs = tmp_path_factory.mktemp("outputs")
    for mapping in ("sparsemax", "softmax"):
        cell, entry = learned(mapping)
        shutil.copytree(entry.folder, cell.entry(Store(outputs)).folder)
    return cell, outputs


def test_a_cell_is_found_by_whatever_names_it(trained):
    cell, outputs = trained
    folder = cell.entry(Store(outputs)).folder
    names = (str(folder), cell.training_id, cell.training_id[:9], "toy/softmax", "toy/softmax,seed=1")
    numbers = ("toy/softmax,mapping.gamma=1", "toy/softmax,seed=1.0")  # may be written otherwise
    assert {find_cell(outputs, name) for name in (*names, *numbers)} == {folder}
    for what, said in (
        ("toy/softmax,mapping.gamma=1.5", "matches none"),
        ("nothing", "no finished cell of 'nothing' in .*; finished cells: toy/softmax, toy/sparsemax"),
        ("", "it matches cells/toy"),
    ):
        with pytest.raises(ConfigError, match=said):
            find_cell(outputs, what)


def test_several_that_a_filter_fits_are_listed_with_what_differs(learned, trained, tmp_path):
    cell, _ = trained
    other, entry = learned("softmax", "train.best_metric=loss")
    for one, place in ((cell, cell.entry(Store(trained[1])).folder), (other, entry.folder)):
        shutil.copytree(place, one.entry(Store(tmp_path)).folder)
    with pytest.raises(ConfigError) as refused:
        find_cell(tmp_path, "toy/softmax,seed=1")
    assert "matches 2 cells" in str(refused.value)
    for one, metric in ((cell, "accuracy"), (other, "loss")):
        assert f"  {one.training_id}  train.best_metric={metric}" in str(refused.value).splitlines()
        found = find_cell(tmp_path, f"toy/softmax,train.best_metric={metric},seed=1")
        assert found == one.entry(Store(tmp_path)).folder
    with pytest.raises(ConfigError, match=r"matches none of these:(\n.*train\.best_metric=\w+){2}"):
        find_cell(tmp_path, "toy/softmax,seed=2")
    with pytest.raises(ConfigError, match=r"'sed' is not a key .*did you mean 'seed'"):
        find_cell(tmp_path, "toy/softmax,sed=2")


def test_only_finished_cells_are_suggested(trained, tmp_path):
    cell, outputs = trained
    said = r"did you mean 'toy/softmax'\?\); finished cells: toy/softmax, toy/sparsemax$"
    with pytest.raises(ConfigError, match=said):
        find_cell(outputs, "toy/softmx")
    entry = cell.entry(Store(tmp_path))
    shutil.copytree(cell.entry(Store(outputs)).folder, entry.folder)
    entry.path("manifest.json").unlink()
    rest = "finished cells: none;.* to train it: python scripts/train.py task=toy mapping=softmax paths.outputs=[^ ]*$"
    said = "no cell of 'toy/softmax' in .* is finished; run its training again"
    with pytest.raises(ConfigError, match=f"{said}; {rest}"):
        find_cell(tmp_path, "toy/softmax")
    with pytest.raises(ConfigError, match=f"no finished cell of 'toy/softmx' .*{rest}") as refused:
        find_cell(tmp_path, "toy/softmx")
    assert "did you mean 'toy/softmax'?" in str(refused.value)


@pytest.mark.parametrize("name", ["evaluate", "predict", "export"])
def test_commands_take_a_cell_with_conditions(trained, command, tmp_path, monkeypatch, capsys, name):
    """Each help names the form TASK/MAPPING,KEY=VALUE."""
    more = [str(tmp_path / "made") if name == "export" else "decode.beam=1", f"paths.outputs={trained[1]}"]
    for cell, status, said in (("toy/sparsemax,seed=1", 0, ""), ("toy/sparsemax,seed=2", 2, "matches none of these")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\n")))
        assert command(name, cell, *more) == status
        told = capsys.readouterr()
        assert said in told.err and "Examples:" not in told.out, "no help"
        assert ("test/bleu" in told.out) == (name == "evaluate" and not status)
    assert command("evaluate", "decode.beam=1", more[1]) == 2
    assert "'decode.beam=1' stands where CELL is expected" in capsys.readouterr().err


def test_scoring_anew_trains_nothing_and_the_same_question_has_a_stored_answer(trained, monkeypatch):
    cell, outputs = trained
    weights = cell.entry(Store(outputs)).path("weights.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(compose, "composer", None)  # nor does it compose the training again
    before = cell.results(Store(outputs)).metrics
    found = evaluate(cell.training_id, ["decode.beam=1", "task.scores=[rouge_f1, bleu]"], outputs)
    assert "test/rouge1_f" in found.metrics and "test/bleu" in found.metrics
    assert found.evaluations["test"].folder != cell.evaluation(Store(outputs), cell.tests[0]).folder
    assert cell.entry(Store(outputs)).path("weights.safetensors").stat().st_mtime_ns == weights
    assert cell.results(Store(outputs)).metrics == before, "the first evaluation is as it was"
    found = evaluate(cell.training_id, (), outputs)  # the same question gives the stored answer
    assert found.metrics == before
    assert found.evaluations["test"].folder == cell.evaluation(Store(outputs), cell.tests[0]).folder
    other = evaluate(cell.training_id, ["data.limits.test=7"], outputs)  # other test data
    assert len(other.evaluations["toy"].predictions()) == 7 and "toy/bleu" in other.metrics
    assert other.metrics["dev/loss"] == before["dev/loss"]
    # launchers and their options come and go; finished cells stay
    config = cell.config | {"launcher": {"name": "slurm", "nodes": 2, "partition": None}}
    told = evaluation_config(config, ["decode.beam=1"])
    assert told["launcher"] == {"name": "local", "retries": 0} and told["decode"]["beam"] == 1


REFUSED = {"train.max_epochs=3": r"train\.max_epochs cannot be set for a trained model", "decode=2": "cannot be set"}
REFUSED |= {"model.layers=2": r"model\.layers cannot be set", "task.name=x": r"task\.name cannot be set"}
REFUSED |= {"decode.bem=2": r"decode\.bem is unknown \(did you mean 'beam'\?\)", "data=toy_reviews": "reads pairs"}
REFUSED |= {"data=duc204": "duc2004|no data set"}


@pytest.mark.parametrize("override, said", REFUSED.items())
def test_what_an_evaluation_cannot_set_is_refused(trained, override, said):
    with pytest.raises(ConfigError, match=said):
        evaluation_config(trained[0].config, [override])


def test_a_model_of_other_code_says_so_once(trained, monkeypatch, caplog):
    cell, outputs = trained
    folder = cell.entry(Store(outputs)).folder
    monkeypatch.setattr(finding, "read_json", lambda path: {"code": {"commit": "abc"}})
    monkeypatch.setattr(finding, "_TOLD", set())
    load_cell(folder)
    assert not caplog.messages, "no code has changed"
    monkeypatch.setattr(finding.sources, "changed", lambda *_: ["mine.py"])
    monkeypatch.setattr(finding, "_TOLD", set())
    load_cell(folder)
    evaluate(str(folder), ["decode.beam=1"])
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    said = "by other code (commit abc) than today's; changed: mine.py", f"the command that trained them: rm -r {folder}"
    assert all(one in told for one in said)
    monkeypatch.setattr(finding, "_TOLD", set())
    exported = shutil.copytree(folder, outputs / "elsewhere", dirs_exist_ok=True)
    load_cell(exported)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1, "it is in no store"
