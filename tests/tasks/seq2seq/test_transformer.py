"""The Transformer: torch's own layers with softmax, one path for training and search with every mapping, three places."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparse_attention as sa
from tasks.config import models
from tasks.data.symbols import FIRST, PAD
from tasks.seq2seq.models import transformer

ROWS = [n for n in sa.names("simplex") if sa.spec(n).over == "row" and sa.spec(n).domain == "real"]
LEARNED = {"name": "entmax", "alpha": "learned"}


def node(name: str) -> dict:
    """gamma = 0.1, where there is one: untrained scores are flat, and the sparse mappings shall have zeros here."""
    return {"name": name} | ({"gamma": 0.1} if "gamma" in sa.spec(name).defaults else {})


SELF = {"encoder": {"name": "sigmoid"}, "decoder": {"name": "softmax1"}}  # their weights do not sum to 1
NODES = [*map(node, ROWS), LEARNED, node("softmax") | {"at": SELF}]


@pytest.fixture(scope="module")
def transform():
    """`transform({"name": "fusedmax"}, layers=1)`: a small model in evaluation mode, in double precision."""

    def build(mapping=node("softmax"), words: int = 20, seed: int = 1, **options) -> transformer.Model:  # noqa: B008
        sizes = {"name": "transformer", "layers": 2, "hidden_dim": 8, "ff_dim": 12, "heads": 2}
        torch.manual_seed(seed)
        model = models.build("seq2seq", sizes | options, mapping, words + FIRST, words + FIRST).double().eval()
        with torch.no_grad():  # far from flat: attention that matters
            for name, parameter in model.named_parameters():
                if "in_proj_weight" in name:
                    parameter.mul_(3)
        return model

    return build


@pytest.mark.parametrize("mapping, pre_norm", [*((one, False) for one in NODES), (node("fusedmax"), True)], ids=str)
def test_training_is_what_the_search_sees(
    transform, sentences, assert_search_sees_training, assert_alone_as_in_a_batch, weights_asked, mapping, pre_norm
):
    model = transform(mapping, pre_norm=pre_norm)
    assert_search_sees_training(model, sentences[0])
    assert_alone_as_in_a_batch(model, *sentences)
    weights_asked.clear()
    model(**sentences[0])
    every = [False] * (2 + 3) + [True]
    assert weights_asked == every, "weights of the last cross-attention alone, of three in two layers each"


@pytest.mark.parametrize("pre_norm", [False, True])
def test_with_softmax_the_layers_are_torchs(transform, sentences, pre_norm):
    """Our weights in torch's own encoder and decoder layers; positions by the formula of Vaswani et al., section 3.5."""
    model = transform({"name": "softmax"}, pre_norm=pre_norm)
    inputs, _ = sentences
    E = 8
    given = {"dropout": 0.0, "batch_first": True, "norm_first": pre_norm, "dtype": torch.float64}
    renamed = {"own.": "self_attn.", "cross.": "multihead_attn.", "feed.0.": "linear1.", "feed.3.": "linear2."}

    def theirs(layer, kind):
        other, state = kind(E, 2, 12, **given).eval(), {}
        for name, value in layer.state_dict().items():
            for ours, its in renamed.items():
                name = name.replace(ours, its)
            parts = name.split(".")
            state[f"norm{int(parts[1]) + 1}.{parts[2]}" if parts[0] == "norms" else name] = value
        other.load_state_dict(state)
        return other

    def embedded(table, tokens):
        angles = [[t / 10000 ** (2 * i / E) for i in range(E // 2)] for t in range(tokens.size(1))]
        x = torch.tensor(angles, dtype=torch.float64)
        return table(tokens) * math.sqrt(E) + torch.cat((x.sin(), x.cos()), -1)

    ignored, target = inputs["src_tokens"].eq(PAD), inputs["prev_output_tokens"]
    h = embedded(model.source_embed, inputs["src_tokens"])
    for layer in model.encoder:
        h = theirs(layer, nn.TransformerEncoderLayer)(h, src_key_padding_mask=ignored)
    h, g = model.encoder_norm(h), embedded(model.target_embed, target)
    causal = nn.Transformer.generate_square_subsequent_mask(target.size(1), dtype=torch.float64)
    for layer in model.decoder:
        g = theirs(layer, nn.TransformerDecoderLayer)(g, h, tgt_mask=causal, memory_key_padding_mask=ignored)
    expected = F.linear(model.decoder_norm(g), model.target_embed.weight)
    torch.testing.assert_close(model(**inputs)[0], expected, atol=1e-5, rtol=1e-5)  # our positions are single precision


def test_shared_matrices(transform):
    apart = transform(share_output=False)
    assert len({id(t.weight) for t in (apart.source_embed, apart.target_embed, apart.generator)}) == 3
    output, every = transform(), transform(share_embeddings=True)
    assert output.generator.weight is output.target_embed.weight is not output.source_embed.weight
    assert every.generator.weight is every.target_embed.weight is every.source_embed.weight
    assert apart.source_embed.weight[PAD].eq(0).all() and every.generator.weight[PAD].eq(0).all()
