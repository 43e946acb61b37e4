"""Classes, weights, ignored rows, smoothing: beside torch's cross_entropy, and against the definition for every mapping."""

import math
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy, one_hot

import sparse_attention as sa
from sparse_attention.losses import fenchel_young

D = torch.float64
ROWS = [n for n in sa.losses.REGULARISERS if not n.startswith("constrained")]
PARAMS = {"entmax": {"alpha": 1.3}, "fusedmax": {"lam": 0.3}, "sparsegen_lin": {"lam": 0.4}}
PARAMS |= {"pnormmax": {"p": 1.7, "gamma": 0.6}}


def data(rows=7, n=5):
    y = torch.randint(n, (rows,))
    return torch.randn(rows, n, dtype=D), y.where(torch.arange(rows) != 2, 3), torch.rand(n, dtype=D)


EXACT = {"rtol": 0.0, "atol": 1e-12}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_softmax_is_torchs_cross_entropy(reduction, smoothing, weighted):
    x, y, w = data()
    options = {"reduction": reduction, "label_smoothing": smoothing, "weight": w if weighted else None}
    t = torch.softmax(torch.randn_like(x), -1)
    for target, ignored in ((y, -100), (y, 3), (t, -100), (0.7 * t, -100)):
        found = []
        for loss in (cross_entropy, sa.losses.softmax_loss):
            z = x.clone().requires_grad_()
            value = loss(z, target, ignore_index=ignored, **options)
            found.append((value.detach(), torch.autograd.grad(value.sum(), z)[0]))
        for torchs, ours in zip(*found):
            assert torch.allclose(torchs, ours, **EXACT)
    assert gradcheck(lambda x: sa.losses.softmax_loss(x, y, ignore_index=3, **options), (x.requires_grad_(),))
    if not smoothing:
        options = {"reduction": reduction, "weight": w if weighted else None, "ignore_index": 3}
        assert torch.allclose(fenchel_young(x, y, "softmax", **options), cross_entropy(x, y, **options), **EXACT)


@pytest.mark.parametrize("loss", ["softmax_loss", *sa.losses.REGULARISERS])
def test_smoothing_goes_to_the_classes_that_are_kept_in_float64(loss):
    x, y, _ = data()
    x[1, (y[1] + 2) % 5] = -torch.inf  # masked as well
    mask = torch.ones(7, 5, dtype=torch.bool)
    mask[torch.arange(7), (y + 1) % 5] = False
    kept = mask & (x != -torch.inf)
    soft = (0.7 * one_hot(y, 5).to(D) + 0.3 / kept.sum(-1, keepdim=True, dtype=D)) * kept
    inputs = {"bounds": torch.full((5,), 0.6, dtype=D)} if loss.startswith("constrained") else {}

    def call(x, target, **options):
        if loss == "softmax_loss":
            return sa.losses.softmax_loss(x, target, mask=mask, reduction="none", **options)
        options |= {"mask": mask, "reduction": "none"}
        return fenchel_young(x, target, loss, **PARAMS.get(loss, {}), **inputs, **options)

    found = []
    for target, options in ((soft, {}), (y, {"label_smoothing": 0.3})):
        z = x.clone().requires_grad_()
        value = call(z, target, **options)
        found.append((value.detach(), torch.autograd.grad(value.sum(), z)[0]))
    assert torch.allclose(found[0][0], found[1][0], **EXACT)
    assert torch.allclose(found[0][1], found[1][1], **EXACT)
    # A common offset of the scores changes nothing, so that the gradient sums to 0.
    assert (found[1][1][~kept] == 0).all()
    assert torch.allclose(found[1][1].sum(-1), torch.zeros(7, dtype=D), **EXACT)
    if loss != "hardmax":
        z = x.masked_fill(~kept, 0.0).requires_grad_()
        assert gradcheck(lambda z: call(z.masked_fill(~kept, -torch.inf), y, label_smoothing=0.3), (z,))


@pytest.mark.parametrize("loss", ["softmax_loss", "sparsemax", "entmax", "fusedmax"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
def test_a_masked_target_is_infinite_without_a_gradient(loss, smoothing):
    x, y, w = data()
    mask = torch.ones(7, 5, dtype=torch.bool)
    mask[0, y[0]] = False
    for target in (y, one_hot(y, 5).to(D)):
        z = x.clone().requires_grad_()
        options = {"mask": mask, "reduction": "none", "label_smoothing": smoothing, "weight": w}
        value = (
            sa.losses.softmax_loss(z, target, **options)
            if loss == "softmax_loss"
            else fenchel_young(z, target, loss, **options)
        )
        (g,) = torch.autograd.grad(value.sum(), z)
        assert value[1:].isfinite().all() and (g[1:] != 0).any(-1).all()
        if smoothing == 1.0:  # the target counts nothing
            assert value[0].isfinite() and (g[0] != 0).any()
        else:
            assert value[0] == math.inf and (g[0] == 0).all()


@pytest.mark.parametrize("name", ROWS)
def test_options_against_the_definition(name):
    x, y, w = data()
    params = PARAMS.get(name, {})
    soft = 0.8 * one_hot(y, 5).to(D) + 0.2 / 5
    rows = fenchel_young(x, soft, sa.make(name, **params), reduction="none")
    kept = y != 3
    value = fenchel_young(x, y, name, weight=w, ignore_index=3, label_smoothing=0.2, **params)
    assert torch.allclose(value, (rows * w[y])[kept].sum() / w[y][kept].sum(), atol=1e-12)
    summed = fenchel_young(x.T, y, name, 0, reduction="sum", ignore_index=3, label_smoothing=0.2, **params)
    assert torch.allclose(summed, rows[kept].sum(), atol=1e-12)
    shares = (soft * w).sum(-1)
    weighted = fenchel_young(x, soft, name, weight=w, **params)
    assert torch.allclose(weighted, (rows * shares).sum() / shares.sum(), atol=1e-12)
    assert fenchel_young(x, torch.full_like(y, -100), name, reduction="sum", **params) == 0


@pytest.mark.parametrize("name", [*ROWS, "entmax near softmax"])
def test_classes_and_distributions_agree_at_every_order(name):
    name, params = ("entmax", {"alpha": 1.05}) if " " in name else (name, PARAMS.get(name, {}))
    x, y, _ = data(4)
    x = (50 + x).requires_grad_()
    t = one_hot(y, 5).to(D)
    pair = [fenchel_young(x, target, name, reduction="none", **params) for target in (y, t)]
    assert torch.allclose(*pair, atol=1e-10)
    (g,) = torch.autograd.grad(pair[0].sum(), x)
    assert torch.allclose(g, sa.make(name, **params)(x) - t, atol=1e-12)
    if name != "hardmax":
        assert gradcheck(lambda x: fenchel_young(x, y, name, **params), (x,))
        assert gradgradcheck(lambda x: fenchel_young(x, y, name, **params), (x,))
    each = torch.vmap(lambda x, y: fenchel_young(x, y, name, **params))(x, y)
    assert torch.allclose(each, pair[0])
    excluded = x.detach().clone()
    excluded[0, y[0]], excluded[1, (y[1] + 1) % 5], excluded[2, 0] = -torch.inf, -torch.inf, torch.nan
    found = fenchel_young(excluded, y, name, reduction="none", **params)
    assert found[0] == math.inf and found[1].isfinite() and found[2].isnan() and torch.equal(found[3], pair[0][3])


def test_a_mapping_without_a_loss_says_why():
    x = torch.randn(3, 4, 4, dtype=D)
    for name in {*sa.names()} - {*sa.losses.REGULARISERS}:
        with pytest.raises(ValueError, match=f"{name} is not the gradient of a smoothed maximum"):
            fenchel_young(x, x.softmax(-1), name)
    with pytest.raises(ValueError, match=r"its own loss is sa\.losses\.sparsemap_sequence_loss"):
        fenchel_young(x, x.softmax(-1), "sparsemap_sequence")


def test_functions_and_modules():
    x, y, w = data()
    options = {"weight": w, "ignore_index": 3, "label_smoothing": 0.1, "reduction": "sum"}
    losses = sa.losses
    for module, function, params in (
        (losses.SparsemaxLoss, losses.sparsemax_loss, {}),
        (losses.SoftmaxLoss, losses.softmax_loss, {}),
        (losses.EntmaxLoss, losses.entmax_loss, {"alpha": 1.4}),
    ):
        made = module(**params, **options)
        expected = function(x, y, **params, **options)
        assert torch.equal(made(x, y), expected)
        assert torch.equal(pickle.loads(pickle.dumps(made))(x, y), expected)
        assert list(made.float().state_dict()) == ["weight"] and made.weight.dtype == torch.float32
        assert torch.equal(module(dim=0, **params)(x.T, y), function(x, y, **params))
    labels = one_hot(y, 5).to(D)
    learned = losses.EntmaxLoss(alpha="learned")
    learned(x, y).backward()
    assert learned.mapping.alpha_logit.grad.abs() > 0
    bounded = losses.FenchelYoungLoss("constrained_sparsemax")
    bounds = torch.full((5,), 0.5, dtype=D)
    expected = fenchel_young(x, labels, "constrained_sparsemax", bounds=bounds)
    assert torch.equal(bounded(x, labels, bounds=bounds), expected)


def test_gradients_for_hyperparameters():
    x, y, _ = data(3)
    alpha = torch.tensor([[1.4], [1.8], [2.5]], dtype=D, requires_grad=True)
    assert gradcheck(lambda a: sa.losses.entmax_loss(x, y, a), (alpha,))
    lam = torch.tensor(0.2, dtype=D, requires_grad=True)
    assert gradcheck(lambda lam: fenchel_young(x, y, "fusedmax", lam=lam), (lam,))


def test_compiled_as_one_graph():
    x, y, _ = data()

    def loss(x, y):
        return fenchel_young(x, y, "sparsemax", ignore_index=3)

    found = []
    for f in (torch.compile(loss, fullgraph=True, backend="aot_eager"), loss):
        z = x.clone().requires_grad_()
        value = f(z, y)
        found += [value.detach(), torch.autograd.grad(value, z)[0]]
    assert torch.allclose(found[0], found[2]) and torch.allclose(found[1], found[3])


def test_what_is_refused():
    x, y, w = data()
    for call, message in (
        (lambda: fenchel_young(x, y, "entmax", label_smoothing=1.5), "label_smoothing=1.5 is out of range"),
        (lambda: fenchel_young(x, y[:3], "entmax"), r"expected \(7,\)"),
        (lambda: fenchel_young(x, y, "entmax", weight=w[:3]), r"must have shape \(5,\), one number per class"),
        (lambda: fenchel_young(x, y, "entmax", reduction="max"), "not one of mean, sum, none"),
        (lambda: fenchel_young(x, y, sa.make("entmax"), alpha=1.2), "alpha: allowed only with a mapping's name"),
        (lambda: fenchel_young(x, y, sa.make("entmax", dim=1)), "works along dim=1, but the loss along dim=-1"),
        (lambda: fenchel_young(x, torch.rand(35), "entmax"), "must have the shape of the scores"),
        (lambda: sa.losses.FenchelYoungLoss("sparsehourglass"), "no Fenchel-Young loss"),
        (lambda: sa.max_omega(x, sa.make("oscarmax", mode="paper")), "mode='exact'"),
        (lambda: sa.losses.sparsegen_hinge(x, -x.abs()), "give labels 0 and 1"),
        (lambda: sa.losses.sparsehourglass_hinge(x, x * torch.nan), "give labels 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
