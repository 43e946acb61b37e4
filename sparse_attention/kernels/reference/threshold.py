"""Softmax, sparsemax, entmax and pnormmax: mappings determined by one threshold per row.

The forward functions find the threshold tau; then ``p_i = f(z_i - tau)``, where f is zero for negative arguments. The
backward functions are ordinary torch expressions of ``g`` and ``p``, so they can be differentiated again. They work
along the last dimension of tensors of any shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import graph
from .rows import Value, centred, finish, prepare, project, widest

# Newton's method converges in fewer than ten steps; this limit only ends rows that stopped one ulp from the root.
_MAX_STEPS = 100


def sparsemax_forward(x: Tensor, gamma: Value) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmin_{p in simplex} ||p - x/gamma||^2``."""
    rows = prepare(x, gamma)
    return finish(project(rows.z), rows), ()


def sparsemax_backward(g: Tensor, p: Tensor, saved: tuple[Tensor, ...], gamma: Value) -> Tensor:
    """``(Diag(s) - s s^T / |S|) g / gamma``, where s is the indicator vector of the support S."""
    return centred(g, (p > 0).to(g.dtype)) / gamma


def sparsemax_gamma_gradient(dx: Tensor, p: Tensor, gamma: Value) -> Tensor:
    """``-dx . p``, ``[..., 1]``, because on the support ``x = gamma (p + tau)`` and dx sums to 0."""
    return -(dx * p).sum(-1, keepdim=True)


def softmax_forward(x: Tensor, gamma: Value) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``e^{x/gamma}``, normalised."""
    rows = prepare(x, gamma)
    return finish(torch.softmax(rows.z, -1), rows), ()


def softmax_backward(g: Tensor, p: Tensor, saved: tuple[Tensor, ...], gamma: Value) -> Tensor:
    """``(Diag(p) - p p^T) g / gamma``."""
    return centred(g, p) / gamma


def entmax_forward(x: Tensor, alpha: Value) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``[(alpha-1) x - tau]_+^{1/(alpha-1)}`` for alpha > 0 (Peters et al. 2019).

    The threshold has a closed form for alpha 1.5 and 2; otherwise it is found by Newton's method.
    """
    rows = prepare(x)
    if isinstance(alpha, float):
        special = {1.5: _entmax15, 2.0: project}.get(alpha)
        p = special(rows.z) if special else (_entmax if alpha < 2 else _steep_entmax)(rows.z, alpha)
    else:
        p = _entmax(rows.z, alpha.clamp(max=2.0))
        if graph.exporting() or bool((alpha > 2).any()):
            p = torch.where(alpha > 2, _steep_entmax(rows.z, alpha.clamp(min=2.0)), p)
    return finish(p, rows), ()


def _entmax15(z: Tensor) -> Tensor:
    """Closed form on sorted scores, for alpha = 1.5.

    Let M_k be the mean of the k largest ``z/2``, and V_k the sum of their squared deviations from M_k. Then
    ``tau_k = M_k - sqrt((1 - V_k)/k)``, and the size of the support is the largest k with ``tau_k <= z_(k)/2``.
    """
    z = z / 2
    ordered = z.sort(dim=-1, descending=True).values
    # Positions that cannot be in the support (the threshold is at least max - 1) would make the running sums less exact.
    ordered = ordered.clamp(min=-1.5)
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = ordered.cumsum(-1) / count
    spread = (ordered.square().cumsum(-1) - count * mean.square()).clamp(min=0.0)
    tau = mean - ((1.0 - spread) / count).clamp(min=0.0).sqrt()
    size = ((tau <= ordered) & (spread <= 1.0)).sum(-1, keepdim=True).clamp(min=1)
    p = (z - tau.gather(-1, size - 1)).clamp(min=0.0).square()
    return p / p.sum(-1, keepdim=True)


def _entmax(z: Tensor, alpha: Value) -> Tensor:
    """Root of ``F(s) = sum_i u_i^{1/a} = 1``, ``u_i = [1 - a (s - z_i)]_+``, ``a = alpha - 1``, for 0 < alpha <= 2.

    The unknown s = (tau + 1)/a stays finite as alpha -> 1, where it is the log-partition function; every quotient by a
    below stays finite, too. Newton's method is applied to the norm ``F^a``, which is convex in s for a > 0 and concave
    for a < 0. It starts at the left end s = 0.
    """
    a = torch.as_tensor(alpha - 1.0, dtype=z.dtype, device=z.device)
    softmax, a_or_1 = a == 0, torch.where(a == 0, 1.0, a)
    log_n = z.new_ones(z.shape[-1:]).sum().log()

    def density(s: Tensor) -> Tensor:
        t = torch.clamp(-a * (s - z), min=-1.0)
        return torch.exp(torch.where(softmax, z - s, torch.log1p(t) / a_or_1))

    def step(s: Tensor) -> tuple[Tensor, Tensor]:
        p = density(s)
        total = p.sum(-1, keepdim=True)
        slope = torch.where(p > 0, p.pow(1.0 - a), 0.0).sum(-1, keepdim=True)  # sum u^{1/a - 1}
        newton = -total * torch.expm1(-a * total.log()) / (a_or_1 * slope)
        return total - 1.0, torch.where(softmax, total * total.log() / slope, newton)

    low = torch.zeros_like(z[..., :1])
    # F(s) <= n (1 - a s)^{1/a} since all z <= 0, so the root is left of the point where this upper bound is 1.
    high = low + torch.where(softmax, log_n, -torch.expm1(-a * log_n) / a_or_1)
    p = density(_root(step, low, high))
    return p / p.sum(-1, keepdim=True)


def _steep_entmax(z: Tensor, alpha: Value) -> Tensor:
    """Entmax for alpha >= 2, where p rises from 0 with infinite slope and tau may be within 1e-300 of a score.

    Therefore the unknown is w, the smallest positive probability. Let the scores be sorted, let K be the last position
    of the support, and let ``c_j = (a (z_j - z_K))^{1/a}``. Then ``p_j = (c_j^a + w^a)^{1/a}`` is a norm of (c_j, w)
    and so convex in w, and Newton's method from the right is monotone. Position k is in the support if and only if the
    c_j of the positions before k, computed with z_k in place of z_K, sum to less than 1.
    """
    a = torch.as_tensor(alpha - 1.0, dtype=z.dtype, device=z.device)
    ordered = z.sort(dim=-1, descending=True).values.clamp(min=-1e300)
    first = torch.zeros_like(ordered[..., :1], dtype=torch.int64)
    last = torch.full_like(first, z.shape[-1])

    def above(k: Tensor) -> Tensor:
        """``a`` times the amount by which each score exceeds the k-th largest, ``[..., n]``; 0 where it does not."""
        return a * (z - ordered.gather(-1, k)).clamp(min=0.0)

    if graph.exporting():
        first = last = graph.last_inside(z, ordered, a)
    while not graph.exporting() and bool(
        (last - first > 1).any()
    ):  # bisection: `first` is in the support, `last` is not
        middle = (first + last) // 2
        inside = above(middle).pow(1.0 / a).sum(-1, keepdim=True) < 1.0
        settled = last - first <= 1
        first, last = torch.where(inside & ~settled, middle, first), torch.where(inside | settled, last, middle)
    c_a = above(first)
    higher, least = c_a > 0, z == ordered.gather(-1, first)
    ties = least.sum(-1, keepdim=True)
    w = (1.0 - c_a.pow(1.0 / a).sum(-1, keepdim=True)) / ties
    w = torch.minimum(w, 1.0 / (higher.sum(-1, keepdim=True) + ties))

    def probability(w: Tensor) -> Tensor:
        # w^a may underflow to 0, but w does not.
        return torch.where(higher, (c_a + w.pow(a)).pow(1.0 / a), torch.where(least, w, 0.0))

    if graph.exporting():
        w = -graph.root(lambda s: probability(-s).sum(-1, keepdim=True) - 1.0, -w, torch.zeros_like(w))
    for _ in range(0 if graph.exporting() else _MAX_STEPS):
        p, w_a = probability(w), w.pow(a)
        # dp/dw = (w/p)^(a-1)
        slope = ties + torch.where(higher, w_a / (c_a + w_a) * p, 0.0).sum(-1, keepdim=True) / w
        following = w - ((p.sum(-1, keepdim=True) - 1.0) / slope).clamp(min=0.0)
        if bool((following == w).all()):
            break
        w = following
    p = probability(w)
    return p / p.sum(-1, keepdim=True)


def _root(step: Callable[[Tensor], tuple[Tensor, Tensor]], low: Tensor, high: Tensor) -> Tensor:
    """Root in ``[low, high]`` of a decreasing function, all rows at once.

    ``step(s)`` returns the function's value and the Newton increment. If a step would leave the bracket, or the step
    before did not halve the value, bisection is used instead. The iteration ends when no row moves by more than a few
    ulps.
    """
    if graph.exporting():
        return graph.root(lambda s: step(s)[0], low, high)
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
        # Near the root, the value only jitters; bisecting would jump away from the root.
        stalled = (size > 0.5 * last) & (size > 1e-6)
        inside = (new >= low) & (new <= high) & torch.isfinite(new) & ~stalled
        new = torch.where(inside, new, (low + high) / 2)
        # A value smaller than the rounding error of its own sum cannot be distinguished from a root.
        done = ((new - s).abs() <= ulp * s.abs()) | (least <= 4 * ulp) | (high - low <= ulp * high.abs())
        if bool(done.all()):
            break
        s, last = torch.where(done, s, new), size
    return best


def entmax_backward(g: Tensor, p: Tensor, saved: tuple[Tensor, ...], alpha: Value) -> Tensor:
    """``Diag(s) - s s^T / sum(s)`` with ``s = p^{2 - alpha}`` on the support.

    For alpha > 2, the smallest probability has by far the largest weight. So g is measured relative to its entry there,
    the weights are measured relative to the largest weight, and that position's gradient is set so that the sum is 0.
    """
    if isinstance(alpha, float):
        return _weighted(g, p, alpha) if alpha <= 2.0 else _pivoted(g, p, alpha)
    return torch.where(alpha > 2.0, _pivoted(g, p, alpha.clamp(min=2.0)), _weighted(g, p, alpha.clamp(max=2.0)))


def _weighted(g: Tensor, p: Tensor, alpha: Value) -> Tensor:
    positive = p > 0
    return centred(g, torch.where(positive, torch.where(positive, p, 1.0).pow(2.0 - alpha), 0.0))


def _pivoted(g: Tensor, p: Tensor, alpha: Value) -> Tensor:
    positive = p > 0
    wide = torch.where(positive, p, 1.0).to(widest(p))
    e = torch.as_tensor(2.0 - alpha, dtype=wide.dtype, device=p.device)
    least, at = torch.where(positive, wide, torch.inf).min(-1, keepdim=True)
    least = torch.where(torch.isfinite(least), least, 1.0)
    pivot = torch.zeros_like(positive).scatter(-1, at, True) & positive
    h = g.to(wide.dtype) - g.gather(-1, at)
    weight = torch.where(positive, wide.pow(e).clamp(max=torch.finfo(wide.dtype).max * 1e-8), 0.0)
    relative = torch.where(positive, (wide / least).pow(e), 0.0)
    total = relative.sum(-1, keepdim=True)
    mean = (relative * h).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
    others = torch.where(pivot, 0.0, weight * (h - mean))
    # Values that would overflow are replaced by the largest finite number.
    limit = torch.finfo(p.dtype).max
    return torch.where(pivot, -others.sum(-1, keepdim=True), others).clamp(-limit, limit).to(g.dtype)


def entmax_alpha_gradient(dx: Tensor, p: Tensor, alpha: Tensor) -> Tensor:
    """The derivative with respect to alpha, ``[..., 1]``, given the derivative dx with respect to the scores.

    On the support, ``x_i = F(p_i, alpha) + tau`` with ``F = (p^a - 1)/a`` and ``a = alpha - 1``. Differentiating at
    fixed x gives ``dp/dalpha = -J dF/dalpha``. With ``L = log p`` and ``s = a L``, ``dF/dalpha`` is
    ``L^2 (1 + e^s (s - 1))/s^2``. This form has no cancellation as alpha -> 1, where the fraction tends to 1/2. For
    alpha > 2, its constant part ``L^2/s^2 = 1/a^2`` is left out: J maps constants to 0 in exact arithmetic, but not in
    floating point when J is huge.
    """
    positive = p > 0
    log_p = torch.where(positive, p, 1.0).log()
    a = alpha - 1.0
    s = a * log_p
    small = s.abs() < 1e-2
    safe = torch.where(small, -1.0, s)
    # (1 + e^s (s - 1)) = s e^s - expm1(s); for |s| below 1e-2, the series has an error of less than 1e-13.
    series = 0.5 + s / 3 + s.square() / 8 + s.pow(3) / 30 + s.pow(4) / 144 + s.pow(5) / 840
    fraction = torch.where(small, series, (safe * safe.exp() - torch.expm1(safe)) / safe.square())
    steep = a > 1.0
    flat = dx * log_p.square() * fraction
    change = torch.where(steep, dx * (s.exp() * (s - 1.0) / torch.where(steep, a, 1.0).square()), flat)
    return -torch.where(dx == 0, 0.0, change).sum(-1, keepdim=True)


def pnormmax_forward(x: Tensor, p: Value, gamma: Value) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmax_{y in simplex} x.y - gamma/2 ||y||_p^2``, 1 < p <= 2 (Niculae & Blondel 2017, sec. 3.1).

    With the dual exponent ``q = p/(p-1)`` and ``v = [x/gamma - tau]_+``, the solution is ``y = v^{q-1} / sum v^{q-1}``,
    where tau solves ``sum v^{q-1} = ||v||_q^{q-2}``, the derivative of the convex dual. The code uses ``t = max - tau``
    and ``w = v/t``.
    """
    rows = prepare(x, gamma)
    if isinstance(p, float) and p == 2.0:
        return finish(project(rows.z), rows), ()
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

    size = z.new_ones(z.shape[-1:]).sum()
    # max - tau lies in [n^(-2/q), 1] (gamma is divided out). The solver's unknown is -t: the function decreases in it.
    low = torch.zeros_like(z[..., :1]) - 1.0
    high = torch.zeros_like(low) - size.pow(-2.0 / q)
    t = -_root(step, low, high)
    y = powers(t)[0]
    return finish(y / y.sum(-1, keepdim=True), rows), ()


def pnormmax_backward(g: Tensor, p_out: Tensor, saved: tuple[Tensor, ...], p: Value, gamma: Value) -> Tensor:
    """The inverse Hessian of ``gamma/2 ||y||_p^2`` on the support, projected onto directions that sum to 0.

    The Hessian is diagonal plus rank one, so Sherman-Morrison gives ``H^{-1} g = e g - (2-p)/(p-1) (y.g) y / N^2`` with
    ``N = ||y||_p`` and ``e = y^{2-p} N^{p-2} / (p-1)``. The cost is O(n).
    """
    y, support, norm = _norm(p_out, p)
    e = torch.where(support, y.pow(2.0 - p) * norm.pow(p - 2.0) / (p - 1.0), 0.0)
    rank = (2.0 - p) / (p - 1.0) * p_out / norm.square()
    inverse_g = e * g - rank * (p_out * g).sum(-1, keepdim=True)
    inverse_1 = e - rank * p_out.sum(-1, keepdim=True)
    total = inverse_1.sum(-1, keepdim=True)
    safe = torch.where(total == 0, torch.ones_like(total), total)
    return (inverse_g - inverse_1 * inverse_g.sum(-1, keepdim=True) / safe) / gamma


def pnormmax_p_gradient(dx: Tensor, p_out: Tensor, p: Tensor, gamma: Value) -> Tensor:
    """The derivative with respect to the exponent p, ``[..., 1]``: ``-dx . d/dp (gamma y^{p-1} ||y||_p^{2-p})``."""
    y, support, norm = _norm(p_out, p)
    log_y = y.log()
    power = torch.where(support, y.pow(p), 0.0)
    log_norm_p = ((power * log_y).sum(-1, keepdim=True) / norm.pow(p) - norm.log()) / p
    change = y.pow(p - 1.0) * norm.pow(2.0 - p) * (log_y - norm.log() + (2.0 - p) * log_norm_p)
    return -gamma * (dx * torch.where(support, change, 0.0)).sum(-1, keepdim=True)


def pnormmax_gamma_gradient(dx: Tensor, p_out: Tensor, p: Value, gamma: Value) -> Tensor:
    """``-dx . F``, ``[..., 1]``, because on the support ``x = gamma (F + tau)`` with ``F = y^{p-1} ||y||_p^{2-p}``."""
    y, support, norm = _norm(p_out, p)
    change = y.pow(p - 1.0) * norm.pow(2.0 - p)
    return -(dx * torch.where(support, change, 0.0)).sum(-1, keepdim=True)


def _norm(p_out: Tensor, p: Value) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y (1 off the support, so that powers stay differentiable), the support, and ``||y||_p`` (1 if empty)."""
    support = p_out > 0
    y = torch.where(support, p_out, 1.0)
    total = torch.where(support, y.pow(p), 0.0).sum(-1, keepdim=True)
    total = torch.where(total == 0, 1.0, total)
    return y, support, total.pow(1.0 / p)
