"""Derivatives of first and second order, in scores, hyperparameters and bounds, against finite differences."""

import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, jacrev, jvp

import sparse_attention as sa

D = torch.float64
DIFFERENTIABLE = [
    n for n in (*sa.names("simplex"), *sa.names("unnormalised")) if n not in ("hardmax", "group_sparsemax")
]


def scores(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=D)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_scores_with_mask_and_another_dimension(kernel, name):
    mask = torch.rand(2, 5, 2) > 0.3
    mask[0, :, 0] = False
    x = scores(2, 5, 2) / 3
    x = (x.abs() + 0.1 if name == "sum_normalization" else x).requires_grad_()
    m = sa.make(name)
    masked = partial(m, mask=mask, dim=1)
    assert gradcheck(masked, (x,)) and gradgradcheck(masked, (x,))
    (g,) = torch.autograd.grad((m(x, mask=mask, dim=1) * torch.randn(2, 5, 2, dtype=D)).sum(), x)
    assert (g[~mask] == 0).all() and (g[0, :, 0] == 0).all() and g.abs().sum() > 0


LEARNED = [
    ("entmax", "alpha", 0.4, 0.9),
    ("entmax", "alpha", 1.1, 1.9),
    ("entmax", "alpha", 2.1, 2.6),
    ("pnormmax", "p", 1.2, 1.9),
    ("fusedmax", "lam", 0.02, 0.2),
    ("oscarmax", "lam", 0.01, 0.1),
    *((f"sparsegen_{g}", "lam", -1.0, 0.8) for g in ("lin", "exp", "sq")),
    ("sparsehourglass", "q", 0.1, 2.0),
    ("sparsecone", "q", 5.0, 9.0),
    *((name, "gamma", 0.5, 2.0) for name in ("softmax", "sparsemax", "pnormmax", "fusedmax", "oscarmax")),
    ("softmax1", "logit", -2.0, 2.0),
    ("sigmoid", "bias", -2.0, 2.0),
    ("alpha_relu", "tau", -1.0, 0.2),
]


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 1)], ids=str)
@pytest.mark.parametrize("name, parameter, low, high", LEARNED)
def test_hyperparameters(name, parameter, low, high, shape):
    x = scores(2, 3, 4).requires_grad_()
    value = (torch.rand(shape, dtype=D) * (high - low) + low).requires_grad_()
    function = sa.spec(name).function

    def f(z, v):
        return function(z, **{parameter: v})

    with sa.kernels.use(
        "reference" if shape == (3,) else "auto"
    ):  # kernels/test_masked.py has both orders of the others
        assert gradcheck(f, (x, value)) and (shape != (3,) or gradgradcheck(f, (x, value)))
    # The same numbers as with plain floats, row by row.
    rows = value.detach().expand(2, 3) if value.ndim < 3 else value.detach()[..., 0].expand(2, 3)
    for i in range(2):
        for j in range(3):
            expected = function(x[i, j].detach(), **{parameter: rows[i, j].item()})
            assert torch.allclose(f(x, value)[i, j].detach(), expected, atol=1e-12)


def test_the_printed_oscarmax_has_gradients_too():
    x, lam = scores(4, 6).requires_grad_(), torch.tensor(0.05, dtype=D, requires_grad=True)
    assert gradcheck(lambda z, v: sa.oscarmax(z, lam=v, mode="paper"), (x, lam))


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("function", [sa.constrained_sparsemax, sa.constrained_softmax])
def test_bounds(kernel, function, lower):
    x, low = scores(3, 5).requires_grad_(), (torch.rand(3, 5, dtype=D) * 0.12).requires_grad_()
    u = (low.detach() + torch.rand(3, 5, dtype=D) * 0.3 + 0.25).requires_grad_()
    given = (x, u, low) if lower else (x, u)

    def f(x, u, low=None, mask=None):
        return function(x, u, mask=mask, lower=low)

    assert gradcheck(f, given)
    assert gradgradcheck(partial(f, mask=torch.arange(5) < 4), given)
    free = torch.full((3, 5), math.inf, dtype=D, requires_grad=True)
    assert all(g.isfinite().all() for g in torch.autograd.grad(f(x, free, low)[:, 0].sum(), (x, free, low)))


@pytest.mark.parametrize("shape", [(6,), (5, 1), (3, 1, 6)])
def test_bounds_that_broadcast(kernel, shape):
    x = scores(3, 5, 6).requires_grad_()
    u = (torch.rand(shape, dtype=D) * 0.3 + 0.18).requires_grad_()
    assert gradcheck(sa.constrained_sparsemax, (x, u))
    turned = x.transpose(-1, -2).detach().requires_grad_()
    bounds = u.expand(3, 5, 6).transpose(-1, -2)
    assert gradcheck(lambda z: sa.constrained_sparsemax(z, bounds.detach(), dim=1), (turned,))


def test_a_bound_above_one_decides_nothing(kernel):
    x = torch.tensor([[5.0, 0.0]], requires_grad=True)
    u = torch.tensor([[2.0, 2.0]], requires_grad=True)
    p = sa.constrained_sparsemax(x, u)
    assert p.tolist() == [[1.0, 0.0]]
    assert [g.abs().max().item() for g in torch.autograd.grad(p[0, 0], (x, u))] == [0.0, 0.0]


def test_both_orders_of_the_gradient_of_constrained_sparsemax_agree(kernel):
    """The plain backward, the one that can be differentiated again, and a batch of gradients."""
    x, u, g = torch.randn(40, 9), torch.rand(40, 9) * 0.4 + 0.35, torch.randn(40, 9)
    u[:8, ::2], u[8:12], x[12:16, 3:] = 0.0, 1 / 9, -torch.inf  # zero bounds, no room but one point, masked
    x[16, 2] = torch.nan
    x.requires_grad_(), u.requires_grad_()
    p = sa.constrained_sparsemax(x, u)
    plain = torch.autograd.grad(p, (x, u), g, retain_graph=True)
    again = torch.autograd.grad(p, (x, u), g, create_graph=True)
    batch = torch.autograd.grad(p, (x, u), torch.stack((g, -2 * g)), is_grads_batched=True)
    for a, b, c in zip(plain, again, batch):
        assert torch.allclose(a, b, atol=1e-6, equal_nan=True)
        assert torch.allclose(torch.stack((a, -2 * a)), c, atol=1e-6, equal_nan=True)
        assert a[16].isnan().all() and not a[:16].isnan().any()


def test_learned_lam_at_zero_is_the_one_sided_derivative():
    x = scores(6, 8)
    for name in ("fusedmax", "oscarmax"):
        function = sa.spec(name).function
        lam = torch.zeros((), dtype=D, requires_grad=True)
        w = torch.randn(6, 8, dtype=D)
        (g,) = torch.autograd.grad((function(x, lam=lam) * w).sum(), lam)
        step = 1e-7
        difference = ((function(x, lam=step) - sa.sparsemax(x)) * w).sum() / step
        assert g.item() == pytest.approx(difference.item(), abs=1e-5)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_transforms(kernel, name):
    m = sa.make(name)
    x = scores(4, 6).abs() + 0.1
    expected = torch.stack([torch.autograd.functional.jacobian(m, row) for row in x])
    for create_graph in (False, True):  # many gradients in one call (is_grads_batched)
        many = torch.autograd.functional.jacobian(m, x[0], create_graph=create_graph, vectorize=True)
        assert torch.allclose(many, expected[0], atol=1e-12)
    assert torch.allclose(torch.func.vmap(m)(x), m(x), atol=1e-12)
    assert torch.allclose(torch.func.vmap(m, in_dims=1)(x), m(x.T), atol=1e-12)
    assert torch.allclose(torch.func.vmap(torch.func.jacrev(m))(x), expected, atol=1e-10)
    assert torch.allclose(torch.func.vmap(torch.func.jacfwd(m))(x), expected, atol=1e-10)
    hessian = torch.func.hessian(lambda row: m(row).square().sum())(x[0])
    assert torch.allclose(hessian, hessian.T, atol=1e-9)


def _twice_and_thrice(f, x) -> None:
    """Forward mode inside forward mode, alone and around or inside reverse mode, against reverse mode."""
    second, third = jacrev(jacrev(f))(x), jacrev(jacrev(jacrev(f)))(x)
    d = torch.randn_like(x)
    along = jvp(lambda z: jvp(f, (z,), (d,))[1], (x,), (d,))[1]
    assert torch.allclose(jacfwd(jacfwd(f))(x), second, atol=1e-9)
    assert torch.allclose(along, (second.flatten(x.ndim) @ d.flatten()).flatten() @ d.flatten(), atol=1e-9)
    for order in (
        lambda f: jacfwd(jacfwd(jacfwd(f))),
        lambda f: jacfwd(jacfwd(jacrev(f))),
        lambda f: jacrev(jacfwd(jacfwd(f))),
    ):
        assert torch.allclose(order(f)(x), third, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if sa.spec(n).over == "row"])
def test_forward_mode_inside_forward_mode(kernel, name):
    x, w, m, mask = torch.rand(5, dtype=D) + 0.1, scores(5), sa.make(name), torch.tensor([1, 1, 0, 1, 1]).bool()
    _twice_and_thrice(lambda z: (m(z.square() + z.sin(), mask=mask).sin() * w).sum(), x)


def test_forward_mode_inside_forward_mode_in_bounds_structures_and_losses():
    x, u = scores(5), torch.rand(5, dtype=D) * 0.5 + 0.25
    _twice_and_thrice(lambda u: sa.constrained_sparsemax(x, u.square() + 0.2).sin().sum(), u)
    y, t, w = 0.3 * scores(1, 3, 2), 0.3 * scores(2, 2), scores(1, 3, 2)

    def marginals(f, along, z):
        given = (z.square(), t) if along else (y, z.square()[0, :2])
        return (f(*given).sin() * w).sum()

    for along in (True, False):
        f = partial(marginals, sa.sparsemap_sequence, along)
        assert jacrev(jacrev(f))(y).abs().max() > 0.1
        _twice_and_thrice(f, y)
        any_factor = partial(marginals, partial(sa.structured.sparsemap, sa.structured.Sequence()), along)
        twice = [_along_ones(partial(_along_ones, f), y) for f in (f, any_factor)]
        assert torch.allclose(*twice, atol=1e-9)
    for mapping, target in (("entmax", torch.tensor([1])), ("sparsemax", torch.rand(1, 5, dtype=D))):
        _twice_and_thrice(partial(_loss, target, mapping), x)
    deep = sa.entmax
    for _ in range(7):
        deep = partial(_along_ones, deep)
    with pytest.raises(NotImplementedError, match="nested 7 times"):
        deep(x)


def _loss(target, mapping, z):
    return sa.losses.fenchel_young(z.square()[None], target, mapping)


def _along_ones(f, z):
    return jvp(f, (z,), (torch.ones_like(z),))[1]


def test_forward_mode_with_a_hyperparameter_as_a_tensor():
    x, d, alpha = scores(5), scores(5), torch.tensor(1.4, dtype=D, requires_grad=True)
    for name, key in (("entmax", "alpha"), ("pnormmax", "p"), ("oscarmax", "lam"), ("sparsemax", "gamma")):
        with_tensor, with_number = (partial(getattr(sa, name), **{key: v}) for v in (alpha, alpha.item()))
        assert torch.allclose(jvp(with_tensor, (x,), (d,))[1], jvp(with_number, (x,), (d,))[1], atol=1e-12)
        assert torch.allclose(*(hessian(lambda z, f=f: f(z).square().sum())(x) for f in (with_tensor, with_number)))
        twice = (_along_ones(partial(_along_ones, lambda z, f=f: f(z.square())), x) for f in (with_tensor, with_number))
        assert torch.allclose(*twice, atol=1e-12)
    with pytest.raises(NotImplementedError, match="pass alpha as a number"):
        jvp(lambda a: sa.entmax(x, alpha=a), (alpha.detach(),), (torch.ones((), dtype=D),))


def test_vmap_over_hyperparameters_and_bounds(kernel):
    x = scores(3, 4, 6)
    alphas = torch.tensor([1.2, 1.5, 1.8], dtype=D)
    out = torch.func.vmap(lambda z, a: sa.entmax(z, alpha=a))(x, alphas)
    for i, a in enumerate(alphas):
        assert torch.allclose(out[i], sa.entmax(x[i], alpha=a.item()), atol=1e-12)
    u = torch.rand(4, 6, dtype=D) + 0.2
    given = x[0].requires_grad_(), u.clone().requires_grad_()
    assert gradcheck(sa.constrained_sparsemax, given, check_forward_ad=True)
    x = x.detach()
    out = torch.func.vmap(sa.constrained_sparsemax, in_dims=(0, None))(x, u)
    assert torch.allclose(out, sa.constrained_sparsemax(x, u), atol=1e-12)
