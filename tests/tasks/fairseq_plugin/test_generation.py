"""Beam search: one beam is greedy decoding by hand; unknown words are copied from where the attention looks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from tasks.fairseq_plugin import generation


class Dataset:
    """Sources as LanguagePairDataset would give them to the generator."""

    def __init__(self, sources: list[list[int]], pad: int) -> None:
        self.sources, self.pad = sources, pad
        self.src_sizes = torch.tensor([len(s) for s in sources]).numpy()

    def __getitem__(self, i: int):
        return i, self.sources[i]

    def collater(self, items):
        longest = max(len(s) for _, s in items)
        tokens = torch.tensor([[*s, *[self.pad] * (longest - len(s))] for _, s in items])
        return {
            "id": torch.tensor([i for i, _ in items]),
            "net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(self.pad).sum(1)},
        }


@pytest.fixture
def task(symbols):
    """Five sources of different lengths whose surface words are s0, s1, ..."""
    sources = [[4, 9, 15, 6], [7, 7], [20], [11, 12, 13, 14, 22], [5, 9, 5]]
    part = SimpleNamespace(source_tokens=lambda i: [f"s{j}" for j in range(len(sources[i]))])
    data = Dataset(sources, symbols.pad())
    return SimpleNamespace(
        load_dataset=lambda split: None, dataset=lambda split: data, target_dictionary=symbols,
        encoded=SimpleNamespace(splits={"test": part, "dev": part}), sources=sources,
    )  # fmt: skip


def greedy(model, source: list[int], symbols, longest: int):
    """Argmax after argmax with teacher forcing of the whole prefix: no incremental state, no beam."""
    tokens, attention, score = [symbols.eos()], [], 0.0
    src = torch.tensor([source])
    for step in range(longest + 1):
        logits, extra = model(src, torch.tensor([len(source)]), torch.tensor([tokens]))
        logp = torch.log_softmax(logits[0, -1], -1)
        logp[symbols.pad()] = -math.inf
        if step == 0:  # fairseq's outputs have at least one word
            logp[symbols.eos()] = -math.inf
        best = symbols.eos() if step == longest else int(logp.argmax())
        attention.append(extra["attn"][0][0, -1])
        score += float(logp[best])
        tokens.append(best)
        if best == symbols.eos():
            break
    return tokens[1:], torch.stack(attention), score / (len(tokens) - 1)


@pytest.mark.parametrize(
    "mapping, params", [("softmax", {}), ("sparsemax", {"gamma": 0.1}), ("fusedmax", {"gamma": 0.1})]
)
@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_one_beam_is_greedy(build, task, symbols, mapping, params, feeding, batch_size):
    model = build(mapping, params, input_feeding=feeding, bidirectional=True, init_range=1.0, seed=4)
    with torch.no_grad():
        model.decoder.generator.bias[symbols.eos()] += 2.0  # some outputs shall end before the limit
    found = generation.decode(
        model, task, "test", beam=1, max_len_a=0, max_len_b=7, replace_unk=False, batch_size=batch_size
    )  # fmt: skip
    hypotheses = {h.index: h for h in found}
    assert sorted(hypotheses) == list(range(5))
    lengths = set()
    for i, source in enumerate(task.sources):
        tokens, attention, score = greedy(model, source, symbols, 7)
        h = hypotheses[i]
        assert h.tokens == [symbols[t] for t in tokens[:-1]]
        assert h.attention.shape == (len(tokens), len(source))
        torch.testing.assert_close(h.attention, attention.float(), atol=1e-5, rtol=0)
        assert h.score == pytest.approx(score, abs=1e-4)
        lengths.add(len(tokens))
    assert lengths != {8}, "every output was cut at the limit: the test says nothing about stopping"


def test_a_wider_beam_never_finds_a_worse_output(build, task):
    model = build("sparsemax", {"gamma": 0.1}, init_range=1.0, seed=4)
    scores = []
    for beam in (1, 8):
        found = generation.decode(model, task, "test", beam=beam, max_len_a=0, max_len_b=7, len_penalty=0.0)
        scores.append({h.index: h.score for h in found})
    assert all(scores[1][i] >= scores[0][i] - 1e-6 for i in scores[0])
    assert scores[0] != scores[1]


def test_unknown_words_are_copied_from_where_the_attention_looks(build, task, symbols):
    model = build("sparsemax", {"gamma": 0.1}, init_range=1.0, seed=4)
    with torch.no_grad():
        model.decoder.generator.bias[symbols.unk()] += 3.0  # likes to say <unk>, not always
    options = {"beam": 2, "max_len_a": 0, "max_len_b": 7}
    plain = {h.index: h for h in generation.decode(model, task, "test", replace_unk=False, **options)}
    copied = {h.index: h for h in generation.decode(model, task, "test", replace_unk=True, **options)}
    kinds = set()
    for i, h in plain.items():
        for t, (before, after) in enumerate(zip(h.tokens, copied[i].tokens, strict=True)):
            expected = f"s{int(h.attention[t].argmax())}" if before == "<unk>" else before
            assert after == expected
            kinds.add((before == "<unk>", after))
    assert {unknown for unknown, _ in kinds} == {True, False}, "needs both unknown and known words"
    assert len({word for unknown, word in kinds if unknown}) > 1, "always the same position shows little"


def test_limit_and_progress(build, task):
    seen = []
    found = list(
        generation.decode(build(), task, "test", beam=1, max_len_a=0, max_len_b=2, limit=3, batch_size=2,
                          done=lambda i, n: seen.append((i, n)))
    )  # fmt: skip
    assert sorted(h.index for h in found) == [0, 1, 2]
    assert seen == [(2, 3), (3, 3)]
    assert all(len(h.tokens) <= 2 for h in found)
