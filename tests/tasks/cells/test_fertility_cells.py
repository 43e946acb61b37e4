"""Cells whose mapping has a state: every kind of fertility trains, decodes and is scored; a mapping from a plugin does too."""

from __future__ import annotations

import pytest
import torch

from repro import cell as cells
from repro.identity import as_named, scoring
from repro.store import Store
from tasks.cells import seq2seq
from tasks.config.options import OptionsError, read
from tasks.fertility.models import bilstm_tagger

COVERAGE = '''
"""Softmax of the scores less what the position has received."""
import torch
from torch import nn
import sparse_attention as sa


@sa.register("own_coverage", inputs=("fertility",), paper="Tu et al. 2016", oracle="definition", replace=True)
class OwnCoverage(nn.Module):
    """Softmax less coverage over fertility."""

    def start(self, mask, fertility):
        return {"received": torch.zeros(mask.shape), "fertility": fertility.clamp(max=1e6)}

    def step(self, scores, state, mask):
        z = scores - 3 * state["received"] / state["fertility"]
        p = torch.softmax(z.masked_fill(~mask, -torch.inf), -1)
        return p, {**state, "received": state["received"] + p}
'''
MODEL = ("model.name=lstm_fertility", "task.scores=[bleu,meteor,repetition]")
TAGGED = (*MODEL, "+model.fertility=predicted", "+model.tagger_dim=8", "+model.tagger_epochs=2")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("fertility"))


@pytest.fixture(scope="module")
def run(prepared_cell, tiny, store):
    def run(*overrides: str):
        cell = prepared_cell([*tiny, *overrides])
        outcome = cells.run(cell, store)
        assert outcome.state == "done", outcome.error
        return cell, cell.results(store)

    return run


def attention(found) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(found.evaluations["test"].path("attention.safetensors"))


@pytest.mark.parametrize(
    "mapping, more",
    [
        ("fertility_softmax", ("+model.constant=1",)),
        ("fertility_sparsemax", ("+model.fertility=guided", "mapping.c=0.2")),
        ("fertility_sparsemax", ("+model.fertility=actual", "model.input_feeding=true")),
    ],
    ids=["constant", "guided", "actual"],
)
def test_every_kind_trains_and_is_scored(run, mapping, more):
    cell, found = run(f"mapping={mapping}", *MODEL, *more)
    for name in ("rep_score", "drop_score", "source_coverage", "loops", "meteor", "bleu"):
        assert f"test/{name}" in found.metrics
    most = max(float(p.sum(0).max()) for p in attention(found).values())
    assert most <= (1 + 1e-5 if more == ("+model.constant=1",) else 20)
    model, _ = cell.family.load(cell.config, found.folder)
    if more[0].endswith("guided"):
        assert model.of_type.max() > 1


def test_the_tagger_is_a_cell_of_its_own_that_two_translations_share(run, store):
    before = {entry.folder for entry in store}
    one, found = run("mapping=fertility_sparsemax", *TAGGED)
    taggers = [e for e in store if e.folder.parent.parent.name == "fertility"]
    assert len(taggers) == 1 and taggers[0].finished()
    assert '"test/accuracy"' in next(taggers[0].folder.glob("evaluations/*/metrics.json")).read_text(encoding="utf-8")
    scored = [k for k in taggers[0].read()["metrics"] if k.startswith("dev/")]
    assert "dev/accuracy" in scored
    stamp = taggers[0].path("manifest.json").stat().st_mtime_ns
    two, _ = run("mapping=fertility_softmax", "seed=2", *TAGGED)
    assert {e.folder for e in store} - before == {one.entry(store).folder, two.entry(store).folder, taggers[0].folder}
    assert taggers[0].path("manifest.json").stat().st_mtime_ns == stamp
    other, _ = one.family.load(one.config, found.folder)
    from safetensors.torch import load_file

    weights = load_file(taggers[0].path("weights.safetensors"))
    assert all(torch.equal(v, weights[k]) for k, v in other.tagger.state_dict().items())
    assert not any(p.requires_grad for p in other.tagger.parameters())


def test_another_tagger_is_another_training(prepared_cell, tiny):
    def named(*more: str) -> str:
        return prepared_cell([*tiny, "mapping=fertility_sparsemax", *TAGGED, *more]).training_id

    assert named() == named() != named("model.tagger_epochs=3")


def test_penalties_that_are_not_asked_for_name_nothing(composed, tiny):
    plain, asked = composed([*tiny]), composed([*tiny, "decode.coverage_penalty=0.2"])
    assert "coverage_penalty" not in scoring(plain, seq2seq)["decode"]
    assert "coverage_penalty" not in as_named(plain, seq2seq)["decode"]
    assert scoring(asked, seq2seq)["decode"]["coverage_penalty"] == 0.2


def test_a_stateful_mapping_from_a_plugin_is_carried_by_the_decoder(run, tmp_path):
    plugin = tmp_path / "own_coverage.py"
    plugin.write_text(COVERAGE, encoding="utf-8")
    cell, found = run(f"plugins=[{plugin}]", "mapping=custom", "mapping.name=own_coverage", "model.name=lstm_fertility")
    assert found.metrics["test/attention_zeros"] == 0
    model, _ = cell.family.load(cell.config, found.folder)
    memory = model.encode(torch.tensor([[5, 6, 7]]), torch.tensor([3]))
    assert set(model.start(memory)) == {"h", "c", "feed", "mapping.received", "mapping.fertility"}


def test_the_taggers_options_are_the_papers_and_keep_to_their_bounds():
    given = read(bilstm_tagger.Options, {}, "model")
    assert (given.embed_dim, given.hidden_dim, given.layers, given.dropout) == (256, 256, 2, 0.2)
    assert read(bilstm_tagger.Options, {"dropout": 0.0, "layers": 1}, "model").dropout == 0
    for wrong in ({"dropout": 1.0}, {"dropout": -0.1}, {"layers": 0}, {"hidden_dim": 0}, {"embed_dim": 0}):
        with pytest.raises(OptionsError, match=next(iter(wrong))):
            read(bilstm_tagger.Options, wrong, "model")
