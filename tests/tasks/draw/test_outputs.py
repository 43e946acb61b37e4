"""Figures of translations: what is drawn, and what is written of the cells of a table."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from tasks import data
from tasks.commands import attending, reproduce
from tasks.config.request import REPRODUCE, Request
from tasks.draw import outputs


def rows():
    density, found = {"mu": 0.5, "sigma": 0.1, "density": 0.25}, []
    for label, mapping, more in (("softmax", "softmax", {}), ("ours", "continuous_sparsemax", density)):
        records, attention = {}, {}
        for index, length in ((0, 3), (4, 11), (7, 30)):
            tokens = [f"w{i}" for i in range(length)]
            records[index] = {"source_tokens": tokens, "output_tokens": ["x&y", "</s>"], "references": ["r"]}
            attention[f"test/{index}"] = np.full((2, length), 1 / length)
            for what, value in more.items():
                attention[f"{what}/{index}"] = np.full((2, length) if what == "density" else 2, value)
        found.append((label, mapping, records, attention))
    del found[1][3]["test/7"]
    return found


def test_a_figure_shows_the_density_where_there_is_one(tmp_path):
    assert outputs.choose(rows(), 5) == [4, 0]
    examples = [outputs.example(rows(), i) for i in (4, 0)]
    assert examples[0].panels[0].drawn.shape == (2, 11) and examples[0].panels[1].drawn.tolist() == [[0.25] * 11] * 2
    outputs.draw(examples, [tmp_path / "f.svg", tmp_path / "f.png"], "caption")
    assert (tmp_path / "f.png").stat().st_size > 5000 and "</svg>" in (tmp_path / "f.svg").read_text(encoding="utf-8")
    outputs.write_data(examples, tmp_path / "f.json", "caption")
    told = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))
    assert [e["sentence"] for e in told["examples"]] == ["test sentence 4", "test sentence 0"]
    assert told["examples"][1]["rows"][1]["mu"] == [0.5, 0.5] and "mu" not in told["examples"][1]["rows"][0]


@pytest.mark.slow
def test_a_sentence_of_ones_own_goes_through_every_row(tiny, tmp_path, isolated, monkeypatch):
    """Train the three rows at toy size; a stored sentence, given again, comes out again."""

    def generated(manifest, options, root, progress):
        return data.open_data({"name": "toy", "limits": dataclasses.asdict(options.limits)}, root, progress)

    monkeypatch.setattr(data.set_module("libreoffice_help"), "load", generated)
    toy = ["encode.tokenizer=none", "encode.subword=none", "encode.vocab_size=null", "encode.min_count=1"]
    changed = [o for o in tiny if not o.startswith(("task=", "profile="))]
    paths = [f"paths.outputs={tmp_path}", f"paths.data={isolated / 'data'}", "runtime.workers=1"]
    overrides = ["profile=demo", *toy, *changed, *paths]
    with pytest.raises(attending.DataUnavailable, match="'discrete softmax' is not finished"):
        attending.finished("martins2020_nmt", overrides)
    assert reproduce.main(Request.read(overrides, REPRODUCE, ["martins2020_nmt"])) == 0
    found = attending.finished("martins2020_nmt", overrides)
    with pytest.raises(ValueError, match=r"column 'iwslt' is not in martins2020_nmt .*: demo"):
        attending.finished("martins2020_nmt", overrides, "iwslt")
    source = " ".join(attending.stored(found)[0][2][0]["source_tokens"])
    mine, kept = attending.translated(found, source), outputs.example(attending.stored(found), 0)
    for one, other in zip(mine.panels, kept.panels):
        assert list(one.output) == list(other.output)
        for what in other.attention:
            np.testing.assert_allclose(one.attention[what], other.attention[what], rtol=1e-4, atol=1e-6)
    assert [set(p.attention) for p in mine.panels] == [{"weights"}, *[{"weights", "density", "mu", "sigma"}] * 2]
