"""Models behind fairseq's interfaces: one attention in training, decoding and its search; configurations lose nothing."""

import argparse
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

import sparse_attention as sa
from repro.errors import ConfigError
from repro.options import choice, flag, integer, listing, number, plain, read, text
from tasks.config import models
from tasks.data.ragged import Ragged
from tasks.data.symbols import EOS, FIRST, PAD
from tasks.fairseq_plugin import architectures
from tasks.fairseq_plugin.architectures import config_class, entries, registered_name, values_of
from tasks.fairseq_plugin.seq2seq import Pairs, SparseTokens, Tokens, dictionary
from tasks.seq2seq.encode import Split
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import beam_search

FUSED = ("fusedmax", {"lam": 0.1, "gamma": 0.1})  # untrained scores are flat, and there shall be zeros here
SHAPES = [{"input_feeding": f, "bidirectional": b} for f in (True, False) for b in (True, False)]
TRANSFORMERS = [{"arch": "sa_transformer", "pre_norm": p} for p in (True, False)]


def whole(model, net_input):
    """Teacher forcing: logits [B, T, V] and attention [B, T, S] of all steps at once."""
    logits, extra = model(**net_input)
    return logits, extra["attn"][0]


@pytest.mark.parametrize("options", [*SHAPES, *TRANSFORMERS], ids=str)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_training_path_equals_incremental_decoding(build, sentences, options, left):
    """With beams reordered at every step, as a search does: hypothesis i continues sentence order[i]."""
    model = build(*FUSED, **options)
    net_input = sentences(left)["net_input"]
    order = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        logits, attention = whole(model, net_input)
        encoded = model.encoder.forward_torchscript(net_input)
        state: dict = {}
        now = torch.arange(5)
        for t in range(logits.size(1)):
            tokens = net_input["prev_output_tokens"][now, : t + 1]
            step, extra = model.decoder(tokens, encoder_out=encoded, incremental_state=state)
            torch.testing.assert_close(step[:, -1], logits[now, t], atol=1e-5, rtol=0)
            torch.testing.assert_close(extra["attn"][0][:, -1], attention[now, t], atol=1e-5, rtol=0)
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoded, now = model.encoder.reorder_encoder_out(encoded, order), now[order]


def criterion(of=Tokens, **options):
    cfg = SimpleNamespace(**({"sentence_avg": False, "smoothing": 0.0} | options))
    return of(cfg, SimpleNamespace(target_dictionary=dictionary([])))


def test_criterion_adds_up_over_batches(build, sentences):
    from fairseq.logging import metrics

    log = criterion()(build("sparsemax", {"gamma": 0.1}), sentences())[2]
    halves = [{k: v / 2 for k, v in log.items()} for _ in range(2)]
    with metrics.aggregate(new_root=True) as totals:
        Tokens.reduce_metrics(halves)
    found = totals.get_smoothed_values()
    bits = log["loss"].item() / log["ntokens"] / np.log(2)
    assert found["loss"] == pytest.approx(bits, abs=1e-3)
    assert found["ppl"] == pytest.approx(2**bits, rel=1e-2)
    assert found["accuracy"] == pytest.approx(100 * int(log["ncorrect"]) / log["ntokens"], abs=1e-2)
    assert found["attention_zeros"] == pytest.approx(int(log["zeros"]) / int(log["kept"]), abs=1e-3)
    support = (int(log["kept"]) - int(log["zeros"])) / int(log["steps"])
    assert found["attention_support"] == pytest.approx(support, abs=1e-2)


@pytest.mark.parametrize("output, alpha", [("entmax15", 1.5), ("sparsemax", 2.0)])
def test_a_sparse_output_layer_has_its_own_loss_in_nats_and_its_own_probabilities(build, sentences, output, alpha):
    model, sample = build(output=output), sentences()
    loss, size, log = criterion(SparseTokens, smoothing=0.1)(model, sample)
    logits, gold = whole(model, sample["net_input"])[0].flatten(0, 1).float(), sample["target"].flatten()
    kept = gold.ne(PAD)
    expected = sa.losses.EntmaxLoss(alpha, reduction="sum", label_smoothing=0.1)(logits[kept], gold[kept])
    torch.testing.assert_close(loss.float(), expected)
    means = {name: mean for name, (mean, _) in SparseTokens.measured({k: float(v) for k, v in log.items()}).items()}
    assert means["loss"] == pytest.approx(loss.item() / size) and "ppl" not in SparseTokens.rounded(means)
    p = model.get_normalized_probs((50 * logits, {}), log_probs=False)  # what fairseq's own search reads
    torch.testing.assert_close(p, sa.entmax(50 * logits, alpha=alpha))
    assert p.eq(0).any() and model.get_normalized_probs((50 * logits, {}), log_probs=True).min() == -1e4
    with pytest.raises(ValueError, match=f"output={output} has a loss of its own: use --criterion sa_sparse_tokens"):
        criterion()(model, sample)


def test_the_places_of_mappings_travel_through_fairseq_and_parameters_are_stored_once(build, sentences):
    here, net_input = build("softmax", {"at": {"cross": {"name": "sparsemax", "gamma": 0.1}}}), sentences()["net_input"]
    torch.testing.assert_close(whole(here, net_input), whole(build("sparsemax", {"gamma": 0.1}), net_input))
    assert [*here.state_dict()] == [f"net.{name}" for name in here.net.state_dict()]
    at = {"encoder": {"name": "entmax", "alpha": "learned"}, "decoder": {"name": "sparsemax"}}
    model = build("fusedmax", {"at": at}, arch="sa_transformer")
    layer = model.net.decoder[1]
    assert (layer.own.mapping.spec.name, layer.cross.mapping.spec.name) == ("sparsemax", "fusedmax")
    loss, *_ = criterion()(model.train(), sentences())
    loss.backward()
    assert model.net.encoder[0].own.mapping.alpha_logit.grad.abs().min() > 0


def test_batches_are_those_of_fairseqs_pairs(symbols, tmp_path):
    from fairseq.data import LanguagePairDataset

    assert (symbols.pad(), symbols.eos(), symbols.index("w0"), symbols.index("w1")) == (PAD, EOS, FIRST, FIRST + 1)
    rng = np.random.default_rng(1)
    sides = [[rng.integers(4, 24, rng.integers(1, 9)).astype(np.int32) for _ in range(40)] for _ in range(2)]
    source, target = (Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)])) for rows in sides)
    ours = Pairs(Split(source, target, {}, tmp_path / "train.pairs.jsonl"), training=True)
    sides = [[torch.tensor(np.append(row, [EOS] * end)).long() for row in rows] for end, rows in enumerate(sides)]
    given = [part for rows in sides for part in (rows, np.array([len(row) for row in rows]), symbols)]
    theirs = LanguagePairDataset(*given, left_pad_source=False, left_pad_target=False)
    orders = []
    for data in (ours, theirs):
        np.random.seed(3)
        orders.append(data.ordered_indices().tolist())
    assert orders[0] == orders[1] != list(range(40))
    for i in range(40):
        assert (ours.num_tokens(i), ours.size(i)) == (theirs.num_tokens(i), theirs.size(i))
    for rows in ([3], list(range(40)), [5, 9, 0, 31, 30]):
        mine, expected = ours.collater([ours[i] for i in rows]), theirs.collater([theirs[i] for i in rows])
        flat = [{**batch, **batch["net_input"]} for batch in (mine, expected)]
        assert flat[0].keys() == flat[1].keys()
        for name, value in flat[1].items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == flat[0][name].dtype and torch.equal(value, flat[0][name]), name
            elif name != "net_input":
                assert value == flat[0][name], name


SOURCES = [[3, 9, 15, 6], [7, 7], [19], [11, 12, 13, 14, 2], [5, 9, 5]]


@pytest.mark.parametrize("mapping, params", [("softmax", {}), ("fusedmax", {"gamma": 0.1})])
@pytest.mark.parametrize("beam, penalty", [(1, 1.0), (4, 1.0), (4, 0.3), (15, 1.0)])
@pytest.mark.parametrize("ends", [-1.0, 1.0, 3.0])
def test_the_same_hypotheses(build, batch, symbols, mapping, params, beam, penalty, ends):
    model = build(mapping, params, bidirectional=True, init_range=1.0, seed=4)
    with torch.no_grad():
        model.net.generator.bias[symbols.eos()] += ends  # outputs end early, late or at the limit
    net_input = batch(SOURCES, [[1]] * 5)["net_input"]
    generator = SequenceGenerator([model], symbols, beam_size=beam, max_len_a=0, max_len_b=7, len_penalty=penalty)
    theirs = generator.generate([model], {"net_input": net_input})
    rules = {"beam": beam, "max_len_b": 7, "len_penalty": penalty, "length": "average", "stop": "all"}
    options = read(Decode, rules, "decode")
    ours = beam_search(model.net, net_input["src_tokens"], net_input["src_lengths"], options)
    for source, found, expected in zip(SOURCES, ours, theirs, strict=True):
        assert [h.ids for h in found] == [h["tokens"].tolist() for h in expected]
        for h, e in zip(found, expected):
            assert h.score == pytest.approx(float(e["score"]), abs=1e-4)
            torch.testing.assert_close(h.attention, e["attention"].t()[:, : len(source)].float(), atol=1e-5, rtol=0)


FAMILIES = ("seq2seq", "classification", "vqa")


def given(option, value):
    """An option with a default, as `defaults` makes it."""
    return field(default_factory=lambda: value, metadata=option.metadata)


@dataclass(kw_only=True)
class Everything:
    """One option of each kind, and one without a default."""

    size: int = given(integer(low=1, help="size"), 3)
    rate: float = given(number(), 0.5)
    on: bool = given(flag(), True)
    off: bool = given(flag(), False)
    kind: str = given(choice("a", "b"), "a")
    most: int | None = given(integer(optional=True), None)
    strides: list = given(listing(integer(low=1)), [1, 2])
    label: str = text()


def test_the_command_line_sets_every_option_and_values_survive_fairseqs_configuration():
    made = config_class("made", *entries(Everything))
    parser = argparse.ArgumentParser()
    gen_parser_from_dataclass(parser, made())
    line = ["--size", "5", "--rate", "0.25", "--on", "--off", "--kind", "b", "--most", "7", "--strides", "[3]"]
    found = values_of(made.from_namespace(parser.parse_args([*line, "--label", "x"])), Everything)
    numbers = {"size": 5, "rate": 0.25, "most": 7, "strides": [3]}
    assert plain(read(Everything, found, "")) == numbers | {"on": False, "off": True, "kind": "b", "label": "x"}
    unset = values_of(made.from_namespace(parser.parse_args([])), Everything)
    with pytest.raises(ConfigError, match=r"model\.label must be set"):
        read(Everything, unset, "model")
    values = plain(Everything(size=9, on=False, most=None, strides=[4, 5], label="y"))
    assert unset == {k: v for k, v in plain(Everything(label="")).items() if k != "label"}
    config = {"model": {"name": "x"} | values, "mapping": {"name": "softmax"}}
    group = architectures.model_group(config, Everything)
    given = OmegaConf.create({name: group[name] for name in values})
    assert values_of(OmegaConf.merge(OmegaConf.structured(made), given), Everything) == values


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
    if family == "seq2seq":
        mapping = {"name": "fusedmax", "lam": 0.5, "gamma": 1.0, "at": {}, "grid": {"lam": [0.1]}}
        options = models.architecture(family, "lstm").Options
        model = {"name": "lstm"} | plain(options(hidden_dim=7))
        found = architectures.model_group({"model": model, "mapping": mapping}, options)
        assert found["_name"] == "sa_seq2seq" and found["hidden_dim"] == 7 and found["mapping"] == "fusedmax"
        assert found["mapping_params"] == '{"lam": 0.5, "gamma": 1.0, "at": {}}'
