"""Integrals of densities by rules that share nothing with the package."""

import itertools
import math

import numpy as np
import torch
from scipy.integrate import quad


def t64(x):
    return torch.tensor(x, dtype=torch.float64)


def line(density, function, cuts=()):
    """int function(t, p(t)) dt over the support by adaptive quadrature, split at the middle (some have a kink) and at cuts."""
    low, high = (float(x) for x in density.support())
    middle = float(density.loc)
    if math.isinf(low):
        reach = 40 * float(density.variance) ** 0.5
        low, high = middle - reach, middle + reach
    edges = [low, *sorted(c for c in {middle, *cuts} if low < c < high), high]

    def integrand(t):
        return function(t, float(density.pdf(t64(t))))

    options = {"epsabs": 1e-13, "epsrel": 1e-12, "limit": 400}
    return sum(quad(integrand, a, b, **options)[0] for a, b in itertools.pairwise(edges))


def plane(density, basis=None, function=None, points=(100, 240)):
    """int p psi_j by Gauss-Legendre x trapezoid over the ellipse, one for each j; `function(t, p)` replaces p."""
    u, w = np.polynomial.legendre.leggauss(points[0])
    u, w = (u + 1) / 2, w / 2
    v = np.arange(points[1]) * 2 * np.pi / points[1]
    y = np.stack([np.outer(u, np.cos(v)), np.outer(u, np.sin(v))], -1)
    a = density.support_map().numpy()
    t = density.loc.numpy() + y @ a.T
    p = density.pdf(torch.from_numpy(t)).numpy()
    value = p if function is None else function(t, p)  # [U, V] or [U, V, ...]
    weight = np.outer(w * u, np.full(points[1], 2 * np.pi / points[1])) * abs(np.linalg.det(a))
    psi = basis.evaluate(torch.from_numpy(t)).numpy() if basis is not None else np.ones((*t.shape[:-1], 1))
    weighted = (weight.reshape(*weight.shape, *[1] * (value.ndim - 2)) * value).reshape(weight.size, -1)
    return (psi.reshape(weight.size, -1).T @ weighted).reshape(psi.shape[-1], *value.shape[2:])
