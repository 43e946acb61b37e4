"""Plain Python in place of fairseq's compiled parts: the same batches and the same BLEU counts. What is imported late."""

import hashlib
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import scoring
from fairseq.scoring import bleu

from tasks.fairseq_plugin import uncompiled
from tests.conftest import ROOT

BLEU = SimpleNamespace(pad=1, eos=2, unk=3)


def batch_cases(count):
    """Examples and bounds, the same on every machine."""
    draw = random.Random(7)
    for _ in range(count):
        n, longest = draw.randint(0, 60), draw.randint(1, 39)
        lengths = [draw.randint(1, longest) for _ in range(n)]
        if draw.random() < 0.5:
            lengths.sort()
        order = draw.sample(range(n), n)
        bounds = draw.choice([-1, 0, 40, 60, 100, 300]), draw.choice([-1, 0, 1, 2, 5, 8, 16]), draw.choice([1, 2, 3, 8])
        yield np.array(order, dtype=np.int64), np.array(lengths, dtype=np.int64), *bounds


def sentences(count):
    draw = random.Random(8)
    for _ in range(count):
        firsts = (draw.choice(range(4, 9)) for _ in "ab")
        yield [[first, *(draw.choice(range(1, 9)) for _ in range(draw.randint(0, 11)))] for first in firsts]


def digest(found: list) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()


def test_batches_are_those_of_the_compiled_function():
    """The digest was taken from the compiled extension of ve-fairseq 0.12.3 over the same 2,000 cases."""
    cases = [*batch_cases(2000)]
    found = [[b.tolist() for b in uncompiled.batch_by_size_vec(*case)] for case in cases]
    assert digest(found) == "49a34195f26450e63d3bc75b4dbc8e010ea11354fde341bba5476d3571ff413f"
    for (order, lengths, *bounds), batches in zip(cases[:300], found):  # by a function of lengths
        length = dict(zip(order.tolist(), lengths.tolist())).__getitem__
        assert [b.tolist() for b in uncompiled.batch_by_size_fn(order, length, *bounds)] == batches
    with pytest.raises(AssertionError, match="longest example has 7 tokens; max_tokens is 5"):
        uncompiled.batch_by_size_vec(np.arange(2), np.array([3, 7]), 5, -1, 1)


def test_bleu_counts_are_those_of_the_compiled_scorer_and_need_no_extension():
    """The digest was taken from libbleu of ve-fairseq 0.12.3 over the same 1,000 pairs, added two at a time."""
    scorer, found = bleu.Scorer(BLEU), []
    for number, pair in enumerate(sentences(1000)):
        if number % 2 == 0:
            scorer.reset(one_init=number % 4 == 0)
        scorer.add(*(torch.tensor(ids, dtype=torch.int32) for ids in pair))
        found.append([getattr(scorer.stat, name) for name, _ in scorer.stat._fields_])
    assert digest(found) == "09ebba6dc01fe9b0444b1cb2ec91fa8d862a5737a69ec548105d573c74aa19b7"
    scorer = scoring.build_scorer("bleu", SimpleNamespace(**{k: lambda i=i: i for k, i in vars(BLEU).items()}))
    scorer.add(torch.tensor([5, 6, 7, 8, 2], dtype=torch.int32), torch.tensor([1, 5, 6, 7, 8, 2, 2], dtype=torch.int32))
    assert scorer.score() == pytest.approx(100.0)
    with pytest.raises(TypeError, match=r"pred must be a torch\.IntTensor"):
        scorer.add(torch.tensor([5], dtype=torch.int32), torch.tensor([5]))


HEAVY = {"torch._dynamo", "sklearn", "scipy.stats", "pandas", "wandb", "tensorboard", "matplotlib", "sympy"}
TRAINING = f"""
import sys
import tasks.seq2seq.rouge, tasks.fairseq_plugin.parts as parts, tasks.training.processes, torch
weight = torch.nn.Parameter(torch.zeros(2))
optim = {{"name": "adam", "lr": 0.1, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.0}}
optimizer = parts.Parts("", {{"optim": optim}}, None).optimizer([weight], fused=False)
weight.grad = torch.ones(2)
optimizer.step(), optimizer.zero_grad(), optimizer.load_state_dict(optimizer.state_dict())
print({HEAVY!r} & set(sys.modules), weight.tolist())
"""


def test_what_takes_longer_to_import_than_a_tiny_cell_is_imported_when_it_is_called():
    command = [sys.executable, "-c", TRAINING]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "set() [-0.10000000149011612, -0.10000000149011612]\n", done.stderr
    from fairseq.criterions.sentence_prediction import f1_score

    assert f1_score([1, 0], [1, 0]) == 1
