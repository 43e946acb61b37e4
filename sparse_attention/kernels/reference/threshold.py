"""Sparsemax, entmax and pnormmax: one threshold per row decides everything.

Forward of all three: find tau, then ``p_i = f(z_i - tau)`` with f zero on the negatives. The backward functions are
ordinary torch expressions of ``g`` and ``p``, so that they can be differentiated again, and work along the last
dimension of tensors of any shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .rows import Value, centred, finish, prepare, project

# Newton converges in fewer than ten steps; the bound only ends rows that stopped one ulp from the root.
_MAX_STEPS = 100


def sparsemax_forward(x: Tensor, gamma: Value = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmin_{p in simplex} ||p - x/gamma||^2``."""
    rows = prepare(x, gamma)
    return finish(project(rows.z), rows), ()


def sparsemax_backward(g: Tensor, p: Tensor, saved: tuple[Tensor, ...], gamma: Value = 1.0) -> Tensor:
    """``(Diag(s) - s s^T / |S|) g / gamma`` with s the indicator of the support S."""
    return centred(g, (p > 0).to(g.dtype)) / gamma


def entmax_forward(x: Tensor, alpha: Value) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``[(alpha-1) x - tau]_+^{1/(alpha-1)}`` (Peters et al. 2019), alpha > 1; exact for 1.5, Newton otherwise."""
    rows = prepare(x)
    if isinstance(alpha, float) and alpha == 1.5:
        p = _entmax15(rows.z)
    elif isinstance(alpha, float) and alpha == 2.0:
        p = project(rows.z)
    else:
        p = _entmax(rows.z, alpha)
    return finish(p, rows), ()


def _entmax15(z: Tensor) -> Tensor:
    """Closed form on sorted scores: with mean M_k and summed squared deviation V_k of the k largest ``z/2``,
    ``tau_k = M_k - sqrt((1 - V_k)/k)`` and the support is the largest k with ``tau_k <= z_(k)/2``."""
    z = z / 2
    ordered = z.sort(dim=-1, descending=True).values
    # Positions that cannot be in the support (the threshold is at least max - 1) would only spoil the running sums.
    ordered = ordered.clamp(min=-1.5)
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = ordered.cumsum(-1) / count
    spread = (ordered.square().cumsum(-1) - count * mean.square()).clamp(min=0.0)
    tau = mean - ((1.0 - spread) / count).clamp(min=0.0).sqrt()
    size = ((tau <= ordered) & (spread <= 1.0)).sum(-1, keepdim=True).clamp(min=1)
    p = (z - tau.gather(-1, size - 1)).clamp(min=0.0).square()
    return p / p.sum(-1, keepdim=True)


def _entmax(z: Tensor, alpha: Value) -> Tensor:
    """Root of ``F(s) = sum_i u_i^{1/a} = 1``, ``u_i = [1 - a (s - z_i)]_+``, ``a = alpha - 1``, for any alpha > 1.

    s = (tau + 1)/a stays finite as alpha -> 1 (there it is the log-partition function), and so does log1p below.
    Newton on the norm ``F^a``, convex in s for alpha <= 2, from the left end s = 0; bisection catches the rest.
    """
    a = alpha - 1.0
    n = z.shape[-1]
    a_t = torch.as_tensor(a, dtype=z.dtype, device=z.device)

    def density(s: Tensor) -> Tensor:
        t = torch.clamp(-a_t * (s - z), min=-1.0)
        return torch.exp(torch.log1p(t) / a_t)

    def step(s: Tensor) -> tuple[Tensor, Tensor]:
        p = density(s)
        total = p.sum(-1, keepdim=True)
        slope = torch.where(p > 0, p.pow(1.0 - a_t), 0.0).sum(-1, keepdim=True)  # sum u^{1/a - 1}
        return total - 1.0, -total * torch.expm1(-a_t * total.log()) / (a_t * slope)

    low = torch.zeros_like(z[..., :1])
    # F(s) <= n (1 - a s)^{1/a} as all z <= 0, so the root is left of the point where that is 1.
    high = low - torch.expm1(-a_t * torch.log(torch.tensor(float(n), dtype=z.dtype, device=z.device))) / a_t
    p = density(_root(step, low, high))
    return p / p.sum(-1, keepdim=True)


def _root(step: Callable[[Tensor], tuple[Tensor, Tensor]], low: Tensor, high: Tensor) -> Tensor:
    """Root in ``[low, high]`` of a decreasing function, all rows at once.

    ``step(s)`` returns the function's value and the Newton increment. A step that would leave the bracket, or follows one
    that did not halve the value, is replaced by bisection; the iteration ends when no row moves by more than a few ulps.
    """
    s = best = low
    ulp = 2 * torch.finfo(s.dtype).eps
    last = least = torch.full_like(s, torch.inf)
    for _ in range(_MAX_STEPS):
        value, increment = step(s)
        size = value.abs()
        best, least = torch.where(size < least, s, best), torch.minimum(size, least)
        low = torch.where(value > 0, s, low)
        high = torch.where(value > 0, high, s)
        new = s + increment
        # Near the root the value only jitters; that is no reason to jump away from it.
        stalled = (size > 0.5 * last) & (size > 1e-6)
        inside = (new >= low) & (new <= high) & torch.isfinite(new) & ~stalled
        new = torch.where(inside, new, (low + high) / 2)
        # Values closer to 0 than the rounding of their own sum cannot be told from a root.
        done = ((new - s).abs() <= ulp * s.abs()) | (least <= 4 * ulp) | (high - low <= ulp * high.abs())
        if bool(done.all()):
            break
        s, last = torch.where(done, s, new), size
    return best


def entmax_backward(g: Tensor, p: Tensor, saved: tuple[Tensor, ...], alpha: Value) -> Tensor:
    """``Diag(s) - s s^T / sum(s)`` with ``s = p^{2 - alpha}`` on the support."""
    positive = p > 0
    weight = torch.where(positive, torch.where(positive, p, 1.0).pow(2.0 - alpha), 0.0)
    return centred(g, weight)


def entmax_alpha_gradient(dx: Tensor, p: Tensor, alpha: Tensor) -> Tensor:
    """Derivative with respect to alpha, ``[..., 1]``, given the one with respect to the scores.

    On the support ``x_i = F(p_i, alpha) + tau`` with ``F = (p^a - 1)/a``, ``a = alpha - 1``; differentiating at fixed x
    gives ``dp/dalpha = -J dF/dalpha``. ``dF/dalpha = L^2 (1 + e^s (s - 1))/s^2`` with ``L = log p``, ``s = a L``: no
    cancellation as alpha -> 1, where the fraction tends to 1/2.
    """
    positive = p > 0
    log_p = torch.where(positive, p, 1.0).log()
    s = (alpha - 1.0) * log_p
    small = s.abs() < 1e-2
    safe = torch.where(small, -1.0, s)
    # (1 + e^s (s - 1)) = s e^s - expm1(s); below 1e-2 the series has an error of less than 1e-13.
    series = 0.5 + s / 3 + s.square() / 8 + s.pow(3) / 30 + s.pow(4) / 144 + s.pow(5) / 840
    fraction = torch.where(small, series, (safe * safe.exp() - torch.expm1(safe)) / safe.square())
    return -(dx * log_p.square() * fraction).sum(-1, keepdim=True)


def pnormmax_forward(x: Tensor, p: Value, gamma: Value = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmax_{y in simplex} x.y - gamma/2 ||y||_p^2``, 1 < p <= 2 (Niculae & Blondel 2017, sec. 3.1).

    With the dual exponent ``q = p/(p-1)`` and ``v = [x/gamma - tau]_+``: ``y = v^{q-1} / sum v^{q-1}`` where tau solves
    ``sum v^{q-1} = ||v||_q^{q-2}``, the derivative of the convex dual. Written for ``t = max - tau`` and ``w = v/t``.
    """
    rows = prepare(x, gamma)
    if isinstance(p, float) and p == 2.0:
        return finish(project(rows.z), rows), ()
    n = rows.z.shape[-1]
    p_t = torch.as_tensor(p, dtype=rows.z.dtype, device=rows.z.device)
    q = p_t / (p_t - 1.0)
    z = rows.z

    def powers(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ratio = torch.clamp(z / t, min=-1.0)
        log_w = torch.log1p(ratio)  # -inf outside the support
        inside = ratio > -1.0
        return (
            torch.exp((q - 1.0) * log_w),
            torch.exp(q * log_w),
            torch.where(inside, torch.exp((q - 2.0) * torch.where(inside, log_w, 0.0)), 0.0),
        )

    def step(minus_t: Tensor) -> tuple[Tensor, Tensor]:
        t = -minus_t
        first, whole, second = (power.sum(-1, keepdim=True) for power in powers(t))
        scale = whole.pow(-(q - 2.0) / q)
        value = t * first * scale - 1.0
        slope = (q - 1.0) * second * scale - (q - 2.0) * first.square() * whole.pow(-(2.0 * q - 2.0) / q)
        return value, value / slope

    size = torch.tensor(float(n), dtype=z.dtype, device=z.device)
    # max - tau lies in [n^(-2/q), 1] (gamma divided out); the unknown handed to the solver is -t, in which the function decreases.
    low = torch.zeros_like(z[..., :1]) - 1.0
    high = torch.zeros_like(low) - size.pow(-2.0 / q)
    t = -_root(step, low, high)
    y = powers(t)[0]
    return finish(y / y.sum(-1, keepdim=True), rows), ()


def pnormmax_backward(g: Tensor, p_out: Tensor, saved: tuple[Tensor, ...], p: Value, gamma: Value = 1.0) -> Tensor:
    """Inverse Hessian of ``gamma/2 ||y||_p^2`` on the support, projected on directions that sum to 0.

    The Hessian is diagonal plus rank one, so Sherman-Morrison gives ``H^{-1} g = e g - (2-p)/(p-1) (y.g) y / N^2`` with
    ``N = ||y||_p`` and ``e = y^{2-p} N^{p-2} / (p-1)``; cost O(n).
    """
    y, support, norm = _norm(p_out, p)
    e = torch.where(support, y.pow(2.0 - p) * norm.pow(p - 2.0) / (p - 1.0), 0.0)
    rank = (2.0 - p) / (p - 1.0) * p_out / norm.square()
    inverse_g = e * g - rank * (p_out * g).sum(-1, keepdim=True)
    inverse_1 = e - rank * p_out.sum(-1, keepdim=True)
    total = inverse_1.sum(-1, keepdim=True)
    safe = torch.where(total == 0, torch.ones_like(total), total)
    return (inverse_g - inverse_1 * inverse_g.sum(-1, keepdim=True) / safe) / gamma


def pnormmax_p_gradient(dx: Tensor, p_out: Tensor, p: Tensor, gamma: Value = 1.0) -> Tensor:
    """Derivative with respect to the exponent, ``[..., 1]``: ``-dx . d/dp (gamma y^{p-1} ||y||_p^{2-p})``."""
    y, support, norm = _norm(p_out, p)
    log_y = y.log()
    power = torch.where(support, y.pow(p), 0.0)
    total = torch.where(support, y.pow(p), 0.0).sum(-1, keepdim=True)
    total = torch.where(total == 0, 1.0, total)
    log_norm_p = -total.log() / p**2 + (power * log_y).sum(-1, keepdim=True) / (p * total)
    change = y.pow(p - 1.0) * norm.pow(2.0 - p) * (log_y - norm.log() + (2.0 - p) * log_norm_p)
    return -gamma * (dx * torch.where(support, change, 0.0)).sum(-1, keepdim=True)


def _norm(p_out: Tensor, p: Value) -> tuple[Tensor, Tensor, Tensor]:
    """``y`` with 1 outside the support (so that powers stay differentiable), the support, and ``||y||_p`` (1 if empty)."""
    support = p_out > 0
    y = torch.where(support, p_out, 1.0)
    total = torch.where(support, y.pow(p), 0.0).sum(-1, keepdim=True)
    total = torch.where(total == 0, 1.0, total)
    return y, support, total.pow(1.0 / p)
