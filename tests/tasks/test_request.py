"""A command line is read once: its own keys, the overrides with their values, and what is refused by its key."""

import pytest

from repro.errors import ConfigError
from tasks.config.files import quoted
from tasks.config.request import REPRODUCE, TRAIN, Request, parsed
from tests.refusals import refused


def test_a_request_has_the_commands_own_keys_apart_from_the_overrides():
    request = Request.read("task=toy mapping=softmax,fusedmax seed=1,2 sweep=mine grid=paper".split(), TRAIN, many=True)
    assert (request.sweep, request.grid, request.many, request.plan) == ("mine", "paper", True, False)
    assert request.overrides == ("task=toy", "mapping=softmax,fusedmax", "seed=1,2")
    assert request.keys["mapping"].texts == ("mapping=softmax", "mapping=fusedmax")
    typed = ["seeds=2,1,2", "rows=a|b*", "profile=cpu", "add=entmax,alpha=1.5", "add=softmax", "optim.lr=1"]
    table = Request.read(typed, REPRODUCE, ["demo"], plan=True)
    assert (table.seeds, table.rows, table.profile, table.plan) == ((2, 1), ("a", "b*"), "cpu", True)
    assert (table.add, table.overrides) == (("entmax,alpha=1.5", "softmax"), ("optim.lr=1",))
    last = Request.read(["seed=1", "task=toy", "seed=2"]).keys
    assert list(last) == ["task", "seed"] and last["seed"].value == 2


def test_what_is_no_argument_is_refused_by_its_key():
    for argument in ("grid=papr", "sweep=a/b", "seeds=one", "mapping"):
        key, _, value = argument.partition("=")
        told = {"key": key, "value": value} if argument != "mapping" else {"value": None}
        with refused(ConfigError, **told):
            Request.read([argument], (*TRAIN, *REPRODUCE))


# whether optuna chooses the values, or what is refused
WHOSE = [("-m task=toy", False), ("-m hydra/sweeper=optuna sweep=mine", True)]
WHOSE += [("grid=paper", "grid="), ("-m hydra/sweeper=optuna grid=paper", "grid=")]
WHOSE += [("--plan hydra/sweeper=optuna", "--plan"), ("-m hydra/launcher=basic", "only used by -m")]


@pytest.mark.parametrize("line, optuna", WHOSE)
def test_who_chooses_the_values_of_a_sweep(line, optuna):
    """Hydra runs optuna's search; its other options, and ours where they do nothing, are refused."""
    flags, words = [[w for w in line.split() if (w[0] == "-") is flag] for flag in (True, False)]
    request = Request.read(words, TRAIN, plan="--plan" in flags, many=bool(flags))
    if isinstance(optuna, bool):
        assert request.optuna is optuna
        return
    with pytest.raises(ConfigError, match=optuna):
        request.optuna  # noqa: B018 a property that raises


QUOTED = ["a", "two words", 'a "b" \\', "true", "1", "a,b", "/a/b.tsv", ["a", "b c"], None, 3, 0.5]


@pytest.mark.parametrize("value", QUOTED)
def test_a_quoted_value_is_read_as_it_was(value):
    assert parsed(f"data.label={quoted(value)}").value == value


TYPED = [("data.path=数据.csv", "数据.csv"), ("data.path=~/x.tsv", "/elsewhere/x.tsv"), ("data.path=12", "12")]
TYPED += [("+data.path=a 'b' (1).tsv", "a 'b' (1).tsv"), ("data.path=null", None), ("data.drop=[нет]", ["нет"])]
TYPED += [('data.path="é, b.csv"', "é, b.csv"), ("data.text=[评论, 标题]", ["评论", "标题"]), ("data.label=é", "é")]
TYPED += [("data.path=${oc.env:HOME}/x", "${oc.env:HOME}/x"), ("data.limits={train: 5}", {"train": 5})]


@pytest.mark.parametrize("typed, value", TYPED)
def test_paths_and_words_beyond_ascii_need_no_quotes(typed, value, monkeypatch):
    monkeypatch.setenv("HOME", "/elsewhere")
    assert parsed(typed).value == value
    assert parsed("data.path=a.tsv,b.tsv").texts == ("data.path=a.tsv", "data.path=b.tsv")


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("range(0.1,0.5,0.1)", "0.1 0.2 0.3 0.4"),  # sums of 0.1 give 0.30000000000000004
        ("range(0.3,0.9,0.3)", "0.3 0.6"),  # their sum is below 0.9
        ("range(0.2,-0.2,-0.1)", "0.2 0.1 0.0 -0.1"),
        ("range(0.1,3,0.7)", "0.1 0.8 1.5 2.2 2.9"),
        ("range(1e-9,4e-9,1e-9)", "1e-09 2e-09 3e-09"),
        ("sort(range(0.1,0.4,0.1),reverse=true)", "0.3 0.2 0.1"),
        ("int(range(1.0,3.0,1.0))", "1 2"),
        ("0.1234567890123456,0.25", "0.1234567890123456 0.25"),
    ],
)
def test_a_range_has_the_decimals_that_were_typed(typed, values):
    assert " ".join(parsed(f"mapping.lam={typed}").values) == values
