"""Finished cells of every family, so small that each trains within seconds."""

from functools import cache

import pytest
import torch
from small_vqa2 import write_vqa2
from torch import nn

from tasks.data.dataset import DataSet, content_sha256
from tasks.data.records import Pair
from tasks.data.symbols import EOS, FIRST, PAD

SMALL = ("profile=demo", "runtime.device=cpu", "train.max_epochs=1", "train.batch_size=10")
TEXTS = "data.limits={train:60,dev:20,test:12} encode.vectors=null model.embed_dim=8 model.hidden_dim=8".split()
TEXTS += ["task.keep_attention=12"]
_REVIEWS = ["task=imdb", "data=toy_reviews", *TEXTS, "mapping=sparsemax", "model.score_dim=8"]
_SELF = "model=imdb_transformer_small model.ff_dim=8 model.heads=2 model.layers=1".split()
_PAIRS = "task=toy data.limits={train:48,dev:16,test:8} model=transformer_small".split()
_PAIRS += "model.hidden_dim=8 model.ff_dim=8 model.layers=1 model.heads=2 optim=adam schedule=inverse_sqrt decode.beam=2 decode.max_len_b=8".split()
_PAIRS += "mapping=entmax encode.tokenizer=moses_lower encode.subword=bpe encode.vocab_size=60".split()
_VQA2 = "task=vqa data=vqa2 data.dev_share=0.2 encode.min_answer_count=2 model.embed_dim=8 model.heads=2".split()
_VQA2 += "model.layers=1 model.flat_mlp_dim=8".split()
_PIXELS = "data.input=pixels data.image_size=[16,16] mapping=sparsemax task.keep_attention=30".split()
_PIXELS += "model.hidden_dim=16 model.ff_dim=16 model.flat_out_dim=16".split()
_DOCUMENTS = "task=multilabel data=synthetic data.sizes={train:60,dev:30,test:20} task.fit.iterations=10".split()
CELLS = {
    "sentiment": _REVIEWS,
    "vectors": [*_REVIEWS, "encode.vectors=ppmi", "encode.vector_dim=6", "model.fixed_vectors=true"],
    "reviews": [*_REVIEWS[:2], *_SELF, *TEXTS, "mapping=sparsemax"],
    "entailment": ["task=snli", "data=toy_entailment", *TEXTS, "mapping=sparsemax"],
    "esim": ["task=snli_esim", "data=toy_entailment", *TEXTS, "mapping=sparsemap_matching"],
    "esim_rows": ["task=snli_esim", "data=toy_entailment", *TEXTS, "mapping=entmax"],
    "transformer": _PAIRS,
    "vqa": [*_VQA2, *_PIXELS],
    "questions": [*_VQA2, "data.input=none", "model.hidden_dim=8", "model.ff_dim=8", "model.flat_out_dim=8"],
    "multilabel": [*_DOCUMENTS, "mapping=sparsemax", "task.tune.penalties=[0.1,0.01]"],
}


@pytest.fixture(scope="session")
def vqa2_folder(tmp_path_factory):
    """A folder with a small set of questions about images in the published format."""
    folder = tmp_path_factory.mktemp("pictures")
    write_vqa2(folder)
    return folder


@pytest.fixture
def tiny_backbone():
    """Two convolutions with random weights in place of ResNet-152."""
    from tasks.data.features import Backbone

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 4), nn.ReLU()).eval()
    for parameter in net.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape)
    return Backbone(net, "tiny", 32, (2, 2), 16)


@pytest.fixture(scope="session")
def small_cell(prepared_cell, ran, tiny, vqa2_folder, tmp_path_factory):
    """`small_cell(name)`: (cell, entry) of "pairs" or of one of CELLS, trained and scored once."""
    from repro.store import Store

    @cache
    def small_cell(name: str):
        asked = [*SMALL[: 2 if name == "multilabel" else None], *CELLS.get(name, ())]
        asked = [*tiny, "mapping=sparsemax"] if name == "pairs" else asked
        asked += [f"data.path={vqa2_folder}"] if name in ("vqa", "questions") else []
        cell = prepared_cell(asked)
        return cell, ran(cell, Store(tmp_path_factory.mktemp(name)))

    return small_cell


@pytest.fixture
def weights_asked(monkeypatch):
    """Of each call of `sa.sparse_attention` by our layers, whether it asked for the weights."""
    from tasks.layers import attention

    asked, whole = [], attention.sparse_attention

    def watched(*inputs, **options):
        asked.append(options["need_weights"])
        return whole(*inputs, **options)

    monkeypatch.setattr(attention, "sparse_attention", watched)
    return asked


def padded(rows, left: bool = False):
    longest = max(map(len, rows))
    fill = [[PAD] * (longest - len(r)) for r in rows]
    return torch.tensor([[*f, *r] if left else [*r, *f] for r, f in zip(rows, fill)])


@pytest.fixture(scope="session")
def batch():
    """`batch(sources, targets, left)`: src_tokens, src_lengths, prev_output_tokens and targets of rows of word numbers.

    Sources are padded on the right or the left.
    """

    def make(sources, targets=None, left: bool = False):
        src, tgt = ([[FIRST + w for w in row] for row in rows] for rows in (sources, targets or [[]] * len(sources)))
        tokens, before = padded(src, left), padded([[EOS, *t] for t in tgt])
        inputs = {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1), "prev_output_tokens": before}
        return inputs, padded([[*t, EOS] for t in tgt])

    return make


@pytest.fixture(scope="session")
def sentences(batch, five_pairs):
    return batch(*five_pairs)


@pytest.fixture(scope="session")
def five_pairs():
    """Word numbers of five pairs of different lengths: sources, targets."""
    generator = torch.Generator().manual_seed(3)

    def draw(length):
        return torch.randint(20, (length,), generator=generator).tolist()

    return [draw(n) for n in (7, 5, 3, 2, 1)], [draw(n) for n in (4, 6, 1, 3, 5)]


@pytest.fixture(scope="session")
def dataset():
    """`dataset(train=[(source, target), ...], dev=..., digits="#")`: a data set of pairs, two references each."""

    def make(train=(), dev=(), test=(), references=("another reference",), name="little", **about) -> DataSet:
        given = {"train": train, "dev": dev, "test": test}
        splits = {split: [Pair(s, (t, *references)) for s, t in pairs] for split, pairs in given.items()}
        hashes = {split: content_sha256(pairs) for split, pairs in splits.items()}
        languages = {"source_lang": "fr", "target_lang": "en"}
        return DataSet(name, "pairs", hashes, lambda progress: splits, "written here", about=languages | about)

    return make
