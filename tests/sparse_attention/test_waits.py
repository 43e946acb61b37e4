"""What a GPU would be waited for: nothing in a mapping, its checks included; what is computed there is the same."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import sparse_attention as sa
from sparse_attention.mappings import continuous as ct
from sparse_attention.rows import shape

# Operations that hand a value, or a size that depends on values, to the host. As torch's profiler sees them: a mode would
# take the mappings another way.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive")
LINE, PLANE = ct.GaussianBasis1d.linspaced(16), ct.GaussianBasis2d.grid(5, 5, 0.01)


def waits(work):
    with sa.kernels.use("reference"), profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    return [e.name for e in seen.events() if e.name.removeprefix("aten::") in WAITING]


def density(function, basis):
    def work():
        torch.manual_seed(0)
        mu = torch.rand(7).requires_grad_()
        # from much narrower than the basis functions to wider
        sigma = torch.logspace(-7, 0, 7).requires_grad_()
        r = function(mu, sigma, basis)
        return [r.detach(), *torch.autograd.grad(r.square().sum(), (mu, sigma))]

    return work


LAYER = ct.ContinuousAttention1d(LINE, alpha=2.0, query_dim=5)


def layer():
    torch.manual_seed(0)
    mask = torch.arange(8) < torch.tensor([[8], [5], [0]])
    values = torch.randn(3, 8, 6, requires_grad=True)
    context, _ = LAYER(values, mask, query=torch.randn(3, 5))
    return [context.detach(), *torch.autograd.grad(context.square().sum(), values)]


def bounded(mapping):
    def work():
        torch.manual_seed(0)
        x, u = torch.randn(4, 9, requires_grad=True), torch.full((4, 9), 0.3, requires_grad=True)
        p = mapping(x, u, mask=torch.arange(9) < 7)
        return [p.detach(), *torch.autograd.grad(p.square().sum(), (x, u)), mapping(x.detach(), 0.4)]

    return work


def plane():
    return [ct.continuous_softmax(torch.full((3, 2), 0.4), 0.05 * torch.eye(2).expand(3, 2, 2), PLANE)]


def mass():
    mu = torch.tensor([[0.1], [0.5], [0.9]])
    return [ct.BetaGaussian(mu, torch.full((3, 1), 0.1)).pdf(torch.linspace(0, 1, 4))]


WORKS = {
    "BetaGaussian": mass,
    "continuous_softmax": density(ct.continuous_softmax, LINE),
    "continuous_sparsemax": density(ct.continuous_sparsemax, LINE),
    "continuous_softmax on the plane": plane,
    "ContinuousAttention1d": layer,
    "constrained_softmax": bounded(sa.constrained_softmax),
    "constrained_sparsemax": bounded(sa.constrained_sparsemax),
}


@pytest.mark.parametrize("name", WORKS)
def test_no_mapping_waits(name, monkeypatch):
    expected = WORKS[name]()
    assert waits(WORKS[name]), "on a CPU the checks do look"
    monkeypatch.setattr(shape, "asynchronous", lambda x: True)
    found = WORKS[name]()  # what is kept from the first call on is read here
    assert waits(WORKS[name]) == []
    for there, here in zip(found, expected, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)


def test_rows_out_of_range_become_nan_where_an_error_would_wait(monkeypatch):
    monkeypatch.setattr(shape, "asynchronous", lambda x: True)
    u = torch.tensor([[0.1, 0.1, 0.1], [1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])
    for mapping in (sa.constrained_softmax, sa.constrained_sparsemax):
        p = mapping(torch.zeros(3, 3), u)
        assert p[[0, 2]].isnan().all() and torch.allclose(p[1], torch.full((3,), 1 / 3))
    r = ct.continuous_sparsemax(torch.full((2,), 0.5), torch.tensor([-1.0, 0.1]), LINE)
    assert r[0].isnan().all() and r[1].isfinite().all()
    p = ct.Laplace(torch.full((2,), 0.5), torch.tensor([-1.0, 0.1])).pdf(torch.tensor(0.5))
    assert p[0].isnan() and p[1].isfinite()
    r = ct.continuous_softmax(torch.full((2, 2), 0.5), torch.stack([-torch.eye(2), 0.1 * torch.eye(2)]), PLANE)
    assert r[0].isnan().all() and r[1].isfinite().all()
