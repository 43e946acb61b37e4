"""Our module under entmax's names beside the entmax package: every public name, every argument; and where it differs."""

import inspect

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import sparse_attention as sa
from sparse_attention.integrations import entmax as ours

theirs = pytest.importorskip("entmax", reason="entmax, the package whose names these are, is not installed")
NAMES = [name for name in dir(theirs) if not name.startswith("_") and not inspect.ismodule(getattr(theirs, name))]
torch.manual_seed(11)
X = torch.randn(2, 3, 5, 6, dtype=torch.float64)
ROWS = torch.randn(8, 10, dtype=torch.float64)
TARGET = torch.randint(10, (8,))


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name):
    here, there = (inspect.signature(getattr(m, name)).parameters for m in (ours, theirs))
    assert list(here)[: len(there)] == list(there)
    assert [here[p].default for p in there] == [there[p].default for p in there]
    assert name in ours.__all__ and len(ours.__all__) == len(NAMES)


OPTIONS = {
    "sparsemax": [{}, {"k": 3}],
    "entmax15": [{}, {"k": 2}],
    "sparsemax_bisect": [{}, {"n_iter": 60}],
    "entmax_bisect": [{"alpha": 1.2}, {"alpha": 2}, {"alpha": 3.0, "n_iter": 60}, {"alpha": 0.6}],
    "normmax_bisect": [{}, {"alpha": 1.3, "n_iter": 90}, {"alpha": 1000, "n_iter": 60}],
    "budget_bisect": [{}, {"budget": 1.4}, {"budget": 1}],
}
OPTIONS["entmax_bisect"] += [{"ensure_sum_one": False, "n_iter": 60}]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name, options", [(name, one) for name, each in OPTIONS.items() for one in each])
def test_functions_and_modules_give_the_same(name, options, dim):
    if "k" in options:
        dim %= X.ndim  # theirs fails with a negative one
    expected = getattr(theirs, name)(X, dim=dim, **options)
    close(getattr(ours, name)(X, dim=dim, **options), expected)
    module = {"sparsemax": "Sparsemax", "entmax15": "Entmax15"}.get(name, name.title().replace("_", ""))
    options = {key: value for key, value in options.items() if key != "ensure_sum_one"}
    close(getattr(ours, module)(dim=dim, **options)(X), expected)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (2, 3, 5, 1)])
@pytest.mark.parametrize("argument, low", [("entmax_alpha", 1.1), ("normmax_alpha", 1.2), ("budget_budget", 0.5)])
def test_tensors_for_alpha_and_budget(argument, low, shape):
    name, argument = argument.replace("_", "_bisect ").split()
    value = low + 2 * torch.rand(shape, dtype=torch.float64)
    found = getattr(ours, name)(X, **{argument: value})
    close(found, getattr(theirs, name)(X, **{argument: value}, n_iter=80), 1e-8)
    swapped = X.transpose(1, -1)
    if value.ndim == 4:
        value = value.transpose(1, -1)
    elif value.ndim == 3:
        return
    close(getattr(ours, name)(swapped, **{argument: value}, dim=1).transpose(1, -1), found)
    with pytest.raises(ValueError, match="must expand to X"):
        getattr(ours, name)(X, **{argument: torch.ones(6)})


def test_gradients_of_theirs_and_beyond():
    """Theirs for scores and for entmax's alpha; ours against finite differences for every hyperparameter, and twice."""
    alpha = (1.2 + torch.rand(8, 1, dtype=torch.float64)).requires_grad_()
    x, g = ROWS.clone().requires_grad_(), torch.randn_like(ROWS)
    pairs = [torch.autograd.grad(m.entmax_bisect(x, alpha, n_iter=60), (x, alpha), g) for m in (ours, theirs)]
    for mine, other in zip(*pairs):
        close(mine, other, 1e-7)
    for name in ("normmax_bisect", "budget_bisect", "sparsemax", "entmax15"):
        close(*(torch.autograd.grad(getattr(m, name)(x), x, g)[0] for m in (ours, theirs)), 1e-8)
    small = x[:3, :5].detach().requires_grad_()
    order = torch.tensor([[1.3], [2.0], [4.0]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(ours.normmax_bisect, (small, order))
    assert gradcheck(ours.budget_bisect, (small, order.detach().requires_grad_()))
    assert gradgradcheck(lambda x: ours.normmax_bisect(x, 1.6), (small,))
    assert gradcheck(lambda x, a: ours.normmax_bisect_loss(x, TARGET[:3] % 5, a), (small, order))
    assert gradcheck(lambda x, a: ours.entmax_bisect_loss(x, TARGET[:3] % 5, a), (small, order))


LOSSES = {
    "SparsemaxLoss": [{}, {"k": 4}],
    "Entmax15Loss": [{}, {"k": 3}, {"k": None}],
    "SparsemaxBisectLoss": [{}, {"n_iter": 60}],
    "EntmaxBisectLoss": [{}, {"alpha": 1.7}, {"alpha": 2.4}],
    "NormmaxBisectLoss": [{}, {"alpha": 1.4, "n_iter": 80}],
}


@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, ignore_index, reduction):
    target = TARGET.clone()
    target[2] = 3
    for options in LOSSES[name]:
        found = []
        for module in (ours, theirs):
            x = ROWS.clone().requires_grad_()
            value = getattr(module, name)(ignore_index=ignore_index, reduction=reduction, **options)(x, target)
            found += [value, torch.autograd.grad(value.sum(), x)[0]]
        close(found[0], found[2], 1e-8)
        close(found[1], found[3], 1e-8)
    function = {"SparsemaxLoss": "sparsemax_loss", "Entmax15Loss": "entmax15_loss"}.get(
        name, name.replace("BisectLoss", "_bisect_loss").lower()
    )
    close(*(getattr(m, function)(ROWS, TARGET) for m in (ours, theirs)), 1e-8)


def test_sizes_of_the_support():
    for name in ("sparsemax", "entmax15"):
        _, size = getattr(ours, name)(X, dim=1, return_support_size=True)
        assert torch.equal(size, (getattr(theirs, name)(X, dim=1) > 0).sum(1, keepdim=True))
    value, size = ours.SparsemaxLoss(return_support_size=True)(ROWS, TARGET)
    assert value.ndim == 0 and torch.equal(size, (theirs.sparsemax(ROWS) > 0).sum(-1, keepdim=True))


def test_where_theirs_is_wrong():
    close(ours.entmax_bisect(ROWS, alpha=1.0), ROWS.softmax(-1))
    close(ours.sparsemax(X, dim=-2, k=3), theirs.sparsemax(X, dim=2))
    for alpha in (0.5, 1.0):  # <x, p> <= max x and ||p||_alpha >= 1
        assert torch.equal(ours.normmax_bisect(ROWS, alpha), nn.functional.one_hot(ROWS.argmax(-1), 10).double())
    masked = ROWS.clone()
    masked[:, 5:], masked[3] = -torch.inf, -torch.inf
    for name in ("sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect", "normmax_bisect", "budget_bisect"):
        p = getattr(ours, name)(masked)
        close(p[:3, :5], getattr(ours, name)(masked[:3, :5]))
        assert (p[:, 5:] == 0).all() and (p[3] == 0).all(), name
    masked = masked[:3]
    for name in ("sparsemax_loss", "entmax15_loss", "entmax_bisect_loss", "normmax_bisect_loss"):
        close(getattr(ours, name)(masked, TARGET[:3] % 5), getattr(theirs, name)(masked[:, :5], TARGET[:3] % 5))
    alpha = torch.full((8, 1), 1.7, dtype=torch.float64)
    close(ours.entmax_bisect_loss(ROWS, TARGET, alpha), theirs.entmax_bisect_loss(ROWS, TARGET, 1.7))
    some = TARGET.clone()
    some[::2] = -100
    close(ours.SparsemaxLoss()(ROWS, some), theirs.SparsemaxLoss()(ROWS[1::2], TARGET[1::2]))
    close(ours.budget_bisect(ROWS, 40.0), torch.ones_like(ROWS))
    half = ours.entmax15(ROWS.bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.double() - theirs.entmax15(ROWS.bfloat16().double())).abs().max() < 2e-3


def test_a_learned_alpha_is_a_parameter_and_a_tensor_moves_along():
    module = ours.EntmaxBisect(nn.Parameter(torch.full((3, 1, 1), 1.5)))
    module(X.float()).square().sum().backward()
    assert module.alpha.grad.abs().min() > 0 and list(module.state_dict()) == ["alpha"]
    fixed = ours.NormmaxBisectLoss(alpha=torch.tensor(1.7)).double()
    assert fixed.alpha.dtype == torch.float64 and not fixed.state_dict()


def test_transforms_and_errors():
    close(torch.vmap(ours.normmax_bisect)(ROWS), ours.normmax_bisect(ROWS))
    close(torch.vmap(ours.budget_bisect)(ROWS), ours.budget_bisect(ROWS))
    with pytest.raises(ValueError, match="alpha=0"):
        ours.normmax_bisect(ROWS, 0)
    with pytest.raises(ValueError, match="budget=-1"):
        ours.budget_bisect(ROWS, -1)
    with pytest.raises(ValueError, match="elementwise_mean"):
        ours.SparsemaxLoss(reduction="max")
    spoilt = ROWS.clone()
    spoilt[2, 1] = torch.nan
    for f in (ours.normmax_bisect, ours.budget_bisect):
        assert f(spoilt).isnan().all(-1).nonzero().tolist() == [[2]]
    assert sa.integrations.entmax.losses.SparsemaxLoss is ours.SparsemaxLoss
