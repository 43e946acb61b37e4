"""Models behind fairseq's interfaces: one attention in training, decoding and its search; configurations lose nothing."""

import argparse
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

import sparse_attention as sa
from repro.options import plain, read
from tasks.config import models
from tasks.data.ragged import Ragged
from tasks.data.symbols import EOS, FIRST, PAD
from tasks.fairseq_plugin import architectures
from tasks.fairseq_plugin.architectures import registered_name, values_of
from tasks.fairseq_plugin.seq2seq import Pairs, SparseTokens, Tokens, dictionary
from tasks.seq2seq.encode import Split
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import beam_search

FUSED = ("fusedmax", {"lam": 0.1, "gamma": 0.1})  # untrained scores are flat, and there shall be zeros here


def whole(model, net_input):
    """Teacher forcing: logits [B, T, V] and attention [B, T, S] of all steps at once."""
    logits, extra = model(**net_input)
    return logits, extra["attn"][0]


def test_a_source_padded_on_the_left_has_its_attention_there(build, sentences):
    model, right, left = build(*FUSED), sentences()["net_input"], sentences(left=True)["net_input"]
    (logits, attention), (same, moved) = whole(model, right), whole(model, left)
    torch.testing.assert_close(same, logits)
    for i, length in enumerate(right["src_lengths"].tolist()):
        torch.testing.assert_close(moved[i, :, -length:], attention[i, :, :length])


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
    ours = Pairs(Split(source, target, (), (), tmp_path / "train.pairs.jsonl"), training=True)
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
@pytest.mark.parametrize("ends, left", [(-1.0, False), (1.0, True), (3.0, False)])
def test_the_same_hypotheses(build, batch, symbols, mapping, params, beam, penalty, ends, left):
    """Of fairseq's search, with the wrapped model's steps, also of sources padded on the left; and of ours."""
    model = build(mapping, params, bidirectional=True, init_range=1.0, seed=4)
    with torch.no_grad():
        model.net.generator.bias[symbols.eos()] += ends  # outputs end early, late or at the limit
    net_input, given = (batch(SOURCES, [[1]] * 5, side)["net_input"] for side in (False, left))
    generator = SequenceGenerator([model], symbols, beam_size=beam, max_len_a=0, max_len_b=7, len_penalty=penalty)
    theirs = generator.generate([model], {"net_input": given})
    rules = {"beam": beam, "max_len_b": 7, "len_penalty": penalty, "length": "average", "stop": "all"}
    options = read(Decode, rules, "decode")
    ours = beam_search(model.net, net_input["src_tokens"], net_input["src_lengths"], options)
    for source, found, expected in zip(SOURCES, ours, theirs, strict=True):
        assert [h.ids for h in found] == [h["tokens"].tolist() for h in expected]
        for h, e in zip(found, expected):
            assert h.score == pytest.approx(float(e["score"]), abs=1e-4)
            words = slice(-len(source), None) if left else slice(len(source))
            torch.testing.assert_close(h.attention, e["attention"].t()[:, words].float(), atol=1e-5, rtol=0)


FAMILIES = ("seq2seq", "classification", "vqa")


# what is typed, and the options that it sets
TYPED = "--hidden-dim 6 --dropout 0.25 --input-feeding --residual --attention dot --output sparsemax"
SET = {"hidden_dim": 6, "dropout": 0.25, "attention": "dot", "output": "sparsemax"}
LINES = [(("seq2seq", "lstm"), TYPED, SET), (("vqa", "mcan"), "--cnn-channels [3,4]", {"cnn_channels": [3, 4]})]


@pytest.mark.parametrize("architecture, line, values", LINES)
def test_the_command_line_sets_options_and_values_survive_fairseqs_configuration(architecture, line, values):
    options = models.architecture(*architecture).Options
    made = MODEL_DATACLASS_REGISTRY[registered_name(architecture[1])]
    parser, plainly = argparse.ArgumentParser(), plain(options())
    gen_parser_from_dataclass(parser, made())
    found = values_of(made.from_namespace(parser.parse_args(line.split())), options)
    turned = {name: not plainly[name] for name in ("input_feeding", "residual") if name in plainly}
    assert found == plainly | values | turned
    group = architectures.model_group({"model": {"name": "x"} | found, "mapping": {"name": "softmax"}}, options)
    given = OmegaConf.create({name: group[name] for name in found})
    assert values_of(OmegaConf.merge(OmegaConf.structured(made), given), options) == found


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
