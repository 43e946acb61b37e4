"""Small wrapped models and batches."""

import json
from types import SimpleNamespace

import pytest
import torch

import tasks.fairseq_plugin  # noqa: F401  registers the models
from tasks.fairseq_plugin.seq2seq import dictionary

SYMBOLS = dictionary([f"w{i}" for i in range(20)])
PAD = SYMBOLS.pad()


@pytest.fixture
def symbols():
    return SYMBOLS


SIZES = {"sa_seq2seq": {"embed_dim": 6, "hidden_dim": 8, "layers": 2, "init_range": 0.7}}
SIZES |= {"sa_transformer": {"hidden_dim": 8, "ff_dim": 12, "layers": 2, "heads": 2}}


@pytest.fixture
def build():
    """`build("fusedmax", {"lam": .1}, layers=2)`: a small `sa_seq2seq`, or another `arch`, as fairseq builds it, in eval mode, in
    double precision."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    def build(mapping: str = "softmax", params: dict | None = None, seed: int = 1, arch: str = "sa_seq2seq", **options):
        given = {"mapping": mapping, "mapping_params": json.dumps(params or {})} | SIZES[arch] | options
        torch.manual_seed(seed)
        task = SimpleNamespace(source_dictionary=SYMBOLS, target_dictionary=SYMBOLS)
        return MODEL_REGISTRY[arch].build_model(MODEL_DATACLASS_REGISTRY[arch](**given), task).double().eval()

    return build


@pytest.fixture
def batch(batch):
    """`batch(sources, targets, left=True)`: net_input and target of rows of word numbers; sources padded on the right or the left."""

    def make(sources, targets, left: bool = False):
        inputs, target = batch(sources, targets, left)
        counts = {"ntokens": int(target.ne(PAD).sum()), "nsentences": len(targets)}
        return {"net_input": inputs, "target": target, **counts}

    return make


@pytest.fixture
def sentences(batch, five_pairs):
    """`sentences(left=False)`: five pairs of different lengths."""
    return lambda left=False: batch(*five_pairs, left)
