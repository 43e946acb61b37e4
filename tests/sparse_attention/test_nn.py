import copy
import itertools

import pytest
import torch
from torch import nn

import sparse_attention as sa
from tasks.layers import attention

CONSTRUCTED = [{}, {"batch_first": True}, {"bias": False}, {"add_bias_kv": True}, {"kdim": 5, "vdim": 7}]
CONSTRUCTED += [{"add_zero_attn": True, "batch_first": True}, {"kdim": 5, "add_bias_kv": True, "add_zero_attn": True}]
BOTH_TYPES = [None, "bool", "float"]


def pair(**given):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(6, 3, **given)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours = sa.nn.MultiheadAttention(6, 3, **given, mapping="softmax")
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def typed(mask, kind):
    """A mask True = drop as torch takes it; floats also add."""
    if kind is None or kind == "bool":
        return None if kind is None else mask
    return torch.randn(mask.shape).masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("given", CONSTRUCTED, ids=str)
def test_with_softmax_it_is_torchs(given):
    theirs, ours = pair(**given)
    B, T, S = 2, 4, 5
    dims = 6, given.get("kdim") or 6, given.get("vdim") or 6
    q, k, v = torch.randn(B, T, dims[0]), torch.randn(B, S, dims[1]), torch.randn(B, S, dims[2])
    drop = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    away = torch.ones(T, S, dtype=torch.bool).triu(2)
    own = away.repeat(B * 3, 1, 1) & (torch.rand(B * 3, T, S) < 0.7)
    for padding, kind, heads, weights, average, single in itertools.product(
        BOTH_TYPES, BOTH_TYPES, (False, True), (True, False), (True, False), (False, True)
    ):
        if (kind is None and heads) or (padding and kind and padding != kind) or (not weights and not average):
            continue
        pad, mask = typed(drop, padding), typed(own if heads else away, kind)
        rows = (q, k, v)
        if single:
            pad, rows = None if pad is None else pad[1], tuple(x[1] for x in rows)
            mask = mask[:3] if heads else mask
        elif not given.get("batch_first"):
            rows = tuple(x.transpose(0, 1) for x in rows)
        rows = [tuple(x.clone().requires_grad_() for x in rows) for _ in range(2)]
        asked = {"key_padding_mask": pad, "attn_mask": mask, "need_weights": weights, "average_attn_weights": average}
        (expected, p), (found, own_p) = (m(*x, **asked) for m, x in zip((theirs, ours), rows))
        assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5), asked
        assert (p is None) == (own_p is None) and (p is None or torch.allclose(own_p, p, atol=1e-6))
        for m, out in ((theirs, expected), (ours, found)):
            m.zero_grad()
            out.square().sum().backward()
        pairs = [(a.grad, b.grad) for a, b in (*zip(*rows), *zip(theirs.parameters(), ours.parameters()))]
        top = max(float(a.abs().max()) for a, _ in pairs)
        assert all(torch.allclose(a, b, atol=1e-5 * top) for a, b in pairs), asked


def test_the_start_and_the_state_are_torchs():
    for given in CONSTRUCTED:
        torch.manual_seed(3)
        theirs = nn.MultiheadAttention(6, 3, **given).state_dict()
        torch.manual_seed(3)
        ours = sa.nn.MultiheadAttention(6, 3, **given, mapping="entmax", alpha=1.5)
        assert list(ours.state_dict()) == list(theirs)
        assert all(torch.equal(ours.state_dict()[name], value) for name, value in theirs.items())
        nn.MultiheadAttention(6, 3, **given).load_state_dict(ours.state_dict())


@pytest.mark.parametrize("mapping", ["sparsemax", "fusedmax"])
def test_the_fast_ways_are_the_slow_one(mapping):
    attend = sa.nn.MultiheadAttention(6, 3, batch_first=True, mapping=mapping)
    x = 4 * torch.randn(2, 9, 6)
    causal = torch.ones(9, 9, dtype=torch.bool).triu(1)
    right, left = torch.zeros(2, 9, dtype=torch.bool), torch.zeros(2, 9, dtype=torch.bool)
    right[1, 6:], left[1, :3] = True, True
    for pad, mask in itertools.product((None, right, left), (None, causal)):
        asked = {"key_padding_mask": pad, "attn_mask": mask, "is_causal": mask is not None}
        slow, weights = attend(x, x, x, **asked)
        assert torch.allclose(attend(x, x, x, **asked, need_weights=False)[0], slow, atol=1e-5)
        assert (weights == 0).float().mean() > 0.1
        if pad is not None:
            assert (weights[pad[:, None].expand_as(weights)] == 0).all()
    nowhere, _ = attend(x, x, x, key_padding_mask=torch.ones(2, 9, dtype=torch.bool))
    assert torch.equal(nowhere, attend.out_proj.bias.expand(2, 9, 6))


@pytest.mark.parametrize("replaced", [False, True, "layer"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_inside_torchs_encoder_nothing_passes_it_by(replaced):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    if not replaced:
        layer.self_attn = sa.nn.MultiheadAttention(8, 2, batch_first=True, mapping="sparsemax")
    elif replaced == "layer":
        sa.nn.replace(layer, "sparsemax")
        replaced = False
    encoder = nn.TransformerEncoder(layer, 2)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_()
    if replaced:
        softmax, before = copy.deepcopy(encoder).eval(), dict(encoder.named_parameters())
        assert sa.nn.replace(encoder, "sparsemax") == 2 and not encoder.use_nested_tensor
        assert dict(encoder.named_parameters()).keys() == before.keys()
        assert all(parameter is before[name] for name, parameter in encoder.named_parameters())
    x, pad = torch.randn(2, 9, 8), torch.zeros(2, 9, dtype=torch.bool)
    pad[1, 6:] = True
    trained = encoder.train()(x, src_key_padding_mask=pad)
    encoder.eval()
    with torch.no_grad():
        found = encoder(x, src_key_padding_mask=pad)
    assert torch.allclose(found[~pad], trained[~pad], atol=1e-5)
    if replaced:
        with torch.no_grad():
            assert not torch.allclose(found[~pad], softmax(x, src_key_padding_mask=pad)[~pad], atol=1e-2)
    _, weights = encoder.layers[0].self_attn(x, x, x, key_padding_mask=pad)
    assert (weights[0] == 0).float().mean() > 0.3 and (weights[1, :, 6:] == 0).all()
    alone = encoder(x[1:, :6])
    assert torch.allclose(found[1:, :6], alone, atol=1e-4)
    encoder.layers[0].self_attn._forward_pre_hooks.clear()
    with torch.no_grad(), pytest.raises(RuntimeError, match="would compute softmax instead of Sparsemax"):
        encoder.layers[0](x)


@pytest.mark.parametrize("norm_first", [False, True])
def test_inside_torchs_decoder(norm_first):
    torch.manual_seed(1)
    layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    theirs = nn.TransformerDecoder(layer, 2)
    ours = copy.deepcopy(theirs)
    assert sa.nn.replace(ours, "softmax") == 4
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    asked = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(5), "tgt_is_causal": True}
    asked["memory_key_padding_mask"] = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    for _ in range(2):
        assert torch.allclose(ours(x, memory, **asked), theirs(x, memory, **asked), atol=1e-5)
        ours.eval(), theirs.eval()
    sparse = copy.deepcopy(theirs)
    sa.nn.replace(sparse, "entmax", alpha=1.5)
    sparse.train()(x, memory, **asked).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in sparse.parameters())


def test_dropout_is_of_the_weights():
    attend = sa.nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True, mapping="softmax")
    x = torch.randn(4, 20, 6)
    _, p = attend.train()(x, x, x, average_attn_weights=False)
    assert (p == 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert float(p.sum(-1).mean()) == pytest.approx(1.0, abs=0.1)
    outs = [attend(x, x, x, need_weights=False)[0] for _ in range(2)]
    assert not torch.equal(*outs)
    assert (attend.eval()(x, x, x)[1] > 0).all()


def test_a_second_replacement_changes_the_mapping():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    x, kept = torch.randn(1, 5, 8), layer.self_attn.in_proj_weight
    assert sa.nn.replace(layer, "sparsemax") == 1 and not layer.self_attn.training
    assert sa.nn.replace(layer.train(), "entmax", alpha="learned") == 1
    assert layer.self_attn.mapping.spec.name == "entmax" and layer.self_attn.mapping.training
    assert {p.shape for name, p in layer.named_parameters() if "mapping" in name} == {(2, 1)}  # a value for each head
    layer.self_attn(x, x, x, need_weights=False)[0].square().sum().backward()
    assert (layer.self_attn.mapping.alpha_logit.grad != 0).all() and layer.self_attn.in_proj_weight is kept
    assert sa.nn.replace(layer, "softmax") == 1
    assert (layer.self_attn(x, x, x)[1] > 0).all()


def test_a_learned_parameter_is_where_the_module_is():
    attend = sa.nn.MultiheadAttention(4, 2, device="meta", mapping="entmax", alpha="learned")
    assert all(parameter.is_meta for parameter in attend.parameters())
    layer = nn.TransformerEncoderLayer(8, 2, 16, device="meta")
    for mapping in ("entmax", "entmax"):
        sa.nn.replace(layer, mapping, alpha="learned")
        assert all(parameter.is_meta for parameter in layer.parameters())


@pytest.mark.parametrize(
    "mapping", ["continuous_sparsemax", "sparsemap_matching", "sparsemap_tree", "constrained_sparsemax"]
)
def test_a_mapping_that_attention_cannot_use_is_refused_at_once(mapping):
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    with pytest.raises(ValueError, match=f"{mapping} (works over a|needs bounds)"):
        sa.nn.replace(layer, mapping)
    assert type(layer.self_attn) is nn.MultiheadAttention


@pytest.mark.parametrize("weights", [False, True])
def test_an_added_mask_can_be_learned_from_zeros_on(weights):
    attend, x = sa.nn.MultiheadAttention(6, 3, batch_first=True), torch.randn(2, 4, 6)
    mask, padding = torch.zeros(4, 4, requires_grad=True), torch.zeros(2, 4, requires_grad=True)
    attend(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=weights)[0].square().sum().backward()
    assert mask.grad.abs().sum() > 0 and padding.grad.abs().sum() > 0


ALONG, X, HIDDEN = sa.make("sparsemax", dim=1), torch.randn(4, 2, 6), torch.zeros(4, 2, dtype=torch.bool)
ATTEND = sa.nn.MultiheadAttention(6, 3)
REFUSED = [
    (lambda: sa.nn.MultiheadAttention(6, 4), "embed_dim=6 is not a multiple of num_heads=4"),
    (
        lambda: sa.nn.MultiheadAttention(6, 3, mapping=sa.make("entmax"), alpha=1.5),
        "allowed only with a mapping's name",
    ),
    (lambda: sa.nn.MultiheadAttention(8, 2, mapping=ALONG), "along dim=1, but attention needs the last"),
    (lambda: attention.Attention(attention.DotScores(), ALONG), "along dim=1, but attention needs the last"),
    (lambda: ATTEND(X, X, X, key_padding_mask=HIDDEN), r"key_padding_mask .*\(4, 2\); it should be \(2, 4\)"),
    (
        lambda: ATTEND(X, X, X, attn_mask=HIDDEN.new_zeros(2, 4, 4)),
        r"attn_mask .*\(2, 4, 4\); it should be \(6, 4, 4\)",
    ),
    (lambda: ATTEND(X, X, X, is_causal=True), "pass that mask as attn_mask"),
    (lambda: sa.nn.replace(nn.Linear(2, 2)), "Linear contains no"),
]


@pytest.mark.parametrize("call, message", REFUSED)
def test_what_is_refused(call, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_the_loop_over_sequences(layout):
    """attention/test_nested.py has their gradients."""
    torch.manual_seed(0)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    sa.nn.replace(decoder, "entmax", alpha="learned")
    rows, others = ([torch.randn(n, 8) for n in ns] for ns in ((40, 3, 40), (5, 1, 40)))
    x, y = (torch.nested.as_nested_tensor(part, layout=layout) for part in (rows, others))
    found = decoder.self_attn(x, y, y, need_weights=False)[0].unbind()
    alone = [decoder.self_attn(a, b, b, need_weights=False)[0] for a, b in zip(rows, others)]
    torch.testing.assert_close(found, tuple(alone), atol=1e-5, rtol=1e-4)
    if layout == torch.jagged:
        for a, b, c in zip(rows, others, decoder(x, y, tgt_is_causal=True).unbind()):
            causal = nn.Transformer.generate_square_subsequent_mask(len(a))
            torch.testing.assert_close(c, decoder(a, b, tgt_mask=causal, tgt_is_causal=True), atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_what_nested_tensors_cannot_have_is_refused(layout):
    x, dense = torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)], layout=layout), torch.randn(2, 3, 6)
    padding, asked = torch.zeros(2, 3, dtype=torch.bool), {"need_weights": False}
    cases = [
        ({}, (x, x), {}),
        ({}, (x, x), {**asked, "attn_mask": padding}),
        ({}, (x, x), {**asked, "key_padding_mask": padding}),
        ({}, (x, dense), asked),
        ({}, (dense, x), asked),
        ({"batch_first": False}, (x, x), asked),
        ({"add_bias_kv": True}, (x, x), asked),
        ({"add_zero_attn": True}, (x, x), asked),
    ]
    for made, (query, key), given in cases:
        attend = sa.nn.MultiheadAttention(6, 3, **{"batch_first": True, **made})
        with pytest.raises(ValueError, match=r"nested query, key and value need .*; or pad them"):
            attend(query, key, key, **given)


@pytest.mark.parametrize("fill", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
@pytest.mark.parametrize("weights", [True, False])
def test_large_negative_numbers_hide_as_true_does(fill, weights):
    """Softmax gives them the weight 0; fusedmax, which looks at neighbours, has to be told."""
    torch.manual_seed(0)
    x, attend = torch.randn(3, 12, 16), sa.nn.MultiheadAttention(16, 4, batch_first=True, mapping="fusedmax")
    drop, padded = torch.ones(12, 12, dtype=torch.bool).triu(2), torch.arange(12) >= torch.tensor([12, 9, 4])[:, None]
    drop[:, 1] = True

    def run(mask, padding):
        return attend(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=weights)

    added = [torch.zeros(m.shape).masked_fill(m, fill) for m in (drop, padded)]
    for found, want in ((run(*added), run(drop, padded)), (run(added[0], padded), run(drop, padded))):
        torch.testing.assert_close(found, want, atol=0, rtol=0)


def test_a_state_dict_with_a_learned_mapping_needs_strict_false():
    theirs, ours = nn.MultiheadAttention(8, 2), sa.nn.MultiheadAttention(8, 2, mapping="entmax", alpha="learned")
    assert ours.load_state_dict(theirs.state_dict(), strict=False) == (["mapping.alpha_logit"], [])
    assert theirs.load_state_dict(ours.state_dict(), strict=False) == ([], ["mapping.alpha_logit"])
    for into, source in ((ours, theirs), (theirs, ours)):
        with pytest.raises(RuntimeError, match=r"mapping\.alpha_logit"):
            into.load_state_dict(source.state_dict())


def test_a_bias_that_is_a_float_is_the_mappings_until_0_4():
    for bias, flag in ((False, False), (None, False), (2, True)):
        assert (sa.nn.MultiheadAttention(8, 2, bias=bias).in_proj_bias is not None) == flag
    with pytest.warns(DeprecationWarning, match=r"sa.make\('sigmoid', bias=-1.0\)"):
        attend = sa.nn.MultiheadAttention(8, 2, mapping="sigmoid", bias=-1.0)
    assert attend.in_proj_bias is not None and attend.mapping.bias == -1.0
    attend = nn.MultiheadAttention(8, 2)
    sa.nn.replace(attend, "sigmoid", bias=-1.0)
    assert attend.mapping.bias == -1.0
