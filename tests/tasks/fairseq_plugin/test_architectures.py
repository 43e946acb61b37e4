"""fairseq's configurations made from options: types that its parser reads, and nothing lost on the way."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

import tasks.fairseq_plugin.compat  # noqa: F401  # isort: skip  # before fairseq, for Python 3.14
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from tasks.config import models
from tasks.config.options import REQUIRED, OptionsError, choice, flag, integer, listing, number, plain, read, text
from tasks.fairseq_plugin import architectures
from tasks.fairseq_plugin.architectures import config_class, entries, group, registered_name, values_of

FAMILIES = ("seq2seq", "classification", "vqa")


@dataclass
class Everything:
    """One option of each kind."""

    size: int = integer(3, low=1, help="size")
    rate: float = number(0.5)
    on: bool = flag(True)
    off: bool = flag(False)
    kind: str = choice("a", "a", "b")
    most: int | None = integer(None, optional=True)
    strides: list = listing([1, 2], integer(low=1))


@dataclass
class Asking:
    """An option without a default."""

    label: str = text(REQUIRED)


def test_the_command_line_sets_every_option():
    made = config_class("made", *entries(Everything))
    parser = argparse.ArgumentParser()
    gen_parser_from_dataclass(parser, made())
    line = ["--size", "5", "--rate", "0.25", "--on", "--off", "--kind", "b", "--most", "7", "--strides", "[3]"]
    found = values_of(made.from_namespace(parser.parse_args(line)), Everything)
    numbers = {"size": 5, "rate": 0.25, "most": 7, "strides": [3]}
    assert plain(read(Everything, found, "")) == numbers | {"on": False, "off": True, "kind": "b"}
    assert values_of(made.from_namespace(parser.parse_args([])), Everything) == plain(Everything())


def test_values_survive_fairseqs_configuration():
    values = plain(Everything(size=9, on=False, most=None, strides=[4, 5]))
    made = OmegaConf.structured(config_class("made", *entries(Everything)))
    given = OmegaConf.create(group("x", values, Everything))
    assert values_of(OmegaConf.merge(made, given), Everything) == values


def test_an_option_without_default_is_asked_for():
    found = values_of(config_class("made", *entries(Asking))(), Asking)
    with pytest.raises(OptionsError, match=r"model\.label must be set"):
        read(Asking, found, "model")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_architecture_is_registered(family):
    for name in models.names(family):
        registered = registered_name(name)
        assert registered in ARCH_MODEL_REGISTRY
        made = MODEL_DATACLASS_REGISTRY[registered]
        options = models.architecture(family, name).Options
        gen_parser_from_dataclass(argparse.ArgumentParser(), made())  # a string annotation would raise here
        assert {"mapping", "mapping_params"} <= made.__dataclass_fields__.keys()
        assert values_of(made(), options) == plain(options())


def test_mapping_and_model_travel_to_fairseq():
    module = models.architecture("seq2seq", "lstm")
    config = {
        "model": {"name": "lstm"} | plain(module.Options(hidden_dim=7)),
        "mapping": {"name": "fusedmax", "lam": 0.5, "gamma": 1.0, "at": {}, "grid": {"lam": [0.1]}},
    }
    found = architectures.model_group(config, module.Options)
    assert found["_name"] == "sa_seq2seq" and found["hidden_dim"] == 7 and found["mapping"] == "fusedmax"
    assert found["mapping_params"] == '{"lam": 0.5, "gamma": 1.0, "at": {}}'
