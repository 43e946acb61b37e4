"""The model: each part against its formula in other words, invariances, and that the rows of the table differ."""

from __future__ import annotations

import math
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

import sparse_attention as sa
from repro.options import read
from tasks.config.models import mappings_at, problems
from tasks.data.symbols import FIRST, PAD
from tasks.layers.words import density_alpha
from tasks.vqa.encode import ImageSpec
from tasks.vqa.models._layers import Attend, Reduced, SmallCnn, cell_weights
from tasks.vqa.models.mcan import PLACES, Model, Options

TINY = {"layers": 2, "hidden_dim": 16, "heads": 2, "ff_dim": 32, "dropout": 0.0, "embed_dim": 8, "flat_mlp_dim": 16}
TINY |= {"flat_out_dim": 12}
FEATURES = ImageSpec("features", (3, 4), 5)
DENSITIES = ("continuous_softmax", "continuous_triweight", "continuous_biweight", "continuous_sparsemax")
ROWS = ("softmax", *DENSITIES, "continuous_mixture")


def model(mapping: str = "softmax", images: ImageSpec = FEATURES, **more) -> Model:
    torch.manual_seed(0)
    options = read(Options, TINY | more, "model")
    given = SimpleNamespace(image_spec=images, word_count=FIRST + 20, answers="abcdefg", vectors=None)
    return Model(options, given, mappings_at({"name": mapping}, PLACES)).eval()


def batch(questions: int = 6, length: int = 5):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(FIRST, FIRST + 20, (questions, length), generator=generator)
    features = torch.randn(3, 12, 5, generator=generator)
    return tokens, features, torch.randint(0, 3, (questions,), generator=generator)


def test_attention_is_torchs_multi_head_attention():
    torch.manual_seed(0)
    ours, theirs = Attend(16, 4, 0.0), torch.nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((ours.query.weight, ours.both.weight)))
        theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.both.bias)))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    x, y = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    keep = torch.arange(7) < torch.tensor([[7], [4], [1]])
    torch.testing.assert_close(ours(x, y, keep), theirs(x, y, y, key_padding_mask=~keep)[0])


@pytest.mark.parametrize("mapping", ["softmax", *DENSITIES])
def test_padding_and_company_do_not_change_an_answer(mapping):
    net, (tokens, features, owner) = model(mapping), batch()
    logits, _ = net(tokens, features, owner)
    padded = torch.cat((tokens, torch.full((6, 3), PAD)), 1)
    torch.testing.assert_close(net(padded, features, owner)[0], logits, atol=1e-5, rtol=1e-5)
    alone, _ = net(tokens[2:3], features[owner[2]].unsqueeze(0), torch.zeros(1, dtype=torch.long))
    torch.testing.assert_close(alone, logits[2:3], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mapping", ["sparsemax", "tvmax"])
def test_discrete_reduction_is_a_weighted_sum(mapping):
    """A mapping over grids sees rows and columns."""
    net, (tokens, features, owner), seen, asked = model(mapping), batch(), {}, []
    net.reduce_image.score.register_forward_hook(lambda m, i, o: seen.update(y=i[0]))
    net.reduce_image.mapping.register_forward_pre_hook(lambda _, given: asked.append(given[0]))
    _, reduced = net(tokens, features, owner)
    assert [x.shape for x in asked] == [(6, 12) if mapping == "sparsemax" else (6, 3, 4)]
    p = getattr(sa, mapping)(asked[0]).reshape(6, 12)
    torch.testing.assert_close(reduced.weights, p)
    torch.testing.assert_close(reduced.context, net.reduce_image.merge(torch.einsum("bl,bld->bd", p, seen["y"])))
    assert reduced.mu is None and not problems({"name": mapping}, PLACES)


def test_rows_of_the_table_answer_differently():
    logits = {mapping: model(mapping)(*batch())[0] for mapping in ROWS}
    for a, b in combinations(ROWS, 2):
        assert (logits[a] - logits[b]).abs().max() > 1e-5, (a, b)


def test_sizes_of_a_small_cnn():
    pixels = ImageSpec("pixels", (21, 30), 3)
    out = SmallCnn([4, 6], [2, 2])(torch.randint(0, 256, (2, *pixels.grid, 3), dtype=torch.uint8))
    assert SmallCnn.grid(pixels.grid, [2, 2]) == (6, 8) and out.shape == (2, 48, 6)
    assert model("continuous_softmax", pixels, cnn_channels=[4, 6], cnn_strides=[2, 2]).grid == (6, 8)


def test_the_mapping_is_the_density_and_the_model_names_whose_moments_it_takes():
    tokens, features, owner = batch()
    found = {d: model("continuous_sparsemax", discrete=d)(tokens, features, owner)[1] for d in ("softmax", "sparsemax")}
    assert found["softmax"].weights.gt(0).all() and found["sparsemax"].weights.eq(0).any()
    assert (found["softmax"].mu - found["sparsemax"].mu).abs().max() > 1e-3
    node = {"name": "softmax", "at": {"image": {"name": "continuous_sparsemax"}}}
    assert density_alpha(mappings_at(node, PLACES)["image"]) == 2
    assert [density_alpha(sa.make(m)) for m in ("entmax", *DENSITIES)] == pytest.approx([None, 1, 4 / 3, 1.5, 2])


@pytest.mark.parametrize("mapping", ["softmax", "continuous_softmax", "continuous_sparsemax"])
def test_half_precision_answers_like_full(mapping):
    """What fairseq's bf16 does: parameters and features in bfloat16. Continuous attention is float64 inside."""
    net, (tokens, features, owner) = model(mapping), batch()
    full, _ = net(tokens, features, owner)
    half, _ = net.bfloat16()(tokens, features.bfloat16(), owner)
    assert half.dtype == torch.bfloat16 and torch.isfinite(half).all()
    assert (half.float() - full).abs().max() < 0.1 * full.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, _ = model(mapping)(tokens, features, owner)
    assert (mixed.float() - full).abs().max() < 0.1 * full.abs().max()


def test_cell_weights_are_the_density_and_vanish_outside_its_support():
    mu, sigma = torch.tensor([[0.5, 0.5]]), 0.002 * torch.eye(2).unsqueeze(0)
    p = torch.full((1, 400), 1 / 400)
    gaussian = cell_weights(Reduced(p, p, mu, sigma), 1.0, (20, 20))
    assert gaussian.sum().item() == pytest.approx(1, abs=1e-3) and (gaussian > 0).all()
    truncated = cell_weights(Reduced(p, p, mu, sigma), 2.0, (20, 20))
    assert truncated.sum().item() == pytest.approx(1, abs=0.05)
    area = 2 * math.sqrt(math.pi) * float(torch.linalg.det(sigma[0])) ** 0.25  # PAPERS 7.1
    assert truncated.gt(0).float().mean().item() == pytest.approx(area, rel=0.1)
    assert cell_weights(Reduced(p, p), None, (20, 20)) is p
