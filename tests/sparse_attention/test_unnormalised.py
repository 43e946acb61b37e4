"""Alpha-ReLU and group-wise sparsemax against entmax at its own threshold, sparsemax group by group, and finite differences."""

from __future__ import annotations

import pytest
import torch

import sparse_attention as sa
from sparse_attention.unnormalised import alpha_relu, group_sparsemax

GROUPS = torch.tensor([2, 0, 2, 0, 0, 5])


def threshold(x, p, alpha):
    """tau of entmax rows, from the largest position."""
    at = x.argmax(-1, keepdim=True)
    return (alpha - 1) * x.gather(-1, at) - p.gather(-1, at) ** (alpha - 1)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_with_entmaxs_threshold_it_is_entmax(alpha):
    x = torch.randn(20, 9, dtype=torch.float64)
    p = sa.entmax(x, alpha=alpha)
    torch.testing.assert_close(alpha_relu(x, alpha=alpha, tau=threshold(x, p, alpha)), p, atol=1e-9, rtol=1e-7)


def test_a_constant_threshold_does_not_normalise():
    x = torch.tensor([[-1.0, 0.0, 2.0], [-3.0, -2.0, -1.0]])
    assert alpha_relu(x, alpha=1.5, tau=0.5).tolist() == [[0.0, 0.0, 0.25], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(alpha_relu(x, alpha=2.0, tau=0.5), torch.relu(x - 0.5))
    assert alpha_relu(x).tolist() == alpha_relu(x, -1, 1.5, 0.0).tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="alpha=1"):
        alpha_relu(x, alpha=1.0)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_each_group_is_the_projection_on_its_simplex(kernel, share):
    x = torch.randn(7, 6, dtype=torch.float64)
    p = group_sparsemax(x, GROUPS, share=share)
    for g in GROUPS.unique():
        inside = g == GROUPS
        torch.testing.assert_close(p[:, inside], share * sa.sparsemax(x[:, inside] / share))
        torch.testing.assert_close(p[:, inside].sum(-1), torch.full((7,), share, dtype=torch.float64))
    torch.testing.assert_close(
        group_sparsemax(x, 3, share=share), group_sparsemax(x, torch.arange(6) // 3, share=share)
    )
    torch.testing.assert_close(group_sparsemax(x.T, GROUPS, dim=0, share=share), p.T)


CASES = {
    "alpha_relu": lambda x, mask=None: alpha_relu(x, alpha=1.4, tau=0.1, mask=mask),
    "by size": lambda x, mask=None: group_sparsemax(x, 2, mask=mask),
    "by group": lambda x, mask=None: group_sparsemax(x, GROUPS, share=0.7, mask=mask),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_twice_masks_and_nan(kernel, name):
    torch.manual_seed(0)
    f = CASES[name]
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([1, 1, 0, 1, 0, 1]).bool()
    for keep in (None, mask):
        assert torch.autograd.gradcheck(lambda z, keep=keep: f(z, keep), (x,))
        assert torch.autograd.gradgradcheck(lambda z, keep=keep: f(z, keep), (x,))
    p = f(x, mask)
    assert (p[:, ~mask] == 0).all() and torch.equal(p, f(x.masked_fill(~mask, -torch.inf)))
    assert (f(x, torch.zeros(6).bool()) == 0).all() and f(x[:0]).shape == (0, 6)
    spoilt = x.detach().clone()
    spoilt[1, 3] = torch.nan
    assert f(spoilt)[1, 3].isnan() and torch.equal(f(spoilt)[::2], f(x)[::2])
    assert f(x.detach().bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(torch.vmap(f)(x), f(x))


def test_threshold_is_learned():
    x = torch.randn(4, 6, dtype=torch.float64)
    tau = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: alpha_relu(x, tau=t), (tau,))


def test_wrong_groups_are_refused():
    x = torch.randn(2, 6)
    for groups, said in ((4, "groups=4 does not divide 6"), (GROUPS[:5], r"shape \(5,\)"), (GROUPS - 1, "from 0")):
        with pytest.raises(ValueError, match=said):
            group_sparsemax(x, groups)
    with pytest.raises(ValueError, match="share=0"):
        group_sparsemax(x, 2, share=0.0)
