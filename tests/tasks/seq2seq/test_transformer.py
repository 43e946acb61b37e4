"""The Transformer: torch's own layers with softmax, one path for training and search with every mapping, three places."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparse_attention as sa
from tasks.config import models
from tasks.data.symbols import FIRST, PAD
from tasks.layers import attention
from tasks.seq2seq.models import transformer

ROWS = [n for n in sa.names("simplex") if sa.spec(n).over == "row" and sa.spec(n).domain == "real"]
LEARNED = {"name": "entmax", "alpha": "learned"}


def node(name: str) -> dict:
    """gamma = 0.1, where there is one: untrained scores are flat, and the sparse mappings shall have zeros here."""
    return {"name": name} | ({"gamma": 0.1} if "gamma" in sa.spec(name).defaults else {})


NODES = [pytest.param(node(name), id=name) for name in ROWS] + [pytest.param(LEARNED, id="entmax learned")]
SELF = {"encoder": {"name": "sigmoid"}, "decoder": {"name": "softmax1"}}
NODES.append(pytest.param(node("softmax") | {"at": SELF}, id="self-attention that does not sum to 1"))


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


def loss_of(model, inputs, target):
    return F.cross_entropy(model(**inputs)[0].flatten(0, 1), target.flatten(), ignore_index=PAD)


@pytest.mark.parametrize(
    "mapping, pre_norm", [*((one.values[0], False) for one in NODES), (node("fusedmax"), True)], ids=str
)
def test_training_is_what_the_search_sees(
    transform, sentences, assert_search_sees_training, assert_alone_as_in_a_batch, monkeypatch, mapping, pre_norm
):
    model = transform(mapping, pre_norm=pre_norm)
    assert_search_sees_training(model, sentences[0])
    assert_alone_as_in_a_batch(model, *sentences)
    asked, whole = [], attention.sparse_attention
    monkeypatch.setattr(
        attention, "sparse_attention", lambda *x, **o: asked.append(o["need_weights"]) or whole(*x, **o)
    )
    model(**sentences[0])
    assert asked == [False] * (2 + 3) + [True], "weights of the last cross-attention alone, of three in two layers each"


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


def test_the_mapping_of_each_place_changes_the_training_loss(transform, sentences):
    """A framework's fused softmax in one of the paths would make two of these equal."""
    chosen = {"none": {}} | {place: {place: node("sparsemax")} for place in transformer.PLACES}
    losses, gradients = {}, {}
    for where, at in chosen.items():
        model = transform(node("softmax") | {"at": at}, dropout=0.0).train()
        loss = loss_of(model, *sentences)
        loss.backward()
        losses[where], gradients[where] = loss.item(), model.source_embed.weight.grad.norm().item()
    assert len({round(v, 6) for v in losses.values()}) == len({round(v, 6) for v in gradients.values()}) == 4, losses
    model = transform(node("softmax") | {"at": chosen["decoder"]})
    names = [[layer.own.mapping.spec.name, layer.cross.mapping.spec.name] for layer in model.decoder]
    assert names == [["sparsemax", "softmax"]] * 2 and model.encoder[0].own.mapping.spec.name == "softmax"


GRADIENTS = [(one.values[0], {}) for one in NODES] + [(LEARNED, {"pre_norm": True, "share_embeddings": True})]


@pytest.mark.parametrize("mapping, options", GRADIENTS, ids=str)
def test_gradients_are_finite_differences(transform, sentences, mapping, options):
    """In word vectors (padding's count nowhere), the projections at every place, learned alphas."""
    model = transform(mapping, layers=1, **options)
    names, parameters = zip(*model.named_parameters())

    def loss(*values):
        call = torch.func.functional_call
        return loss_of(lambda **given: call(model, dict(zip(names, values)), kwargs=given), *sentences)

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)
    assert all(slope.any() for slope in torch.autograd.grad(loss(*parameters), parameters))


def test_each_head_of_each_layer_learns_its_alpha(transform, sentences):
    model = transform(LEARNED | {"at": {"cross": node("softmax")}}).train()
    names = [name for name, _ in model.named_parameters() if name.endswith("alpha_logit")]
    assert names == [f"{side}.{i}.own.mapping.alpha_logit" for side in ("encoder", "decoder") for i in range(2)]
    alphas = torch.cat([dict(model.named_parameters())[name].flatten() for name in names]).sigmoid() + 1
    assert alphas.shape == (8,) and len(set(alphas.tolist())) == 8
    assert models.learned(model) == {"alpha": pytest.approx(alphas.mean().item())}
    assert models.learned(transform()) == {}
    x = torch.randn(5, 2, 7, 7, dtype=torch.float64)  # a mapping of one head: the other head's alpha has no part
    mapping = model.encoder[0].own.mapping
    for head in range(2):
        expected = sa.entmax(x[:, head], alpha=mapping.learned()["alpha"][head].item())
        torch.testing.assert_close(mapping(x)[:, head], expected)
    before, optimiser = alphas.clone(), torch.optim.Adam(model.parameters(), lr=0.01)
    loss_of(model, *sentences).backward()
    optimiser.step()
    after = torch.cat([dict(model.named_parameters())[name].flatten() for name in names]).sigmoid() + 1
    assert (after != before).all()


def test_shared_matrices(transform):
    apart = transform(share_output=False)
    assert len({id(t.weight) for t in (apart.source_embed, apart.target_embed, apart.generator)}) == 3
    output, every = transform(), transform(share_embeddings=True)
    assert output.generator.weight is output.target_embed.weight is not output.source_embed.weight
    assert every.generator.weight is every.target_embed.weight is every.source_embed.weight
    assert apart.source_embed.weight[PAD].eq(0).all() and every.generator.weight[PAD].eq(0).all()
