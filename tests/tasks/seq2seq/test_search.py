"""Beam search: against all outputs there are, greedy decoding by hand, its rules for stopping and length; decoding a split."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sparse_attention as sa
from repro.options import read
from tasks.commands import attention_of
from tasks.commands.attention_of import Finished
from tasks.data.progress import untold
from tasks.data.records import Pair
from tasks.data.symbols import EOS, PAD, UNK
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import beam_search, decode
from tasks.use.model import load_cell

OPENNMT, FAIRSEQ = {"length": "none", "stop": "best"}, {"length": "average", "stop": "all"}


def options(**given) -> Decode:
    return read(Decode, {"max_len_b": 7} | given, "decode")


@torch.no_grad()
def log_probability(model, source: torch.Tensor, output: list[int]) -> torch.Tensor:
    """Of each token of an output, by teacher forcing: no state, no beam."""
    prev = torch.tensor([[EOS, *output[:-1]]])
    logits, _ = model(source.unsqueeze(0), torch.tensor([len(source)]), prev)
    return MAPPINGS[model.options.output](logits[0]).log()[range(len(output)), output]


def outputs(words: int, longest: int):
    """Every output of 1 to `longest` words: any id but padding and the end of sentence, then the end."""
    ids = [i for i in range(words + 4) if i not in (PAD, EOS)]
    for length in range(1, longest + 1):
        for output in itertools.product(ids, repeat=length):
            yield [*output, EOS]


MAPPINGS = {None: sa.softmax, "entmax15": sa.entmax, "sparsemax": sa.sparsemax}
RULES = [("softmax", FAIRSEQ), *(("fusedmax", rules) for rules in (OPENNMT, FAIRSEQ, FAIRSEQ | {"len_penalty": 0.6}))]
RULES = [(*rule, None) for rule in RULES] + [("softmax", FAIRSEQ, "entmax15"), ("softmax", FAIRSEQ, "sparsemax")]


@pytest.mark.parametrize("mapping, rules, output", RULES, ids=str)
def test_a_beam_that_holds_everything_finds_the_best_output(build, batch, mapping, rules, output):
    """With a sparse output layer, all outputs whose probability is not 0."""
    given = {"words": 2, "init_range": 1.5, "seed": 10 if output else 3, "output": output}
    model = build(mapping, {"gamma": 0.1} if mapping == "fusedmax" else {}, **given)
    inputs, _ = batch([[0, 1, 1], [1]])
    found = beam_search(model, inputs["src_tokens"], inputs["src_lengths"], options(beam=300, max_len_b=3, **rules))
    for row, length in enumerate((3, 1)):
        source = inputs["src_tokens"][row, :length]
        power = rules.get("len_penalty", 1.0) if rules["length"] == "average" else 0.0
        scores = {tuple(y): float(log_probability(model, source, y).sum()) / len(y) ** power for y in outputs(2, 3)}
        every, scores = len(scores), {y: score for y, score in scores.items() if score > -math.inf}
        assert (0 < len(scores) < every) if output else len(scores) == every
        best = max(scores, key=scores.get)
        assert tuple(found[row][0].ids) == best
        for hypothesis in found[row]:
            assert hypothesis.score == pytest.approx(scores[tuple(hypothesis.ids)], abs=1e-4)
        if rules["stop"] == "all":  # all outputs there are, in order
            ranking = sorted(scores, key=scores.get, reverse=True)
            assert [tuple(h.ids) for h in found[row]] == ranking[: len(found[row])] and len(found[row]) == len(ranking)


class Chain:
    """Probabilities by hand: p(word | previous word), one source, no attention to speak of."""

    def __init__(self, table: dict[int, dict[int, float]], words: int = 8) -> None:
        self.log_p = torch.full((words, words), -torch.inf)
        for previous, row in table.items():
            for word, p in row.items():
                self.log_p[previous, word] = math.log(p)

    def encode(self, src_tokens, src_lengths):
        return {"source": src_tokens}

    def start(self, memory):
        return {"steps": torch.zeros(len(memory["source"]), 1)}

    def step(self, tokens, memory, state):
        return self.log_p[tokens], torch.ones(len(tokens), memory["source"].size(1)), {"steps": state["steps"] + 1}


def search(table, **given):
    (found,) = beam_search(Chain(table), torch.tensor([[4]]), torch.tensor([1]), options(**given))
    return found


A, B, C = 4, 5, 6


def test_best_stops_when_the_best_extension_ends_and_all_goes_on():
    # B ends first with log .36; the beam's best goes on through A and its outputs are worse: .64 * .5 = .32
    table = {EOS: {A: 0.64, B: 0.36}, A: {A: 0.5, C: 0.5}, B: {EOS: 1.0}, C: {EOS: 1.0}}
    (found,) = search(table, beam=2, **OPENNMT)  # one: at that step B </s> tops the beam
    assert found.ids == [B, EOS] and found.score == pytest.approx(math.log(0.36))
    # step 2 ranks A </s> .45, B </s> .24, B C .16, A C .15: OpenNMT stops there, fairseq wants a third output
    table = {EOS: {A: 0.6, B: 0.4}, A: {EOS: 0.75, C: 0.25}, B: {EOS: 0.6, C: 0.4}, C: {EOS: 1.0}}
    assert [h.ids for h in search(table, beam=3, **OPENNMT)] == [[A, EOS], [B, EOS]]
    three = search(table, beam=3, **FAIRSEQ)
    assert {tuple(h.ids) for h in three} == {(A, EOS), (B, EOS), (B, C, EOS)}


def test_nothing_of_probability_0_comes_out_and_where_nothing_else_is_left_the_best_hypothesis_is_cut():
    rest = {word: {EOS: 1.0} for word in range(8)}
    table = rest | {EOS: {A: 0.6, B: 0.4}, A: {A: 1.0}}
    (found,) = search(table, beam=3, max_len_b=2, **FAIRSEQ)  # A A never ends
    assert found.ids == [B, EOS] and found.score == pytest.approx(math.log(0.4) / 2)
    (found,) = search(table | {B: {A: 1.0}}, beam=3, max_len_b=2, **OPENNMT)
    assert found.ids == [A, A, EOS] and found.score == pytest.approx(math.log(0.6))
    assert [h.ids for h in search(rest, beam=3, **FAIRSEQ)] == [[EOS]]  # an output needs a word, and none is possible


def test_fewer_results_are_the_first_ones_and_divergence_is_told(build, sentences):
    (inputs, _), model, calls = sentences, build("sparsemax", {"gamma": 0.1}, attention="additive", seed=4), []
    model.attention.scores.from_key.register_forward_hook(lambda *_: calls.append("key"))
    model.attention.scores.from_query.register_forward_hook(lambda *_: calls.append("query"))
    asked = inputs["src_tokens"], inputs["src_lengths"], options(beam=4)
    whole, two = (beam_search(model, *asked, most) for most in (None, 2))
    assert calls.count("key") == 2 < calls.count("query")
    for mine, theirs in zip(two, whole, strict=True):
        assert len(theirs) == 4 and [(h.ids, h.score) for h in mine] == [(h.ids, h.score) for h in theirs[:2]]
        assert all(torch.equal(a.attention, b.attention) for a, b in zip(mine, theirs))
    with torch.no_grad():
        model.generator.bias.fill_(math.nan)
    with pytest.raises(ValueError, match="probabilities are NaN"):
        beam_search(model, *asked)


ROWS = [np.array(row, dtype=np.int32) for row in ([4, 9, 15, 6], [7, 7], [20], [11, 12, 13, 14, 22], [5, 9, 5])]
TOKENS = [[f"s{i}.{j}" for j in range(len(row))] for i, row in enumerate(ROWS)]
VOCABULARY = [f"w{i}" for i in range(20)]


def decoded(model, done=untold, share=slice(None), **given):
    split = SimpleNamespace(source=ROWS, source_tokens=TOKENS)
    encoded = SimpleNamespace(splits={"test": split}, target_vocab=VOCABULARY)
    found = decode(model, encoded, options(**{"beam": 2} | given), done, share=share)
    return [best for (best,) in found]


@pytest.fixture
def talker(build):
    """A model that likes to say the unknown word, not always."""
    model = build("sparsemax", {"gamma": 0.1}, init_range=1.0, seed=4)
    with torch.no_grad():
        model.generator.bias[UNK] += 3.0
    return model


def test_outputs_come_in_order_whatever_the_batches_and_the_share_of_the_sources(talker):
    one, all_ = decoded(talker, batch_size=1), decoded(talker, batch_size=5)
    assert [h.index for h in one] == [0, 1, 2, 3, 4] == [h.index for h in all_]
    for i, (a, b) in enumerate(zip(one, all_)):
        assert a.ids == b.ids and a.tokens == b.tokens and a.attention.shape == (len(a.ids), len(ROWS[i]))
        torch.testing.assert_close(a.attention, b.attention)
        assert a.attention.dtype == torch.float32
    odd = decoded(talker, share=slice(1, None, 2))
    assert [(h.index, h.ids) for h in odd] == [(h.index, h.ids) for h in all_[1::2]]
    seen = []
    talker.train()
    short = decoded(talker, seen.append, batch_size=2, max_len_b=2)
    assert seen == [0.4, 0.8, 1.0] and not talker.training and all(len(h.tokens) <= 2 for h in short)
    lengths = [len(h.tokens) for h in decoded(talker, max_len_a=1.0, max_len_b=1)]
    assert all(n <= len(row) + 1 for n, row in zip(lengths, ROWS)) and max(lengths) > 2


def test_unknown_words_are_copied_from_where_the_attention_looks(talker):
    plain, copied = decoded(talker, replace_unk=False), decoded(talker, replace_unk=True)
    kinds = set()
    for i, (a, b) in enumerate(zip(plain, copied)):
        assert (UNK in a.ids) == (UNK in b.ids) == ("<unk>" in a.tokens) and "<unk>" not in b.tokens
        for t, (before, after) in enumerate(zip(a.tokens, b.tokens, strict=True)):
            expected = TOKENS[i][int(a.attention[t].argmax())] if before == "<unk>" else before
            assert after == expected
            assert before == "<unk>" or before == VOCABULARY[a.ids[t] - 4] or a.ids[t] < 4
            kinds.add((before == "<unk>", after))
    assert {unknown for unknown, _ in kinds} == {True, False}, "needs both unknown and known words"
    assert len({word for unknown, word in kinds if unknown}) > 1, "always the same position shows little"


def test_forced_attention_is_that_of_teacher_forcing(learned, tmp_path):
    """Of two trained rows, one of them fused; on a test sentence and its reference."""
    cells = []
    for mapping in ("softmax", "fusedmax"):
        cell, entry = learned(mapping)
        found = SimpleNamespace(evaluations={"test": entry.evaluation(cell.evaluation_id(cell.tests[0]))})
        given = {"entry": lambda store, entry=entry: entry, "results": lambda store, found=found: found}
        cells.append((mapping, SimpleNamespace(mapping=mapping, config=cell.config, **given)))
    of = Finished("title", None, cells, str(tmp_path))
    (kept,) = attention_of.examples(of, [2], "references")
    source, output = kept["source"], kept["references"][0]
    with pytest.raises(ValueError, match=r"\[99999\] have no stored references"):
        attention_of.examples(of, [2, 99999], "references")
    one, other = (heat for line in attention_of.forced(of, source, output).lines for heat in line)
    assert (one.title, other.title) == ("softmax", "fusedmax") and list(one.down) == list(other.down)
    assert not np.allclose(one.weights, other.weights, atol=1e-3)
    for heat, (_, row) in zip((one, other), cells):
        assert heat.weights.shape == (len(heat.down), len(heat.across))
        loaded = load_cell(row.entry(None).folder)
        with loaded.as_test_set([Pair(source, (output,))], {"digits": None}) as test, torch.no_grad():
            ids = torch.tensor([test.splits["test"].source[0].tolist()])
            before = torch.tensor([[EOS, *test.splits["test"].target[0].tolist()]])
            _, attention = loaded.model(ids, torch.tensor([ids.size(1)]), before)
        np.testing.assert_allclose(heat.weights, attention[0].numpy(), atol=1e-5)
