import copy
import inspect
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import sparse_attention as sa
from sparse_attention import registry


def test_names_and_specs():
    assert sa.names("simplex")[:6] == ["softmax", "sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax"]
    assert {"constrained_softmax", "constrained_sparsemax"} == set(sa.names("constrained"))
    for name in (*sa.names("simplex"), *sa.names("unnormalised")):
        found = sa.spec(name)
        assert found.name == name and found.summary
        assert found.paper and found.oracle, f"give @register({name!r}) its paper= and its oracle="
        assert getattr(sa, name) is found.function
        for param in found.params:
            assert param.meaning and param.range
            assert param.required or param.check(param.default) == param.default
        assert (found.over, found.stateful) == ("row", False)
        assert found.inputs == (("groups",) if name == "group_sparsemax" else ())
    assert all(sa.spec(name).inputs == ("bounds",) for name in sa.names("constrained"))


def test_modules_have_the_parameters_of_the_function():
    for name in sa.names():
        made = sa.spec(name).module
        function = sa.spec(name).function or made.inner_class
        own = dict(inspect.signature(made).parameters)
        assert (own.pop("dim", None) is not None) == (sa.spec(name).over == "row")
        theirs = {n: p.default for n, p in inspect.signature(function).parameters.items() if n in own}
        assert list(own) == list(theirs) == [p.name for p in sa.spec(name).params]
        assert all(theirs[n] == p.default for n, p in own.items() if n not in ("bounds", "groups"))
        assert made.__name__ == "".join(map(str.capitalize, name.split("_"))) and sa.spec(name).summary in made.__doc__
        assert type(sa.make(name)) is made is getattr(sa, made.__name__) and issubclass(made, sa.Mapping)
    m = sa.Pnormmax(1.3, gamma=2)
    assert (m.p, m.gamma, m.solver) == (1.3, 2.0, "exact")
    assert m.params == {"p": 1.3, "gamma": 2.0, "solver": "exact", "tol": 0.01}
    m.p = 1.7
    x = torch.randn(5)
    assert torch.equal(m(x), sa.pnormmax(x, p=1.7, gamma=2.0))
    with pytest.raises(ValueError, match="p=3 is out of range: 1 < p <= 2"):
        m.p = 3
    for wrong in (lambda: sa.Fusedmax(0.1, lam=0.2), lambda: sa.Sparsemax(1.0, 2.0)):
        with pytest.raises(TypeError):
            wrong()


def test_unknown_names_are_answered_with_the_nearest():
    for kind in (ValueError, KeyError):
        with pytest.raises(
            kind, match=r"^no mapping is called 'fusdmax' .*'fusedmax'.*softmax, sparsemax, .*@sparse_att"
        ):
            sa.make("fusdmax")
    for wrong, said in (
        (lambda: sa.make("fusedmax", lam=-1, gamma=0), "lam=-1 is .* lam >= 0; .*gamma=0 is .* gamma > 0"),
        (lambda: sa.make("fusedmax", lamb=1), "no parameter 'lamb'.*'lam'.*it takes: lam, gamma"),
        (lambda: sa.names("simple"), f"kind='simple' is not one of {', '.join(registry.KINDS)}"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong()


RANGES = [
    ("fusedmax", "lam", -0.1, 0.0),
    ("oscarmax", "lam", float("nan"), 2),
    ("sparsemax", "gamma", 0.0, 1e-3),
    ("entmax", "alpha", 0.0, 0.01),
    ("pnormmax", "p", 2.01, 2.0),
    ("pnormmax", "p", 1.0, 1.5),
    ("sparsegen_lin", "lam", 1.0, -5.0),
    ("sparsegen_exp", "lam", 2.0, 0.0),
    ("sparsehourglass", "q", -1e-9, 0.1),
    ("sparsecone", "q", -1.0, 1.0),
    ("oscarmax", "mode", "signed", "paper"),
    ("pnormmax", "solver", "newton", "pgd"),
    ("softmax", "gamma", float("inf"), 2.0),
    ("entmax", "alpha", "1.5", 2),
    ("top_k", "k", 0, 2),
    ("top_p", "mass", 1.1, 1),
]


@pytest.mark.parametrize("name, parameter, bad, good", RANGES)
def test_ranges_hold_for_modules_functions_and_tensors(kernel, name, parameter, bad, good):
    f, x = sa.spec(name).function, (torch.rand(3, 7) + 0.05).requires_grad_()
    sa.make(name, **{parameter: good})(x)
    for call in (lambda: sa.make(name, **{parameter: bad}), lambda: f(x, **{parameter: bad})):
        with pytest.raises(ValueError, match=f"{parameter}={bad!r} is "):
            call()
    if not isinstance(good, float) or math.isinf(bad):
        return
    # A tensor makes its row NaN: reading it would wait.
    assert f(x, **{parameter: torch.tensor(bad)}).isnan().all()
    mixed = torch.tensor([good, bad, good], requires_grad=True)
    p = f(x, **{parameter: mixed})
    assert p[1].isnan().all() and torch.allclose(p[[0, 2]], f(x, **{parameter: torch.full((3,), good)})[[0, 2]])
    (g,) = torch.autograd.grad((p[0] * torch.arange(7.0)).sum(), mixed, retain_graph=True)
    (dx,) = torch.autograd.grad(p.sum(), x)
    assert g[0].isfinite() and dx[[0, 2]].isfinite().all()
    assert kernel == "reference" or dx[1].isnan().all()


def test_a_function_from_outside_gets_the_whole_contract():
    @sa.register("powermax", paper="none")
    def powermax(scores, mask, power=2.0):
        """Powers, normalised."""
        z = scores.abs().masked_fill(~mask, 0.0) ** power
        return z / z.sum(-1, keepdim=True)

    assert sa.spec("powermax").summary == "Powers, normalised."
    m = sa.make("powermax", power=3)
    x = torch.rand(4, 5, 6) + 0.1
    mask = torch.rand(4, 5, 6) > 0.3
    mask[0, :, 0] = False
    p = m(x, mask=mask, dim=1)
    z = x**3 * mask
    assert torch.allclose(p, (z / z.sum(1, keepdim=True)).nan_to_num(), atol=1e-6)
    x[1, 2, 3] = float("nan")
    assert torch.isnan(m(x, dim=1)).sum() == 5  # its row only
    assert m(x.half()).dtype == torch.float16
    x = x.nan_to_num(1.0).requires_grad_()
    m(x, mask=mask, dim=1).square().sum().backward()
    assert torch.isfinite(x.grad).all()
    with pytest.raises(ValueError, match="the name 'powermax' is already"):
        sa.register("powermax")(powermax)
    sa.register("powermax", replace=True)(powermax)
    with pytest.raises(ValueError, match="params describes lam"):
        sa.register("other", params=[sa.Param("lam")])(powermax)
    with pytest.raises(ValueError, match=r"power=2.0 is out of range"):
        sa.register("other", params=[sa.Param("power", high=0.0)])(powermax)
    for key, value in (("kind", "discrete"), ("over", "rows")):
        with pytest.raises(ValueError, match=f"{key}={value!r} is not one of"):
            sa.register("other", **{key: value})


def test_a_tensor_parameter_of_a_function_from_outside_has_a_value_per_row():
    @sa.register("steep", params=[sa.Param("factor", low=0.0)], paper="none")
    def steep(scores, mask, factor=2.0):
        return torch.softmax(factor * scores, -1)

    f, factor = sa.spec("steep").function, torch.tensor([1.0, 3.0], requires_grad=True)
    x, (q, k, v) = torch.randn(2, 2), torch.randn(3, 1, 2, 2, 4)
    rows = torch.stack([f(x[i], factor=factor[i].item()) for i in range(2)])
    assert torch.allclose(f(x, factor=factor), rows) and torch.allclose(f(x.T, dim=0, factor=factor), rows.T)
    heads = [sa.sparse_attention(*(t[:, [i]] for t in (q, k, v)), "steep", factor=factor[i].item()) for i in range(2)]
    assert torch.allclose(sa.sparse_attention(q, k, v, "steep", factor=factor[:, None]), torch.cat(heads, 1), atol=1e-6)
    (g,) = torch.autograd.grad(f(x, factor=factor)[0, 0], factor)
    assert g[0] != 0 and g[1] == 0


@pytest.mark.parametrize("name", ["training", "forward", "spread"])
def test_a_parameter_that_would_hide_an_attribute_of_the_module_is_refused(name):
    space = {}
    exec(f"def mine(x, keep, {name}=1.0): ...", space)
    with pytest.raises(ValueError, match=rf"mine: {name} cannot be a parameter"):
        sa.register("mine")(space["mine"])
    assert "mine" not in sa.names()


def test_a_function_with_dim_that_ignores_its_mask_is_refused():
    with pytest.raises(ValueError, match=r"lossy .* 0\.\d+ "):

        @sa.register("lossy")
        def lossy(scores, mask=None, dim=-1, sharpness=2.0):
            return torch.softmax(sharpness * scores, dim)

    assert "lossy" not in sa.names()

    @sa.register("careful")
    def careful(scores, mask=None, dim=-1):
        return sa.softmax(scores, dim, mask=mask)

    @sa.register("elsewhere")
    def elsewhere(scores, mask=None, dim=-1):
        raise RuntimeError("only on GPUs")

    assert {"careful", "elsewhere"} <= set(sa.names())


def test_over_something_else_the_arguments_are_handed_on():
    @sa.register("chain", kind="structured", over="sequence", inputs=("transitions",), paper="ours")
    def chain(scores, transitions, mask=None, gamma=1.0):
        return torch.softmax(scores / gamma + transitions, -1)

    assert (sa.spec("chain").over, sa.spec("chain").inputs) == ("sequence", ("transitions",))
    x, t = torch.randn(2, 3), torch.randn(2, 3)
    assert torch.equal(sa.make("chain", gamma=2.0)(x, transitions=t), torch.softmax(x / 2 + t, -1))


@pytest.fixture
def coverage():
    @sa.register("coverage", inputs=("fertility",))
    class Coverage(nn.Module):
        """Softmax of what is left."""

        def start(self, mask, fertility):
            return {"left": fertility.expand(mask.shape)}

        def step(self, scores, state, mask):
            p = torch.softmax((scores + state["left"]).masked_fill(~mask, -torch.inf), -1)
            return p, {"left": state["left"] - p}

    return sa.make("coverage")


def test_a_stateful_mapping_goes_step_by_step_under_the_contract(coverage):
    spec = sa.spec("coverage")
    assert spec.stateful and spec.inputs == ("fertility",) and spec.function is None and spec.kind == "stateful"
    scores = torch.randn(3, 4, 5)
    mask = torch.tensor([[True] * 5, [True, True, False, True, False], [False] * 5])
    fertility = torch.rand(3, 5)
    scores[0, 2, 1] = float("nan")
    together = coverage(scores, mask, fertility=fertility)
    state = coverage.start(mask, fertility=fertility)
    left = fertility.clone()
    for t in range(4):
        p, state = coverage.step(scores[:, t], state, mask)
        assert torch.equal(p.nan_to_num(9.0), together[:, t].nan_to_num(9.0))
        assert (p[~mask] == 0).all() and torch.isnan(p[0]).all() == (t == 2)
        assert torch.isfinite(state["left"]).all(), "one bad step does not spoil those after it"
        if t < 2:
            expected = torch.softmax((scores[1, t] + left[1])[mask[1]], -1)
            assert torch.allclose(p[1, mask[1]], expected, atol=1e-6)
            left[1, mask[1]] -= expected
    order = torch.tensor([1, 0])  # what a beam search does with a state
    reordered = {name: value[order] for name, value in state.items()}
    a, _ = coverage.step(scores[order, 0], reordered, mask[order])
    b, _ = coverage.step(scores[:, 0], state, mask)
    assert torch.equal(a, b[order])
    half, _ = coverage.step(scores[:, 0].half(), state, mask)
    assert half.dtype == torch.float16 and torch.allclose(half.float(), b, atol=1e-3)
    assert coverage(scores[:, :0], mask, fertility=fertility).shape == (3, 0, 5)
    assert type(copy.deepcopy(coverage)) is type(coverage)
    with pytest.raises(ValueError, match="dim=1"):
        coverage(scores, mask, dim=1, fertility=fertility)


def test_a_mapping_without_memory_keeps_its_inputs_as_the_state():
    m = sa.make("constrained_sparsemax")
    scores, mask, bounds = torch.randn(2, 5), torch.ones(2, 5, dtype=torch.bool), torch.full((2, 5), 0.3)
    state = m.start(mask, bounds=bounds)
    p, after = m.step(scores, state, mask)
    assert torch.equal(p, sa.constrained_sparsemax(scores, bounds)) and after is state
    assert sa.make("sparsemax").start(mask) == {}


def test_a_class_from_outside():
    @sa.register("warmmax", summary="learned temperature")
    class Warmmax(nn.Module):
        def __init__(self, start=1.0):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(start))

        def forward(self, scores, mask):
            return torch.softmax((scores * self.scale).masked_fill(~mask, -torch.inf), -1)

    m = sa.make("warmmax", start=2.0)
    x, mask = torch.randn(3, 4), torch.tensor([[True] * 4, [False] * 4, [True, False, True, False]])
    assert torch.allclose(m(x, mask=mask), sa.softmax(x * 2, mask=mask), atol=1e-6)
    m(x, mask=mask)[0, 0].backward()
    assert torch.isfinite(m.inner.scale.grad) and "start=2.0" in repr(m)
    with pytest.raises(ValueError):  # a class says itself what it learns
        sa.register("warmermax", params=(sa.Param("start", learned=(0.0, 1.0)),), summary="refused")(Warmmax)


def test_learned_parameters_belong_to_the_module():
    lam = nn.Parameter(torch.full((4, 1), 0.1))
    m = sa.make("fusedmax", lam=lam)
    assert next(iter(m.parameters())) is lam and "learned (4, 1)" in repr(m)
    m(torch.randn(2, 4, 3, 7))[..., 0].sum().backward()
    assert lam.grad.shape == (4, 1) and lam.grad.abs().sum() > 0
    assert m.double().params["lam"].dtype == torch.float64


def test_a_hyperparameter_given_as_learned():
    m = sa.make("entmax", alpha="learned")
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    assert [n for n, _ in m.named_parameters()] == ["alpha_logit"] and m.learned()["alpha"].item() == 1.5
    assert torch.allclose(m(x), sa.entmax(x, alpha=1.5)) and "alpha=<learned (1,)>" in repr(m)
    assert "dim=1" in repr(sa.Sparsemax(dim=1)) and "dim" not in repr(sa.Sparsemax())
    heads = m.spread(3, 1)
    alpha = heads.learned()["alpha"]
    assert alpha.shape == (3, 1) and m.params["alpha"].shape == (1,) and ((alpha > 1) & (alpha < 2)).all()
    assert torch.allclose(alpha, 1 + torch.sigmoid(heads.alpha_logit))
    rows = x.unsqueeze(2)  # [B, heads, T, n]
    assert torch.allclose(heads(rows)[:, 1], sa.entmax(rows[:, 1], alpha=alpha[1].item()))
    again = pickle.loads(pickle.dumps(heads))
    assert torch.equal(again.params["alpha"], alpha) and again.learned().keys() == {"alpha"}
    (heads(rows) * torch.randn_like(rows)).sum().backward()
    assert heads.alpha_logit.grad.abs().min() > 0
    fixed = sa.make("entmax", alpha=1.5)
    assert fixed.spread(3, 1) is fixed and fixed.learned() == {} and not list(fixed.parameters())
    for call in (lambda: sa.entmax(x, alpha="learned"), lambda: sa.make("fusedmax", lam="learned")):
        with pytest.raises(ValueError, match="='learned' is not a number"):
            call()
    with pytest.raises(ValueError, match="alpha='learned' is not a number"):
        fixed.alpha = "learned"
    with pytest.raises(ValueError, match="alpha_logit"):
        m.alpha = 1.2


def test_choosing_kernels():
    with sa.kernels.use("reference"):
        assert sa.kernels.select("sparsemax", torch.zeros(1, 1)).__name__.endswith("reference")
    with pytest.raises(ValueError, match="'fast'; choose one of auto, reference, native, triton"):
        sa.kernels.use("fast")
    with sa.kernels.use("triton"), pytest.raises(RuntimeError, match=r"'triton'.*use\('auto'\)"):
        sa.sparsemax(torch.randn(2, 3))


def test_kernels_of_a_block_are_those_of_its_thread():
    before, together = sa.kernels.active(), threading.Barrier(3)

    def inside(name):
        with sa.kernels.use(name):
            together.wait()
            seen = sa.kernels.active()
            together.wait()
        return seen, sa.kernels.active()

    with ThreadPoolExecutor() as pool:
        found = [pool.submit(inside, name) for name in ("reference", "native")]
        together.wait()
        here = sa.kernels.active()
        together.wait()
    assert [x.result() for x in found] == [("reference", before), ("native", before)]
    assert here == before == sa.kernels.active()
    try:
        with sa.kernels.use("native"):
            sa.kernels.use("reference")  # for the process, not for this block
            assert sa.kernels.active() == "native"
            x = torch.randn(3, 5)
            compiled = torch.compile(lambda x: sa.sparse_attention(x, x, x), fullgraph=True, backend="eager")
            torch.testing.assert_close(compiled(x), sa.sparse_attention(x, x, x))
        assert sa.kernels.active() == "reference"
    finally:
        sa.kernels.use(before)


def _with_learned_alphas() -> nn.Module:
    model = nn.Module()
    model.one, model.fixed = sa.make("entmax", alpha="learned"), sa.make("entmax", alpha=torch.tensor([1.25, 1.75]))
    model.each = sa.make("entmax", alpha="learned").spread(4, 1)
    model.own = sa.make("entmax", alpha=nn.Parameter(torch.tensor(1.3)))
    model.attention = sa.nn.MultiheadAttention(8, 2, mapping="entmax", alpha="learned")
    model.layer = nn.TransformerEncoderLayer(8, 2, 16)
    sa.nn.replace(model.layer, "entmax", alpha="learned")
    model.loss = sa.losses.EntmaxLoss("learned")
    return model


def test_memory_left_uninitialised_is_set_as_by_the_constructor():
    model = _with_learned_alphas().to("meta").to_empty(device="cpu")
    for x in (*model.parameters(), *model.buffers()):
        x.data.fill_(math.nan)
    for part in model.modules():
        reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if reset is not None:
            reset()
    assert all(x.isfinite().all() for x in (*model.parameters(), *model.buffers()))
    assert model.one.params["alpha"].item() == 1.5 and model.own.alpha.item() == pytest.approx(1.3)
    assert model.fixed.alpha.tolist() == [1.25, 1.75] and model.each.alpha_logit.unique().numel() == 4
    assert callable(model.attention.reset_parameters) and callable(model.layer.self_attn.reset_parameters)  # for FSDP
    with torch.device("meta"):
        unknown = sa.make("entmax", alpha=nn.Parameter(torch.tensor(1.3)))
    with pytest.raises(ValueError, match="alpha was given on the meta device"):
        unknown.to_empty(device="cpu").reset_parameters()
