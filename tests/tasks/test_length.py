"""Length generalisation: its sequences, its models, what a rerun skips, and its page."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import entmax
import pytest
import torch

from benchmarks.length import report, training

RATES = training.RATES["sort"]
WEIGHTS = {"softmax": torch.softmax, "SSMax": torch.softmax, "sparsemax": entmax.sparsemax}
SMALL = training.Options(width=8, heads=2, steps=2, batch=2, warmup=1)


def answers(task, symbols):
    """The right answers by plain Python, from the symbols that the model reads."""
    if task == "flip-flop":
        written = [bit for command, bit in zip(symbols[::2], [*symbols[1::2], None]) if command == 2]
        return written[-1:]
    source = symbols[1 : symbols.index(training.SYMBOLS + 1)]
    return [*(sorted(source) if task == "sort" else reversed(source)), training.SYMBOLS + 2]


@pytest.mark.parametrize("task", ["sort", "flip-flop", "reverse"])
def test_targets_are_the_right_answers_and_the_model_reads_those_before(task):
    assert training.TASKS.get(task + training.LONGER, training.TASKS[task]) is training.TASKS[task]
    x, y = training.TASKS[task](40, 10, torch.Generator().manual_seed(0))
    for symbols, targets in zip(x.tolist(), y.tolist()):
        found = [target for target in targets if target != training.IGNORED]
        assert found == answers(task, symbols) and targets[-len(found) :] == found
        if task == "flip-flop":
            assert (symbols[0], symbols[-1]) == (2, 4) and {*symbols[2:-1:2]} <= {2, 3} and {*symbols[1::2]} <= {0, 1}
        else:
            assert symbols[0] == training.SYMBOLS > max(symbols[1:11]) and symbols[12:] == found[:-1]
    if task == "flip-flop":
        assert 0.03 < (x[:, 2:-1:2] == 2).float().mean() < 0.25


@pytest.mark.parametrize("attention", training.ATTENTIONS)
def test_attention_is_the_formula(attention):
    """By loops over models, sequences, heads and queries, with weights in plain torch."""
    models = training.Decoders(attention, replace(SMALL, width=12, heads=6), (3, 4))
    x, n = torch.randn(2, 3, 5, 12), 5
    of = {"s": torch.rand(2, 6, 1) + 0.5, "adapt": torch.randn(2, 12, 12) / 2, "bias": torch.randn(2, 1, 12)}
    q, k, v = torch.randn(3, 6, 6, 5, 2)
    found = models.attend(q, k, v, models.scale(x, of)).view(2, 3, 6, 5, 2)
    for m in range(2):
        for b in range(3):
            for head in range(6):
                for i in range(n):
                    scores = torch.stack([q[3 * m + b, head, i] @ k[3 * m + b, head, j] for j in range(i + 1)]) / 2**0.5
                    if head < 3:
                        scores = scores - torch.arange(i, -1, -1) / (head + 1)
                    elif attention in ("SSMax", "entmax 1.5 log n"):
                        scores = scores * of["s"][m, head] * math.log(i + 2)
                    elif attention == "ASEntmax":
                        drawn = x[m, b, i] @ of["adapt"][m] + of["bias"][m, 0]
                        beta, gamma = (1 + drawn[head].exp()).log(), 2 * drawn[6 + head].tanh()
                        scores = scores * (1 + beta * math.log(i + 2) ** gamma)
                    weights = WEIGHTS.get(attention, entmax.entmax15)(scores, -1)
                    assert torch.allclose(found[m, b, head, i], weights @ v[3 * m + b, head, : i + 1], atol=1e-4)


def test_training_is_adam_with_clipped_gradients_and_a_schedule():
    """Of two models with different rates; each is compared with Adam's formulas (Kingma & Ba 2015, algorithm 1)."""
    o = replace(SMALL, steps=3, warmup=2)  # step 2 of 3: 1/2 + cos(2 pi / 3) / 2 = .25
    found = training.train("sort", "softmax", o, [4, 5], [0.02, 0.3])
    for seed, rate, flat in zip((4, 5), (0.02, 0.3), found.flat):
        models = training.Decoders("softmax", o, [seed])
        lengths, draw = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1000 + seed)
        first, second = torch.zeros(2, *models.flat.shape)
        for step, factor in enumerate((0.5, 0.25, 0.0), start=1):
            x, y = training.sort(2, 2 * int(torch.randint(2, 9, (), generator=lengths)), draw)
            loss = torch.nn.functional.cross_entropy(models(x[None])[0].flatten(0, 1), y.flatten())
            (grad,) = torch.autograd.grad(loss, models.flat)
            grad = grad / max(1.0, grad.norm().item())
            first, second = 0.9 * first + 0.1 * grad, 0.99 * second + 0.01 * grad**2
            move = first / (1 - 0.9**step) / ((second / (1 - 0.99**step)).sqrt() + 1e-8)
            models.flat.data -= rate * factor * move
        assert torch.allclose(flat, models.flat[0], atol=1e-6)


def test_exact_match_and_token_accuracy():
    """Of two models: the first is always right, the second errs in the last answer of every other sequence."""
    seen = []

    def answering(x):
        seen.append(x.shape[1])
        end = torch.full_like(x[..., :1], training.SYMBOLS + 2)
        scores = torch.nn.functional.one_hot(torch.cat([x[..., 1:], end], -1), training.SYMBOLS + 3)
        scores[1, ::2, -1, 0] = 2
        return scores

    answering.flat = torch.zeros(2, 1)
    found = training.evaluate(answering, "sort", 4, 1030, 0)  # more than fit at once
    assert sum(seen) == 1030 and len(seen) > 1
    assert found[0].tolist() == [100, 100]
    assert found[1].tolist() == pytest.approx([50, 90], abs=0.2)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(training, "TASKS", {"sort": training.sort, "flip-flop": training.flip_flop})
    monkeypatch.setattr(training, "OPTIONS", dict.fromkeys(("sort", "flip-flop"), SMALL))
    monkeypatch.setattr(training, "SEEDS", {"sort": (1, 2, 3, 4, 5), "flip-flop": (6, 7, 8, 9, 10)})
    monkeypatch.setattr(training, "COUNT", 3)
    monkeypatch.setattr(training.provenance, "code_version", lambda: {"commit": "cafe", "dirty": False})


def test_a_rerun_trains_what_is_missing_alone_and_the_rates_come_first(tiny, tmp_path, monkeypatch):
    asked, whole = [], training.train
    monkeypatch.setattr(training, "train", lambda *of: asked.append(of) or whole(*of))
    file = tmp_path / "length.jsonl"
    training.run(file, lambda line: None)
    rows = training.read(file)
    assert len(rows) == 2 * 6 * (3 + 5) and len(asked) == 2 * 6 * 2
    for (task, attention, _, seeds, rates), (*_, others, constant) in zip(asked[::2], asked[1::2]):
        assert (seeds, rates) == ((0,) * 3, training.RATES[task]) and others == training.SEEDS[task]
        assert constant == (training.chosen(rows, task, attention),) * 5
    assert all(row["code"] == {"commit": "cafe", "dirty": False} for row in rows)
    lines = file.read_text().splitlines(keepends=True)
    asked.clear()
    training.run(file, lambda line: None)
    assert asked == [] and file.read_text() == "".join(lines)
    file.write_text("".join(lines[:5] + lines[6:]))  # one seed of softmax
    training.run(file, lambda line: None)
    assert [of[3] for of in asked] == [(3,)] and len(training.read(file)) == len(rows)
    again = json.loads(file.read_text().splitlines()[-1])
    assert again["found"].keys() == {str(n) for n in training.TESTS}
    assert again["seed"] == 3 and again["cpu_seconds"] >= 0
    made = training.record(file)
    assert len(made["rows"]) == len(rows) and made["unfinished"] == [] and "code" in made["rows"][0]
    assert [one["task"] for one in made["rows"]] == ["flip-flop"] * 48 + ["sort"] * 48
    parts = [line for line in lines if not ('"flip-flop"' in line and '"sparsemax"' in line and '"test"' in line)]
    file.write_text("".join(parts))
    made = training.record(file)
    assert {row["task"] for row in made["rows"]} == {*made["options"]} == {"sort"}
    assert made["unfinished"] == ["flip-flop"]
    monkeypatch.setattr(training, "OPTIONS", dict.fromkeys(("sort", "flip-flop"), replace(SMALL, steps=1)))
    assert training.read(file) == []
    with pytest.raises(ValueError, match="no task with all attentions; next"):
        training.record(file)


def row(task, attention, stage, seed, rate, **found):
    told = {"task": task, "attention": attention, "stage": stage, "seed": seed, "rate": rate, "cpu_seconds": 30.0}
    return told | {"found": {n[1:]: value for n, value in found.items()}}


def test_the_rate_is_that_of_the_best_token_accuracy_on_dev():
    def rows(*tokens):
        found = zip(RATES, tokens)
        made = [row("sort", "softmax", "rate", 0, rate, n16=[1, a], n24=[99 - a, b]) for rate, (a, b) in found]
        other = row("sort", "SSMax", "rate", 0, 7.0, n16=[100, 100], n24=[100, 100])
        return [*made, other, row("sort", "softmax", "test", 1, 8.0, n16=[100, 100])]

    slow, middle, fast = RATES
    assert training.chosen(rows((90, 50), (80, 70), (95, 40)), "sort", "softmax") == middle
    assert training.chosen(rows((90, 50), (80, 50), (95, 46)), "sort", "softmax") == fast
    assert training.chosen(rows((90, 50), (80, 60), (90, 50)), "sort", "softmax") == slow


def test_a_page_without_a_difference_and_without_all_tasks(tmp_path):
    """What the committed page does not have: its numbers, and what it says of them, are in test_claims_page.py."""
    rows = [
        row(task, attention, "test", seed, 0.006, n16=[90 + seed, 95], n24=[50, 80], n32=[40 + seed, 70 + seed])
        for task in ("sort", "flip-flop")
        for attention in ("softmax", "ASEntmax")
        for seed in range(1, 6)
    ]
    record = {"seeds": {"sort": [1, 2, 3, 4, 5]}, "lengths": [16, 24, 32], "count": 9, "designed": "2001-02-03"}
    record |= {"symbols": 8, "unfinished": ["other"], "options": dict.fromkeys(("sort", "flip-flop"), SMALL.__dict__)}
    record |= {"torch": "2.0", "machine": "a machine", "rows": rows}
    text = report.write(record, tmp_path).read_text()
    assert "none of 2 comparisons with softmax shows a difference" in text and "also has other" in text
    assert "fully right in" not in text and "they ran before records named their commit" in text
    assert json.loads((tmp_path / "length.json").read_text()) == json.loads(json.dumps(record))
    assert "ASEntmax" in (tmp_path / "figures" / "length.svg").read_text()
