"""scripts/try.py: what it chooses by the size of the data, and what it refuses; tests/tasks/data/test_own_page.py runs it."""

import re
from itertools import permutations

import pytest

from repro.errors import ConfigError
from tasks.commands import try_data
from tasks.config.request import Request, parsed
from tasks.data import DataError
from tasks.data.records import Example, Pair

PAIR = Pair("one two three four five", ("un deux trois quatre cinq",))


@pytest.fixture(scope="module")
def sizes(composed):
    """`sizes("pairs", train, test, given)`: what is set for examples of a kind, of which `test` are dev and test."""
    tasks = {"pairs": "translation", "summaries": "summarization", "text": "imdb", "texts": "snli"}
    configs = {kind: composed([f"task={task}"]) for kind, task in tasks.items()}

    def sizes(kind, train, test=30, given=()):
        held_out = train[:test] if isinstance(test, int) else test
        splits = {"train": train, "dev": held_out, "test": held_out}
        return {one.key: one.value for one in map(parsed, try_data._fitted(kind, splits, configs[kind], set(given)))}

    return sizes


def test_small_data_get_more_epochs_and_large_data_a_limit_unless_the_user_set_them(sizes, capsys):
    assert sizes("pairs", [PAIR] * 1000) == {"train.max_epochs": try_data.MOST_EPOCHS}
    assert "WARNING" not in capsys.readouterr().out
    assert sizes("pairs", [PAIR] * 12_000) == {"train.max_epochs": 7}
    found = sizes("pairs", [PAIR] * 40_000, test=5000)
    limits = {"data.limits.train": 28_000, "data.limits.dev": 500, "data.limits.test": 500}
    assert found == {**limits, "train.max_epochs": 3}
    told = capsys.readouterr().out
    assert "data.limits.train=28000" in told and "data.limits.train=null" in told
    found = sizes("pairs", [PAIR] * 40_000, 5000, ["data.limits.train", "train.max_epochs"])  # set by the user
    assert found == {"data.limits.dev": 500, "data.limits.test": 500}
    assert sizes("pairs", [PAIR] * 40_000, 5000, ["data.limits"]) == {"train.max_epochs": 3}
    sizes("pairs", [PAIR] * 30)
    assert "WARNING: only 30 training examples" in capsys.readouterr().out


def test_long_texts_count_by_their_words(sizes):
    long = Pair("word " * 60, ("mot " * 60,))
    found = sizes("pairs", [long] * 10_000)
    words = found["data.limits.train"] * 120 * found["train.max_epochs"]
    assert 0.9 < words / try_data.WORDS["pairs"] < 1.1
    assert found["encode.max_source_tokens"] == found["encode.max_target_tokens"] == 120
    assert "decode.max_len_b" not in found and sizes("summaries", [long] * 1000)["decode.max_len_b"] == 120
    one, two = ([Example(texts, i % 2) for i in range(1000)] for texts in (("word " * 90,), ("word " * 90, "a")))
    assert sizes("text", one)["encode.max_tokens"] == 180
    assert "encode.max_tokens" not in sizes("texts", two)
    assert sizes("pairs", [Pair("长" * 600, ("a",))] * 100)["encode.max_source_tokens"] == 200
    assert sizes("pairs", [Pair("长" * 70, ("a" * 70,))] * 100)["encode.max_source_tokens"] == 70


def test_texts_without_spaces_are_classified_by_their_characters(sizes):
    chinese = "今天天气很好"
    one, two = ([Example(texts, i % 2) for i in range(600)] for texts in ((chinese,), ("a word", chinese)))
    assert sizes("text", one)["encode.subword"] == sizes("texts", two)["encode.subword"] == "char"
    assert "encode.subword" not in sizes("pairs", [Pair("今天", ("天气",))] * 600)
    for key in ("encode.subword", "encode.tokenizer"):
        assert "encode.subword" not in sizes("text", one, given=[key])


def test_a_limit_refuses_examples_that_are_sorted_by_class(sizes):
    mixed = [Example(("word " * 50,), i % 2) for i in range(40_000)]
    assert sizes("text", mixed)["data.limits.train"] == 10_000
    with pytest.raises(DataError, match="sorted by class"):
        sizes("text", sorted(mixed, key=lambda one: one.label))
    with pytest.raises(DataError, match=r"sorted by class.* 2,000 of 4,000 dev(.|\n)*data.limits.dev=null"):
        sizes("text", mixed, sorted(mixed[:4000], key=lambda one: one.label))


# what is typed beside a path, if it is there
REFUSED = {"task=snli": "task=snli does not fit", "task=vqa": "train.py takes others", "optim.lr=1,2": "several values"}
REFUSED |= {"train.max_epoch=2": "did you mean 'max_epochs'", "data=multi30k": "train.py takes others"}
REFUSED |= {"profile=paper": "'paper' is unknown"}


@pytest.mark.parametrize("typed, told", REFUSED.items())
def test_refusals(tmp_path, typed, told):
    (path := tmp_path / "r.csv").write_text("review,stars\n" + "".join(f"some text {i},{i % 3}\n" for i in range(40)))
    with pytest.raises(ConfigError, match=told):
        try_data.main(Request.read([typed] if "train.py" in told else [f"data.path={path}", typed]))


def test_rows_and_seeds_are_chosen_as_in_train(tmp_path, monkeypatch):
    """The named mappings become rows: with their settings in configs/try.yaml, or as scripts/train.py has them."""
    path, seen = tmp_path / "own file.tsv", {}
    words = enumerate(permutations("abcdefghi", 3))
    path.write_text("".join(f"{''.join(w)} {w[2]}{w[0]}\tx{i} y{i}\n" for i, w in words))

    class Stop(Exception):
        pass

    def outline(loaded, rest):
        seen["one"], seen["rest"] = loaded[0], rest
        raise Stop

    monkeypatch.setattr(try_data.reproduce, "outline", outline)
    given = [f'data.path="{path}"', f"paths.data={tmp_path}"]
    with pytest.raises(Stop):
        try_data.main(Request.read([*given, "mapping=fusedmax,entmax", "seed=3,4"]))
    one = seen["one"]
    assert [row.changes for row in one.rows] == [("mapping=fusedmax", "mapping.lam=0.1"), ("mapping=entmax",)]
    assert one.seeds == (3, 4) and one.title == "Your own data: own file.tsv"
    assert re.fullmatch("try_own_file_tsv_[0-9a-f]{6}", one.name)
    assert one.columns[0].label == "own file.tsv: translation" and "data=files" in seen["rest"]
    names = {one.name}
    for folder, text in (("other", path.read_text().upper()), ("语料", path.read_text())):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "数据.tsv").write_text(text)
        with pytest.raises(Stop):
            try_data.main(Request.read([f'data.path="{tmp_path / folder / "数据.tsv"}"', f"paths.data={tmp_path}"]))
        names.add(seen["one"].name)
    assert len(names) == 3 and all(map(str.isascii, names))  # each has its own table and report
    with pytest.raises(Stop):
        try_data.main(Request.read([*given, "task=summarization", "data=files"]))
    assert seen["one"].columns[0].key == "summaries"
    assert [row.label for row in seen["one"].rows] == ["softmax", "sparsemax", "fusedmax"]
    assert seen["rest"].count("data=files") == 1
