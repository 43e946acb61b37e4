"""Entmax at every alpha: exact up to 100, softmax at 1, dense below, continuous in value and gradient."""

from functools import cache

import mpmath
import pytest
import torch

import sparse_attention as sa

D = torch.float64


@cache
def exact(x: tuple[float, ...], g: tuple[float, ...], alpha: float) -> tuple[list[float], list[float], float]:
    """Attention, its vector-Jacobian product with g and the derivative in alpha, by bisection with many digits."""
    with mpmath.workdps(60 if alpha < 2 else 30 + 4 * int(alpha)):
        top, a, n = max(x), mpmath.mpf(alpha) - 1, len(x)

        def density(s):
            inside = [1 - a * (s - (mpmath.mpf(v) - top)) for v in x]
            return [u ** (1 / a) if u > 0 else mpmath.mpf(0) for u in inside]

        low, high = mpmath.mpf(0), (1 - mpmath.mpf(n) ** -a) / a
        for _ in range(mpmath.mp.prec):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(density(middle)) > 1 else (low, middle)
        p = density(high)
        s = [v ** (2 - mpmath.mpf(alpha)) if v > 0 else mpmath.mpf(0) for v in p]
        mean = sum(u * v for u, v in zip(s, g)) / sum(s)
        dx = [u * (v - mean) for u, v in zip(s, g)]
        changes = [(d, mpmath.log(v)) for d, v in zip(dx, p) if v > 0]
        slope = -sum(d * (1 + mpmath.exp(a * u) * (a * u - 1)) / a**2 for d, u in changes)
        return [float(v) for v in p], [float(v) for v in dx], float(slope)


FAST, SLOW = (0.1, 0.7, 1 - 1e-6, 1 + 1e-6, 1.0002, 1.3, 2.5, 4.0, 10.0, 20.0), (60.0, 100.0)


@pytest.mark.parametrize("alpha", [*FAST, *(pytest.param(a, marks=pytest.mark.slow) for a in SLOW)])
def test_value_and_gradients_are_exact(kernel, alpha):
    x = torch.randn(3, 6, dtype=D) * torch.tensor([[0.01], [1.0], [5.0]], dtype=D)
    x[0, 3] = x[0, 1]
    x, g = x.float().to(D), torch.randn(3, 6).to(D)
    p0, dx0, da0 = (
        torch.tensor(v, dtype=D)
        for v in zip(*(exact(tuple(u), tuple(v), alpha) for u, v in zip(x.tolist(), g.tolist())))
    )
    for dtype, tolerance in ((D, 1e-12), (torch.float32, 4e-6)):
        z = x.to(dtype).requires_grad_()
        for learned in (None, torch.full((3,), alpha, dtype=D).requires_grad_()):
            p = sa.entmax(z, alpha=alpha if learned is None else learned)
            dx = torch.autograd.grad(p, (z,) if learned is None else (z, learned), g.to(dtype))
            for got, expected in zip((p, *dx), (p0, dx0, da0)):
                assert ((got.to(D) - expected).abs() / (1 + expected.abs())).max() < tolerance, (dtype, learned)


def test_one_is_softmax_and_is_passed_without_a_jump(kernel):
    x, w = torch.randn(4, 9, dtype=D), torch.randn(4, 9, dtype=D)

    def at(value: float) -> tuple[torch.Tensor, ...]:
        z, alpha = x.clone().requires_grad_(), torch.tensor(value, dtype=D, requires_grad=True)
        p = sa.entmax(z, alpha=alpha)
        return (p.detach(), *torch.autograd.grad(p, (z, alpha), w))

    middle = at(1.0)
    assert torch.allclose(middle[0], x.softmax(-1), atol=1e-14)
    assert torch.equal(sa.entmax(x, alpha=1.0), sa.softmax(x))
    assert middle[2].abs() > 1e-3
    for step in (1e-12, 1e-8, 1e-5):
        for value in (1 - step, 1 + step):
            for here, there in zip(middle, at(value)):
                assert torch.allclose(here, there, atol=20 * step + 1e-13)
