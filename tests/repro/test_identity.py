"""What makes a training the same training, and an evaluation the same evaluation."""

from dataclasses import replace

import fake_family
import pytest

from repro import cell as cells
from repro import identity, protocol, rounding

AT = {"encoder": {"name": "softmax"}}
MOVING = {"seed": 2, "mapping__lam": 0.1, "mapping__name": "sparsemax", "mapping__at": AT, "train__max_epochs": 2}
MOVING |= {"optim__lr": 0.5, "schedule__name": "linear", "model__hidden_dim": 8, "task__name": "other"}
MOVING |= {"task__loss": "hinge", "data__name": "b", "data__content": "b", "encode__vocabulary": 11}
STILL = {"runtime__threads": 8, "runtime__device": "cuda", "logger": {"name": "wandb"}, "launcher": {"name": "slurm"}}
STILL |= {"paths__outputs": "elsewhere", "paths__data": "elsewhere", "data__path": "elsewhere", "data__mirror": "m"}
STILL |= {"data__limits": {"test": 5}, "task__deviations": ["small"], "mapping__grid": {}, "profile__name": "cpu"}
STILL |= {"task__family": "f", "decode__beam": 9, "task__scores": ["other"], "data__test": "another test set"}


@pytest.mark.parametrize("key, value", (MOVING | STILL).items())
def test_whatever_changes_the_weights_changes_the_training_and_nothing_else_does(cell, key, value):
    assert (cell(**{key: value}).training_id == cell().training_id) == (key in STILL)


def test_a_raised_recipe_changes_its_own_part(cell, monkeypatch):
    one = cell()
    training, evaluation = one.training_id, one.evaluation_id(one.tests[0])
    monkeypatch.setattr(fake_family, "RECIPE", (1, 2))
    one = cell()
    assert one.training_id == training and one.evaluation_id(one.tests[0]) != evaluation
    monkeypatch.setattr(fake_family, "RECIPE", (2, 1))
    one = cell()
    assert one.training_id != training and one.evaluation_id(one.tests[0]) != evaluation
    for of_models, same in (({"none": (3, 1)}, False), ({"none": (2, 9), "other": (3, 1)}, True), ({}, True)):
        monkeypatch.setattr(fake_family, "RECIPES", of_models, raising=False)
        assert (cell().training_id == one.training_id) == same, "the recipe of its own model, if there is one"
        asked = identity.asked_id(one.config, fake_family)
        assert (asked == identity.asked_id(one.config, fake_family, 2)) == same


@pytest.mark.parametrize(
    "changes", [{"decode__beam": 9}, {"task__scores": ["other"]}, {"data__test": "b"}, {"seed": 2}]
)
def test_what_changes_the_scores_changes_the_evaluation(cell, changes):
    one, other = cell(), cell(**changes)
    assert one.evaluation_id(one.tests[0]) != other.evaluation_id(other.tests[0])
    same = cell(runtime__threads=7, task__deviations=["small"])
    assert one.evaluation_id(one.tests[0]) == same.evaluation_id(one.tests[0])
    assert one.evaluation_id(one.tests[0]) != one.evaluation_id(replace(one.tests[0], name="again"))


def test_a_plugin_counts_by_its_content_not_its_place(cell, tmp_path):
    (tmp_path / "a").mkdir()
    one, other = tmp_path / "a" / "mine.py", tmp_path / "named.py"
    one.write_text("x = 1")
    other.write_text("x = 1")
    first = cell(plugins=[str(one)]).training_id
    assert first != cell().training_id
    assert cell(plugins=[str(other)]).training_id == first
    (changed := tmp_path / "changed.py").write_text("x = 2")
    assert cell(plugins=[str(changed)]).training_id != first


def test_a_vector_file_counts_by_its_name_not_its_place(cell):
    first = cell(encode__vectors="/a/glove.txt").training_id
    assert cell(encode__vectors="elsewhere/glove.txt").training_id == first
    assert first != cell(encode__vectors="ppmi").training_id
    assert first != cell(encode__vectors=None).training_id


ASKED = [("decode__beam", 9, True), ("data__content", "b", False), ("data__path", "elsewhere", False)]


@pytest.mark.parametrize("key, value, same", ASKED)
def test_a_training_that_is_asked_for_has_an_id_without_its_data(config, monkeypatch, key, value, same):
    def asked(of, recipe=None):
        return identity.asked_id(of, fake_family, recipe)

    monkeypatch.setattr(fake_family, "prepare", lambda *_: pytest.fail("no data are read"))
    one, other = config(), config(**{key: value})
    assert (asked(one) == asked(other)) == same
    assert asked(one) == asked(one, fake_family.RECIPE[0]) != asked(one, 0) != asked(one, 7)
    monkeypatch.setattr(fake_family, "RECIPE", (1, 9))
    assert asked(one) == asked(one, 1), "the recipe of the training, not of the evaluation"
    monkeypatch.setattr(fake_family, "RECIPE", (9, 1))
    assert asked(one) == asked(one, 9)


@pytest.mark.parametrize("key", ["decode.beam", "task.scores"])
def test_a_key_that_came_later_counts_once_it_is_set(config, monkeypatch, key):
    """Unset, it is not part of an id: as in a configuration from before the key."""
    (unset, known), (node, _, last) = (config(**{key.replace(".", "__"): v}) for v in (None, 3)), key.partition(".")
    before = {**unset, node: {k: v for k, v in unset[node].items() if k != last}}
    monkeypatch.setattr(fake_family, "LATER_KEYS", (key,), raising=False)
    assert identity.as_named(unset, fake_family) == before and identity.as_named(known, fake_family) == known
    of = [identity.scoring(one, fake_family) for one in (before, unset, known)]
    assert of[0] == of[1] != of[2] and "3" in str(of[2]) and "None" not in str(of[1])


def test_what_is_found_is_of_the_training_and_of_all_its_test_sets(cell, store):
    one = cell(["further"], seed=4)
    assert one.results(store) is None and one.state(store) == "queued" and one.seed == 4
    assert cells.run(one, store).state == "done"
    found, (test, further) = one.results(store), one.tests
    assert (found.cell_id, found.folder, one.state(store)) == (one.training_id, one.entry(store).folder, "done")
    assert {"dev/score", "test/score", "further/score"} <= found.metrics.keys()
    assert found.signatures == {"test/score": "fake|v2", "further/score": "fake|v2"}
    assert found.facts == one.prepared.facts and found.tests == {"test": test.facts, "further": further.facts}
    assert found.baselines == {name: {**test.baselines[name], **further.baselines[name]} for name in test.baselines}
    assert found.evaluations["further"].folder.name == one.evaluation_id(further)
    timed = {name: (level, {"metrics": {}, "seconds": 0.25}) for name, level in found.evaluations.items()}
    trained = {"metrics": {}, "seconds": 1.5}
    assert identity.Results.of(one.entry(store), trained, timed, one.module, one.config).seconds == 2.0
    assert one.config_of(test) == one.config and one.config_of(further)["data"]["name"] == "further"
    more = replace(one, tests=(*one.tests, replace(test, name="new")))
    assert more.results(store) is None, "an evaluation is missing"


def test_a_family_is_registered_after_its_import():
    with pytest.raises(ValueError, match="not_there is not imported; import it"):
        protocol.register("not_there")


@pytest.mark.parametrize(
    ("value", "same"),
    [(0.1 + 0.2, 0.3), (1 - 0.9, 0.1), (3e-9 + 4e-25, 3e-9), (1 / 3, 1 / 3), (0.1234567890123456, 0.1234567890123456)],
)
def test_rounding_errors_go_and_typed_digits_stay(value, same):
    assert rounding.rounded({"a": [value, True, 7]}) == {"a": [same, True, 7]}
