"""Python in place of fairseq's compiled parts: the same batches, and BLEU. What is imported late."""

import hashlib
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from fairseq import scoring

from tasks.data.examples import batch_by_size_vec
from tests.conftest import ROOT


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


def test_batches_are_those_of_the_compiled_function():
    """The digest was taken from the compiled extension of ve-fairseq 0.12.3 over the same 2,000 cases."""
    found = [[b.tolist() for b in batch_by_size_vec(*case)] for case in batch_cases(2000)]
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    assert digest == "49a34195f26450e63d3bc75b4dbc8e010ea11354fde341bba5476d3571ff413f"
    with pytest.raises(AssertionError, match="longest example has 7 tokens; max_tokens is 5"):
        batch_by_size_vec(np.arange(2), np.array([3, 7]), 5, -1, 1)


def test_the_default_scorer_of_fairseq_generate_needs_no_extension():
    """The number is sacreBLEU's for the same texts: 3, 2, 1 and no n-grams of 4, 3, 2 and 1, smoothed."""
    scorer = scoring.build_scorer("bleu", SimpleNamespace(pad=lambda: 1, eos=lambda: 2, unk=lambda: 3))
    scorer.add_string("a b c d", "a b c e")
    assert scorer.score() == pytest.approx(sacrebleu.corpus_bleu(["a b c e"], [["a b c d"]]).score) != 0
    assert scorer.result_string().startswith("BLEU")


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
