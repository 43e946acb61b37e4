"""The attention layers: contexts by hand, batching, padding, gradients, options; and the registry's names."""

import contextlib
import copy
import itertools
import math
from functools import partial

import pytest
import torch
from syncs import syncs
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sparse_attention as sa
import sparse_attention.registry as registry
from sparse_attention.kernels.reference import rows as reference_rows
from sparse_attention.mappings import continuous as ct
from sparse_attention.rows import shape

BASIS = ct.GaussianBasis1d.linspaced(16)


def batch(seed=0):
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(3, 11, 5, generator=rng)
    mask = torch.arange(11) < torch.tensor([11, 6, 1])[:, None]
    return values, mask


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_context_is_the_integral_of_the_value_function(alpha):
    """c = int p(t) B psi(t) dt, with B fitted on the words of each document alone."""
    values, mask = batch()
    layer = ct.ContinuousAttention1d(BASIS, alpha)
    mu, sigma_sq = torch.tensor([0.3, 0.6, 0.5]), torch.tensor([0.02, 0.1, 0.05])
    context, info = layer(values, mask, params=(mu, sigma_sq))
    t = torch.linspace(-4, 5, 180001, dtype=torch.float64)
    psi = BASIS.evaluate(t)
    for i, length in enumerate((11, 6, 1)):
        b = values[i, :length].double().mT @ ct.ridge_matrix_1d(length, BASIS)  # [D, N]
        p = ct.BetaGaussian(mu[i].double(), sigma_sq[i].double(), alpha).pdf(t)
        expected = torch.trapezoid(p.unsqueeze(-1) * (psi @ b.mT), t, dim=0)
        assert torch.allclose(context[i].double(), expected, atol=1e-5)
    assert info.position_weights.shape == (3, 11) and (info.position_weights[~mask] == 0).all()


def test_result_does_not_depend_on_the_batch_or_on_padding_values():
    values, mask = batch()
    layer = ct.DiscreteContinuousAttention1d(sa.softmax, BASIS)
    scores = torch.randn(3, 11, generator=torch.Generator().manual_seed(1))
    together, _ = layer(values, mask, scores)
    dirty = values.masked_fill(~mask.unsqueeze(-1), math.nan)
    assert torch.equal(layer(dirty, mask, scores)[0], together)
    for i, length in enumerate((11, 6, 1)):
        alone, _ = layer(values[i : i + 1, :length], None, scores[i : i + 1, :length])
        assert torch.allclose(alone[0], together[i], atol=1e-5)
    left = (torch.arange(11) >= 5).unsqueeze(0)  # the padding before the words
    moved, _ = layer(values[1:2].roll(5, 1), left, scores[1:2].roll(5, 1))
    assert torch.allclose(moved[0], together[1], atol=1e-5)


def test_combined_is_the_sum_of_its_parts():
    values, mask = batch()
    scores = torch.randn(3, 11)
    layer = ct.DiscreteContinuousAttention1d(sa.softmax, BASIS, 2.0, moment_match="paper-code")
    combined, info = layer(values, mask, scores)
    p = sa.softmax(scores, mask=mask)
    alone, _ = ct.ContinuousAttention1d(BASIS, 2.0, moment_match="paper-code")(values, mask, weights=p)
    assert torch.allclose(combined, (p.unsqueeze(1) @ values).squeeze(1) + alone, atol=1e-6)
    assert torch.equal(info.discrete, p)
    # sigma^2 is the raw variance in this mode
    t = ct.positions_1d(11).float()
    variance = (p[0] * t.square()).sum() - (p[0] * t).sum().square()
    assert torch.allclose(info.sigma[0], variance, atol=1e-6)


def test_several_queries_per_example():
    values, mask = batch()
    scores = torch.randn(3, 4, 11)
    layer = ct.DiscreteContinuousAttention1d(sa.softmax, BASIS)
    context, info = layer(values, mask, scores)
    assert context.shape == (3, 4, 5) and info.r.shape == (3, 4, 16)
    for step in range(4):
        one, _ = layer(values, mask, scores[:, step])
        assert torch.allclose(one, context[:, step], atol=1e-5)


def test_fully_masked_rows_are_zero_without_gradient():
    values, mask = batch()
    mask = mask.clone()
    mask[2] = False
    values, scores = values.requires_grad_(), torch.randn(3, 11).requires_grad_()
    context, _ = ct.DiscreteContinuousAttention1d(sa.softmax, BASIS)(values, mask, scores)
    assert (context[2] == 0).all()
    context.square().sum().backward()
    assert (values.grad[2] == 0).all() and (scores.grad[2] == 0).all()
    assert values.grad.isfinite().all() and scores.grad.isfinite().all() and scores.grad[0].abs().sum() > 0


def test_planar_layer_by_hand():
    values = torch.randn(2, 196, 3)
    weights = torch.softmax(2 * torch.randn(2, 196), -1)
    layer = ct.ContinuousAttention2d()
    context, info = layer(values, weights=weights)
    mu, sigma = ct.match_moments_2d(weights, ct.positions_2d(14, 14))
    r = ct.continuous_sparsemax(mu, sigma, ct.GaussianBasis2d.grid())
    g = ct.ridge_matrix_2d(14, 14, ct.GaussianBasis2d.grid())
    expected = torch.einsum("bld,ln,bn->bd", values.double(), g, r.double())
    assert torch.allclose(context.double(), expected, atol=1e-4)
    given, _ = layer(values, params=(mu, sigma))
    assert torch.allclose(given, context, atol=1e-6)
    mask = torch.ones(2, 196, dtype=torch.bool)
    mask[:, 100:] = False
    _, info = layer(values, mask, weights=weights)
    assert (info.position_weights[~mask] == 0).all()
    legacy = ct.ContinuousAttention2d(quadrature="paper-code")(values, weights=weights)[0]
    assert 1e-4 < (legacy - context).abs().max() / context.abs().max() < 0.3
    with pytest.raises(ValueError, match=r"values have 196 positions, .* 7 x 7"):
        ct.ContinuousAttention2d((7, 7))(values, weights=weights)


def test_multimodal_layer_trains_with_every_number_of_components():
    values = torch.randn(2, 36, 3)
    logits = torch.randn(2, 36, requires_grad=True)
    layer = ct.MultimodalAttention2d(
        (6, 6), ct.GaussianBasis2d.grid(5, 5, 0.01), generator=torch.Generator().manual_seed(0), max_components=3
    )
    counts = set()
    for _ in range(12):
        context, info = layer(values, weights=torch.softmax(logits, -1))
        counts.add(info.mixture.pi.shape[1])
    assert counts == {1, 2, 3}
    context.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


def test_the_multimodal_layer_evaluates_each_example_alone_and_always_alike():
    values, weights = torch.randn(5, 36, 3), torch.softmax(3 * torch.randn(5, 36), -1)
    layer = ct.MultimodalAttention2d((6, 6), ct.GaussianBasis2d.grid(5, 5, 0.01)).eval()
    context, info = layer(values, weights=weights)
    assert torch.equal(layer(values, weights=weights)[0], context) and info.mixture.components.max() > 1
    for i in range(5):
        assert torch.allclose(layer(values[i : i + 1], weights=weights[i : i + 1])[0][0], context[i], atol=1e-5)


def test_attention_along_a_line_keeps_its_determinant_in_float32():
    weights = torch.zeros(2, 196)
    weights[0, [0, 195]] = 0.5
    weights[1, torch.arange(14) * 15] = 1 / 14
    layer = ct.ContinuousAttention2d()
    single = layer(torch.randn(2, 196, 3), weights=weights)[1]
    double = layer(torch.randn(2, 196, 3, dtype=torch.float64), weights=weights.double())[1]
    assert single.r.dtype == single.sigma.dtype == torch.float32
    assert (single.r - double.r).abs().max() < 1e-6 * double.r.max()


def test_masks_and_weights_that_do_not_fit_are_refused():
    values, weights = torch.randn(2, 36, 3), torch.softmax(torch.randn(2, 36), -1)
    plane, line = ct.ContinuousAttention2d((6, 6), ct.GaussianBasis2d.grid(5, 5, 0.01)), ct.ContinuousAttention1d(BASIS)
    for layer in (plane, line):
        with pytest.raises(TypeError, match=r"mask has dtype torch.float32"):
            layer(values, torch.ones(2, 36), weights=weights)
        with pytest.raises(ValueError, match=r"mask of shape \(2, 35\) .* \(2, 36\)"):
            layer(values, torch.ones(2, 35, dtype=torch.bool), weights=weights)
        with pytest.raises(ValueError, match=r"weights \(2, 30\) .* \(2, 36\)"):
            layer(values, weights=weights[:, :30])


def test_layers_copy_save_and_cast():
    layer = ct.ContinuousAttention1d(BASIS, query_dim=4)
    clone = copy.deepcopy(layer)
    clone.load_state_dict(layer.state_dict())
    assert set(layer.state_dict()) == {"predictor.linear.weight", "predictor.linear.bias"}
    values, query = torch.randn(2, 7, 5), torch.randn(2, 4)
    expected = layer(values, query=query)[0]
    assert torch.equal(clone(values, query=query)[0], expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(layer(values, query=query)[0].float(), expected, atol=0.05)
    half = copy.deepcopy(layer).bfloat16()
    context, _ = half(values.bfloat16(), query=query.bfloat16())
    assert context.dtype == torch.bfloat16 and torch.allclose(context.float(), expected, atol=0.1)


def test_options_and_sources_are_checked_together():
    with pytest.raises(ValueError, match=r"(?s)alpha=1.7.*ridge=-1.*pad_positions='yes'.*moment_match='tp'"):
        ct.ContinuousAttention1d(BASIS, 1.7, ridge=-1.0, pad_positions="yes", moment_match="tp")
    values, _ = batch()
    with pytest.raises(ValueError, match="exactly one of query, params, weights; got none"):
        ct.ContinuousAttention1d(BASIS)(values)
    with pytest.raises(ValueError):
        ct.ContinuousAttention1d(BASIS)(values, query=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="quadrature='x' is not one of"):
        ct.ContinuousAttention2d(quadrature="x")
    with pytest.raises(ValueError, match="exists only for alpha 1 and 2"):
        ct.ContinuousAttention2d(alpha=1.5, quadrature="paper-code")


def test_registry_knows_the_transforms():
    names = registry.names("continuous")
    alphas = {name: registry.make(name).alpha for name in names}
    known = {"softmax": 1.0, "triweight": 4 / 3, "biweight": 1.5, "sparsemax": 2.0, "mixture": 1.0}
    assert alphas == {f"continuous_{name}": alpha for name, alpha in known.items()}
    assert all(registry.spec(n).over == "density" and registry.spec(n).kind == "continuous" for n in names)
    mu, sigma_sq = torch.tensor([0.4]), torch.tensor([0.1])
    for name in set(names) - {"continuous_mixture"}:
        wanted = ct.continuous_entmax(mu, sigma_sq, BASIS, alphas[name])
        assert torch.equal(registry.make(name)(mu, sigma_sq, BASIS), wanted)
        assert torch.equal(registry.spec(name).function(mu, sigma_sq, BASIS), wanted)
    with pytest.raises(ValueError, match=r"max_components=2.5 .* a whole number, max_components >= 1"):
        registry.make("continuous_mixture", max_components=2.5)
    weights = torch.softmax(torch.randn(2, 36), -1)
    basis = ct.GaussianBasis2d.grid(5, 5, 0.01)
    layer = ct.MultimodalAttention2d((6, 6), basis, max_components=3).eval()
    r = registry.make("continuous_mixture", max_components=3)(weights, ct.positions_2d(6, 6), basis)
    assert torch.allclose(r, layer(torch.randn(2, 36, 4), weights=weights)[1].r, atol=1e-6)


def step(layer, n, dtype, how):
    """One training step, or one call in inference mode, of a layer for n positions."""
    grad = not torch.is_inference_mode_enabled()
    values = torch.randn(2, n, 3, dtype=dtype, requires_grad=grad)
    if how == "weights":
        given = {"weights": torch.softmax(torch.randn(2, n, dtype=dtype, requires_grad=grad), -1)}
    elif isinstance(layer, ct.ContinuousAttention1d):
        given = {"params": tuple(x.to(dtype).requires_grad_(grad) for x in (torch.rand(2), torch.full((2,), 0.1)))}
    else:
        sigma = (0.05 * torch.eye(2, dtype=dtype)).repeat(2, 1, 1).requires_grad_(grad)
        given = {"params": (torch.rand(2, 2, dtype=dtype, requires_grad=grad), sigma)}
    out = layer(values, **given)[0].sum()
    return out.backward() if grad else out


SIZES = itertools.count(5)


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        assert not any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in tree_leaves(out))
        return out


@pytest.mark.parametrize("mode", ["inference", "layer made in inference"])
@pytest.mark.parametrize("how", ["params", "weights"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 1.5, 2.0])
def test_a_first_call_in_inference_mode_does_not_stop_training(alpha, dtype, how, mode):
    n = next(SIZES)  # not cached yet
    made = [
        lambda: ct.ContinuousAttention2d((n, 3), ct.GaussianBasis2d.grid(n, 3, 0.01 + n / 1e4), alpha),
        lambda: ct.ContinuousAttention2d((n, 3), ct.GaussianBasis2d(torch.rand(n, 2), torch.eye(2) / 50), alpha),
        lambda: ct.ContinuousAttention1d(ct.GaussianBasis1d.linspaced(2 * n), alpha),
        lambda: ct.MultimodalAttention2d((n, 3), ct.GaussianBasis2d.grid(n, 3, 0.02 + n / 1e4), alpha),
    ][: 4 if how == "weights" else 3]
    for make in made:
        with torch.inference_mode():
            first = make()
            step(first, 3 * n, dtype, how)
        step(first if mode.startswith("layer") else make(), 3 * n, dtype, how)


def test_what_is_kept_does_not_depend_on_the_mode_of_the_first_call():
    fake, meta = partial(FakeTensorMode, allow_non_fake_inputs=True), partial(torch.device, "meta")
    for mode in (meta, fake, torch.inference_mode):
        n, kept = next(SIZES), []
        for around in (mode, contextlib.nullcontext):
            with around():
                kept += [*ct.family.jacobi(n, 1), ct.ridge_matrix_1d(n, BASIS)]
        assert all(type(x) is torch.Tensor and x.device.type == "cpu" and not x.is_inference() for x in kept[3:])


@pytest.mark.parametrize("alpha, waits", [(1.0, []), (2.0, ["_local_scalar_dense"])])
def test_on_an_image_a_gpu_is_read_for_the_number_of_angles_alone(alpha, waits):
    weights, values = torch.softmax(torch.randn(2, 16), -1), torch.randn(2, 16, 3)
    basis = ct.GaussianBasis2d.grid(4, 4)
    single, several = ct.ContinuousAttention2d((4, 4), basis, alpha), ct.MultimodalAttention2d((4, 4), basis, alpha)
    for layer in (single, several.eval()):
        layer(values, weights=weights)  # fills what is kept
        assert syncs(lambda one=layer: one(values, weights=weights), host=[layer._positions]) == waits


def test_a_basis_keeps_no_copy_of_a_graph_or_a_mode():
    """On a device that is not the CPU: in a CUDA graph it would be overwritten, and a fake tensor has no values."""
    basis, loc = ct.GaussianBasis1d.linspaced(4), torch.zeros(2, device="meta")
    attend = torch.compile(lambda x, y: ct.continuous_attention_1d(x, y, basis, 1.0), backend="eager", fullgraph=True)
    assert attend(loc, loc + 1).shape == (2, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(basis.tensors("meta")[0], FakeTensor)
    assert type(basis.tensors("meta")[0]) is torch.Tensor and basis.tensors("meta")[0] is basis.tensors("meta")[0]


def test_devices_without_float64(monkeypatch):
    """As if the CPU were one: only float32 comes back, and top_p and the reference do not use float64 at all."""
    weights, n = torch.softmax(torch.randn(2, 16), -1), 4
    layers = [ct.ContinuousAttention2d((n, n), ct.GaussianBasis2d.grid(n, n), a) for a in (1.0, 2.0)]
    layers += [ct.MultimodalAttention2d((n, n), ct.GaussianBasis2d.grid(n, n)).eval(), ct.ContinuousAttention1d(BASIS)]
    values, grid = torch.randn(2, 16, 3), torch.randn(2, 4, 4)
    rows = [partial(sa.top_p, mass=0.6), sa.sparsemax, partial(sa.constrained_softmax, bounds=0.4, lower=0.1)]
    expected = [layer(values, weights=weights)[0] for layer in layers], sa.tvmax(grid), [f(grid) for f in rows]
    monkeypatch.setattr(reference_rows, "WITHOUT_FLOAT64", {"cpu"})
    monkeypatch.setattr(shape, "WITHOUT_FLOAT64", {"cpu"})
    with pytest.warns(UserWarning, match="computes on the CPU: cpu has no float64"):
        got = [layer(values, weights=weights) for layer in layers], sa.tvmax(grid, return_gap=True)
    with sa.kernels.use("reference"), NoFloat64():
        of_rows = [f(grid) for f in rows]
    assert all(x.dtype == torch.float32 for _, info in got[0] for x in info[:4]) and got[1][1].dtype == torch.float32
    for a, b in zip([*(x for x, _ in got[0]), got[1][0], *of_rows], [*expected[0], expected[1], *expected[2]]):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
