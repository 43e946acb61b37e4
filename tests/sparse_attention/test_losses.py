import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sparse_attention as sa

D = torch.float64
REGULARISED = [n for n in sa.losses.REGULARISERS if not n.startswith("constrained")]


def x_and_target(rows: int = 6, n: int = 5):
    return torch.randn(rows, n, dtype=D), torch.softmax(torch.randn(rows, n, dtype=D), -1)


@pytest.mark.parametrize("name", REGULARISED)
def test_the_mapping_is_the_gradient_of_its_maximum(name):
    m = sa.make(name)
    x, _ = x_and_target(4)
    x.requires_grad_()
    mask = torch.rand(4, 5) > 0.3
    mask[0] = False
    (g,) = torch.autograd.grad(sa.max_omega(x, m, mask=mask).sum(), x)
    assert torch.allclose(g, m(x, mask=mask), atol=1e-12)
    assert sa.max_omega(x, m, mask=mask)[0] == 0
    # The gradient is what autograd says; differences of the value must say the same, at first and second order.
    if name != "hardmax":
        assert gradcheck(lambda z: sa.max_omega(z, m, mask=mask), (x,))
        assert gradgradcheck(lambda z: sa.max_omega(z, m, mask=mask), (x,))
    # No other point of the simplex does better.
    value = sa.max_omega(x, m)
    for p in torch.softmax(torch.randn(200, 1, 5, dtype=D) * 3, -1):
        omega = sa.losses.REGULARISERS[name](p, torch.ones(1, 5, dtype=torch.bool), **numbers(m)).sum(-1)
        assert (((x * p).sum(-1) - omega) <= value + 1e-12).all()


def numbers(m):
    return {k: v for k, v in m.params.items() if k not in ("mode", "solver", "tol")}


def test_closed_forms_of_the_maximum():
    x, _ = x_and_target()
    assert torch.allclose(sa.max_omega(x, "softmax"), x.logsumexp(-1), atol=1e-12)
    assert torch.allclose(sa.max_omega(x, "hardmax"), x.amax(-1))
    assert torch.allclose(sa.max_omega(x, sa.make("entmax", alpha=2.0)), sa.max_omega(x, "sparsemax") + 0.5, atol=1e-12)
    assert torch.allclose(sa.max_omega(x.T, "sparsemax", dim=0), sa.max_omega(x, "sparsemax"), atol=1e-12)
    # Near alpha = 1, Tsallis' (p^alpha - p) / (alpha (alpha - 1)) without loss of digits.
    p, a = x.softmax(-1), 1e-6
    tsallis = sa.losses.REGULARISERS["entmax"](p, p > 0, alpha=1 + a)
    assert torch.allclose(tsallis, p * torch.expm1((1 + a - 1) * p.log()) / (1 + a - 1) / (1 + a), rtol=1e-9)
    # Two classes, t = x1 - x2 (Niculae & Blondel, Fig. 2): 0 or t beyond +-1, (t + 1)^2/4 between, up to -1/2.
    t = torch.linspace(-3, 3, 25, dtype=D)
    value = sa.max_omega(torch.stack([t, torch.zeros_like(t)], -1), "sparsemax")
    expected = torch.where(t >= 1, t, torch.where(t <= -1, 0.0, (t + 1) ** 2 / 4)) - 0.5
    assert torch.allclose(value, expected, atol=1e-12)


def test_losses_of_a_row_whose_scores_are_all_excluded(kernel):
    """test_loss_options.py has rows with some excluded scores."""
    x, y = torch.tensor([[1.0, 0.2, 0.3], [-math.inf] * 3], requires_grad=True), torch.tensor([0, 1])
    for smoothing in (0.0, 0.1):
        loss = sa.losses.softmax_loss(x, y, label_smoothing=smoothing, reduction="none")
        (g,) = torch.autograd.grad(loss.sum(), x)
        assert loss[1] == 0 and torch.isfinite(g).all() and (g[1] == 0).all()
    for target in (torch.full((2, 3), 1 / 3), y):
        assert sa.losses.fenchel_young(x, target, "entmax", reduction="none")[1] == math.inf


def test_sparsemax_loss_is_the_printed_one():
    x, t = x_and_target()
    p = sa.sparsemax(x)
    tau = torch.where(p > 0, x - p, -torch.inf).amax(-1, keepdim=True)
    printed = -(t * x).sum(-1) + 0.5 * torch.where(p > 0, x**2 - tau**2, 0.0).sum(-1) + 0.5 * (t**2).sum(-1)
    assert torch.allclose(sa.losses.sparsemax_loss(x, t, reduction="none"), printed, atol=1e-12)
    z = torch.linspace(-3, 3, 13, dtype=D)
    huber = sa.losses.sparsemax_loss(torch.stack([z, 0 * z], -1), torch.zeros(13, dtype=torch.long), reduction="none")
    assert torch.allclose(huber, torch.where(z >= 1, 0.0, torch.where(z <= -1, -z, (z - 1) ** 2 / 4)), atol=1e-12)


def double_sum(z, eta, width, scale, half, corrected):
    """Eq. 7 and 8 as printed, one pair at a time."""
    total = 0.0
    for i in range(len(z)):
        for j in range(len(z)):
            if eta[i] > 0 and eta[j] > 0:
                shift = width * (eta[i] - eta[j]) if corrected else 0.0
                total = total + abs(scale * (z[i] - z[j]) - shift) * (0.5 if half else 1.0)
            elif eta[i] > 0:
                total = total + max(width * eta[i] - scale * (z[i] - z[j]), 0.0)
    return float(total)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
def test_hinge_losses_are_the_double_sums(uniform, half, corrected):
    z = torch.randn(20, 7, dtype=D)
    y = (torch.rand(20, 7) > 0.5).to(D)
    y[0], y[1] = 0, 1
    target = y if uniform else y * torch.rand(20, 7, dtype=D)
    eta = (target / target.sum(-1, keepdim=True)).nan_to_num()
    options = {"half_pairs": half, "corrected": corrected, "reduction": "none"}
    linear = sa.losses.sparsegen_hinge(z, target, lam=0.4, **options)
    hourglass = sa.losses.sparsehourglass_hinge(z, target, q=0.5, **options)
    for r in range(20):
        width = (z[r].sum().abs() + 3.5) / 4.5
        assert linear[r].item() == pytest.approx(double_sum(z[r], eta[r], 1.0, 1 / 0.6, half, corrected), abs=1e-9)
        assert hourglass[r].item() == pytest.approx(double_sum(z[r], eta[r], width, 1.0, half, corrected), abs=1e-9)


def test_hinge_subgradients_at_ties_do_not_depend_on_the_order_of_classes():
    for z, y, expected in (([5.0, 5, -9, -9], [1, 1, 0, 0], [0, 0, 0, 0]), ([0.0, 0, 0], [1, 1, 0], [-1, -1, 2])):
        x = torch.tensor(z, requires_grad=True)
        sa.losses.sparsegen_hinge(x, torch.tensor(y)).backward()
        assert x.grad.tolist() == expected


@pytest.mark.parametrize(
    ("name", "params"),
    [("sparsemax", {}), ("softmax", {}), ("entmax", {}), ("entmax", {"alpha": 1.01}), ("fusedmax", {})],
    ids=str,
)
def test_a_common_offset_costs_no_digits(name, params):
    x, y = torch.randn(500, 50), torch.randint(50, (500,))
    for offset in (0.0, 1e2, 1e4):
        moved = x + offset  # as float32 rounds it
        loss = sa.losses.fenchel_young(moved, y, name, reduction="none", **params)
        exact = sa.losses.fenchel_young(moved.double(), y, name, reduction="none", **params)
        assert (loss.double() - exact).abs().max() < (2e-5 if offset else 4e-6)


def test_hinge_gradients_masks_and_memory():
    z = torch.randn(3, 6, dtype=D, requires_grad=True)
    y = (torch.rand(3, 6) > 0.5).to(D)
    lam = torch.tensor([0.1, -0.5, 0.4], dtype=D, requires_grad=True)
    assert gradcheck(lambda a, b: sa.losses.sparsegen_hinge(a, y, lam=b), (z, lam))
    assert gradcheck(lambda a: sa.losses.sparsehourglass_hinge(a, y, q=0.3), (z,))
    mask = torch.tensor([True, True, False, True, True, False])
    for loss in (sa.losses.sparsegen_hinge, sa.losses.sparsehourglass_hinge):
        assert torch.allclose(loss(z, y, mask=mask), loss(z[:, mask], y[:, mask]), atol=1e-12)
        assert torch.allclose(loss(z.T, y.T, dim=0), loss(z, y), atol=1e-12)
        # A K x K matrix would need 320 GB.
        loss(torch.randn(1, 200_000), (torch.rand(1, 200_000) > 0.5).float())
