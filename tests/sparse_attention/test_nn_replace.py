"""sa.nn.replace changes only how a module attends: weights, hooks, names and wrappers stay; all modules or none."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import sparse_attention as sa


class Derived(nn.MultiheadAttention):
    """With torch's forward."""

    note = "kept"


class Forwarding(nn.MultiheadAttention):
    def forward(self, *given, **named):
        return super().forward(*given, **named)


class Doubled(nn.Module):
    def forward(self, w):
        return 2 * w


def tensors_alone(a):
    """As FSDP leaves a module: no parameters, but tensors under their names."""
    for part in (a, a.out_proj):
        for name in [name for name, parameter in part._parameters.items() if parameter is not None]:
            setattr(part, name, part._parameters.pop(name).data)


CHANGES = {
    "nothing": lambda a: None,
    "prune_in": lambda a: prune.l1_unstructured(a, "in_proj_weight", 0.3),
    "weight_norm_in": lambda a: weight_norm(a, "in_proj_weight"),
    "spectral_norm_out": lambda a: spectral_norm(a.out_proj),
    "parametrized_in": lambda a: parametrizations.weight_norm(a, "in_proj_weight"),
    "parametrized_out": lambda a: parametrizations.spectral_norm(a.out_proj),
    "one_bias": lambda a: setattr(a, "bias_v", a.bias_k),
    "one_projection": lambda a: setattr(a, "k_proj_weight", a.q_proj_weight),
    "tensors": tensors_alone,
    "frozen": lambda a: a.requires_grad_(False),
    "more": lambda a: (
        setattr(a, "note", "own"),
        a.register_buffer("seen", torch.ones(2)),
        a.add_module("inner", nn.Linear(2, 2)),
    ),
}


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, Derived])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_replacing_changes_only_how_a_module_attends(change, kind):
    torch.manual_seed(0)
    given = {"vdim": 8} if change == "one_projection" else {"add_bias_kv": True}
    attend = kind(16, 2, batch_first=True, **given).double()
    CHANGES[change](attend)
    model, x = nn.ModuleDict({"attend": attend}).eval(), torch.randn(2, 5, 16).double()
    rows = x, x, x[..., : attend.vdim]

    ours = ("_reads_out_proj", "_forward_pre_hooks")

    def state():
        return {
            **{name: (id(p), p.requires_grad) for name, p in model.named_parameters()},
            **{name: id(part) for name, part in model.named_modules() if not name.startswith("attend.mapping")},
            **{name: id(x) for name, x in vars(attend).items() if name not in ours},
            "hooks": [hook for hook in attend._forward_pre_hooks.values() if hook is not sa.nn._unfused],
        }

    kept = attend(*rows)[0]
    before, keys = state(), list(model.state_dict())
    assert sa.nn.replace(model, "softmax") == 1
    assert state() == before and list(model.state_dict()) == keys and not attend.mapping.training
    assert isinstance(attend, kind) and isinstance(attend, sa.nn.MultiheadAttention)
    torch.testing.assert_close(attend(*rows)[0], kept, atol=1e-12, rtol=0)
    if not change.startswith(("prune", "weight", "spectral")):  # torch cannot copy these either
        torch.testing.assert_close(copy.deepcopy(attend)(*rows)[0], kept, atol=1e-12, rtol=0)
    if not change.startswith("param"):  # nor pickle these
        again = pickle.loads(pickle.dumps(attend)) if change != "prune_in" else attend
        assert type(again) is type(attend)
        torch.testing.assert_close(again(*rows)[0], kept, atol=1e-12, rtol=0)


def test_a_parametrization_of_a_replaced_module_can_be_removed_and_copies_stay_apart():
    attend, x = nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 5, 16)
    parametrize.register_parametrization(attend, "in_proj_weight", Doubled())
    theirs, before = copy.deepcopy(attend), attend(x, x, x)[0]
    sa.nn.replace(attend, "softmax")
    parametrize.remove_parametrizations(attend, "in_proj_weight")
    assert type(attend) is sa.nn.MultiheadAttention
    for one in (attend, theirs):
        torch.testing.assert_close(one(x, x, x)[0], before)


def test_a_parametrization_is_computed_once_a_call():
    attend, x, seen = sa.nn.MultiheadAttention(16, 2), torch.randn(5, 2, 16), []
    parametrize.register_parametrization(attend, "in_proj_weight", doubled := Doubled())
    doubled.register_forward_hook(lambda *_: seen.append(1))
    attend(x, x, x)
    assert len(seen) == 1


def test_names_that_share_a_module_still_share_it():
    layers = nn.ModuleList([nn.MultiheadAttention(8, 2)] * 3)
    model = nn.ModuleDict({"layers": layers, "alone": layers[0]})
    assert sa.nn.replace(model, "entmax", alpha="learned") == 1
    assert type(layers[2]) is sa.nn.MultiheadAttention and layers[2] is model["alone"]
    assert sum("alpha" in name for name, _ in model.named_parameters()) == 1


def test_hooks_stay():
    attend, x, seen = nn.MultiheadAttention(8, 2), torch.randn(4, 1, 8, requires_grad=True), []
    for part, name in ((attend, "attend"), (attend.out_proj, "out")):
        part.register_forward_pre_hook(lambda *_, name=name: seen.append(f"{name} pre"))
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
        part.register_full_backward_hook(lambda *_, name=name: seen.append(f"{name} back"))
    sa.nn.replace(attend, "sparsemax")
    attend(x, x, x)[0].sum().backward()
    assert seen == ["attend pre", "out pre", "out", "attend", "out back", "attend back"]


@pytest.mark.parametrize("why", ["a forward of its own", "an attribute 'mapping' of its own", "on the object"])
def test_all_modules_are_replaced_or_none(why):
    bad = Forwarding(8, 2) if why.startswith("a f") else nn.MultiheadAttention(8, 2)
    if why.startswith("an"):
        bad.mapping = "mine"
    elif why == "on the object":
        bad.forward, why = bad.forward, "a forward of its own"  # as packages do that wrap modules
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    model = nn.ModuleDict({"encoder": encoder, "bad": bad})
    with pytest.raises(ValueError, match=rf"bad \({type(bad).__name__}\) has {why}: replace cannot"):
        sa.nn.replace(model, "sparsemax")
    assert type(encoder.layers[0].self_attn) is nn.MultiheadAttention and encoder.use_nested_tensor


WAYS = [("compile", "eager"), ("replace", "eager"), pytest.param("replace", "inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("first, backend", WAYS)
def test_a_compiled_model_attends_with_its_new_mapping(first, backend):
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 9, 8)
    run = torch.compile(layer, backend=backend, fullgraph=True)
    if first == "compile":
        run(x)
    sa.nn.replace(layer, "sparsemax")
    for _ in range(2):
        torch.testing.assert_close(run(x), layer(x))
        layer.eval()


class _Traced(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.own = nn.Linear(8, 8), sa.make("entmax", alpha="learned")
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        out, weights = self.attention(x, x, x, attn_mask=torch.eye(5, dtype=torch.bool), average_attn_weights=False)
        return self.own(self.linear(out), mask=x > -1, dim=1) + weights.sum((1, 3)).unsqueeze(-1)


def test_torch_fx_sees_our_modules_as_it_sees_torchs():
    model, x = _Traced().eval(), torch.randn(2, 5, 8)
    sa.nn.replace(model, "sparsemax")
    traced = torch.fx.symbolic_trace(model)
    leaves = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert leaves == ["attention", "linear", "own"] and torch.equal(traced(x), model(x))

    class Function(nn.Module):
        def forward(self, x):
            return sa.sparsemax(x)

    with pytest.raises(TypeError, match=r"torch\.fx\.symbolic_trace sees modules"):
        torch.fx.symbolic_trace(Function())


def test_a_subclass_may_reset_its_parameters_itself():
    class Own(nn.MultiheadAttention):
        def reset_parameters(self):
            nn.init.ones_(self.in_proj_weight)

    attend = Own(8, 2)
    sa.nn.replace(attend, "sparsemax")
    attend.reset_parameters()
    assert (attend.in_proj_weight == 1).all()
