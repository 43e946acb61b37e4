"""Mappings whose rows need not sum to 1, against scipy, mpmath, the entmax package, a quadratic programme and torch.

What they share with the simplex mappings is in test_mapping_contract.py and test_mapping_gradients.py.
"""

import math

import entmax
import mapping_oracles
import mpmath
import numpy as np
import pytest
import scipy.special
import torch

import sparse_attention as sa
from sparse_attention.mappings import group_sparsemax

D = torch.float64
GROUPS = torch.tensor([2, 0, 2, 0, 0, 5])
SCALES = (0.1, 1.0, 30.0, 1000.0)


def drawn(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    x, mask = scale * torch.randn(40, 9, dtype=D), torch.rand(40, 9) > 0.3
    mask[:, 0] = True
    return x, mask


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("logit", [0.0, -3.0, 2.5, 700.0])
def test_softmax1_is_softmax_with_one_more_score(scale, logit):
    x, mask = drawn(scale)
    p = sa.softmax1(x, logit=logit, mask=mask)
    rows = np.concatenate((x.masked_fill(~mask, -np.inf).numpy(), np.full((40, 1), logit)), -1)
    np.testing.assert_allclose(p.numpy(), scipy.special.softmax(rows, -1)[:, :-1], rtol=1e-12, atol=1e-300)
    p32 = sa.softmax1(x.float(), logit=logit, mask=mask)
    assert torch.allclose(p32.double(), sa.softmax1(x.float().double(), logit=logit, mask=mask), atol=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_sigmoid_is_the_logistic_function_with_a_bias(scale):
    x, mask = drawn(scale)
    counted = scipy.special.expit(x.numpy() - np.log(mask.sum(-1, keepdim=True).numpy())) * mask.numpy()
    np.testing.assert_allclose(sa.sigmoid(x, mask=mask).numpy(), counted, rtol=1e-12, atol=1e-300)
    bias = torch.tensor([[-1.0], [0.5]], dtype=D)
    rows = x.view(2, 20, 9)
    expected = scipy.special.expit(rows.numpy() + bias.unsqueeze(-1).numpy())
    np.testing.assert_allclose(sa.sigmoid(rows, bias=bias).numpy(), expected, rtol=1e-12, atol=1e-300)
    assert torch.equal(sa.sigmoid(x, bias=0.5), sa.Sigmoid(0.5)(x)) and sa.Sigmoid().bias is None


@pytest.mark.parametrize(("name", "other"), [("entmoid15", entmax.entmax15), ("sparsemoid", entmax.sparsemax)])
def test_moids_are_the_first_weight_of_two_scores(name, other):
    x = torch.cat((3 * torch.randn(1000, dtype=D), torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, -50.0, 50.0], dtype=D)))
    x.requires_grad_()
    z = torch.stack((x, torch.zeros_like(x)), -1)
    ours, theirs = getattr(sa, name)(x), other(z, dim=-1)[:, 0]
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0.0)
    inside = ~torch.isin(x.detach(), torch.tensor([-1.0, 1.0], dtype=D))  # sparsemoid's kinks
    (g,), (h,) = (torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (ours, theirs))
    torch.testing.assert_close(g[inside], h[inside], atol=1e-9, rtol=0.0)


def test_small_weights_of_entmoid15_keep_their_precision():
    for x in (-1.999999, -1.99, -1.0, -1e-8, 0.0, 1e-8, 1.0, 1.99):
        with mpmath.workdps(40):
            exact = mpmath.mpf(1) / 2 + mpmath.mpf(x) * mpmath.sqrt(8 - mpmath.mpf(x) ** 2) / 8
        assert sa.entmoid15(torch.tensor([x], dtype=D)).item() == pytest.approx(float(exact), rel=1e-14)
    assert sa.entmoid15(torch.tensor([-2.0, 2.0, -9.0, 9.0])).tolist() == [0.0, 1.0, 0.0, 1.0]


def threshold(x, p, alpha):
    """tau of entmax rows, from the largest position."""
    at = x.argmax(-1, keepdim=True)
    return (alpha - 1) * x.gather(-1, at) - p.gather(-1, at) ** (alpha - 1)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_with_entmaxs_threshold_alpha_relu_is_entmax(alpha):
    x = torch.randn(20, 9, dtype=D)
    p = sa.entmax(x, alpha=alpha)
    torch.testing.assert_close(sa.alpha_relu(x, alpha=alpha, tau=threshold(x, p, alpha)), p, atol=1e-9, rtol=1e-7)


def test_a_constant_threshold_does_not_normalise():
    x = torch.tensor([[-1.0, 0.0, 2.0], [-3.0, -2.0, -1.0]])
    assert sa.alpha_relu(x, alpha=1.5, tau=0.5).tolist() == [[0.0, 0.0, 0.25], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(sa.alpha_relu(x, alpha=2.0, tau=0.5), torch.relu(x - 0.5))
    assert sa.alpha_relu(x).tolist() == sa.alpha_relu(x, -1, 1.5, 0.0).tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="alpha=1"):
        sa.alpha_relu(x, alpha=1.0)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_each_group_is_the_projection_on_its_simplex(kernel, share):
    x = torch.randn(7, 6, dtype=D)
    p = sa.group_sparsemax(x, GROUPS, share=share)
    for row, found in zip(x.numpy(), p.numpy()):
        for g in GROUPS.unique():
            inside = (g == GROUPS).numpy()
            np.testing.assert_allclose(found[inside], share * mapping_oracles.sparsemax(row[inside] / share), atol=1e-9)
    by_size, by_group = (sa.group_sparsemax(x, groups, share=share) for groups in (3, torch.arange(6) // 3))
    torch.testing.assert_close(by_size, by_group)
    torch.testing.assert_close(sa.group_sparsemax(x.T, GROUPS, dim=0, share=share), p.T)
    torch.testing.assert_close(sa.make("group_sparsemax", share=share)(x, groups=GROUPS), p)
    torch.testing.assert_close(sa.GroupSparsemax(GROUPS, share)(x), p)


CASES = {
    "by size": lambda x, mask=None: sa.group_sparsemax(x, 2, mask=mask),
    "by group": lambda x, mask=None: sa.group_sparsemax(x, GROUPS, share=0.7, mask=mask),
}


@pytest.mark.parametrize("name", CASES)
def test_groups_gradients_twice_masks_and_nan(kernel, name):
    f = CASES[name]
    x = torch.randn(3, 6, dtype=D, requires_grad=True)
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


def test_wrong_groups_are_refused():
    x = torch.randn(2, 6)
    for groups, said in ((4, "groups=4 does not divide 6"), (GROUPS[:5], r"shape \(5,\)"), (GROUPS - 1, "from 0")):
        with pytest.raises(ValueError, match=said):
            sa.group_sparsemax(x, groups)
    with pytest.raises(ValueError, match="share=0"):
        sa.group_sparsemax(x, 2, share=0.0)


@pytest.mark.parametrize("name", sa.names("unnormalised"))
def test_attention_takes_them(name):
    """The weights of a module and of a name, with values read by a plain product, also by sa.nn."""
    given = {"groups": 3} if name == "group_sparsemax" else {}
    q, k, v = (torch.randn(2, 4, n, 8, dtype=D, requires_grad=True) for n in (5, 6, 6))
    out, weights = sa.sparse_attention(q, k, v, name, need_weights=True, **given)
    torch.testing.assert_close(weights, sa.spec(name).function(q @ k.mT / math.sqrt(8), **given))
    torch.testing.assert_close(out, weights @ v)
    torch.testing.assert_close(sa.sparse_attention(q, k, v, sa.make(name, **given)), out)
    assert torch.autograd.grad(out.square().sum(), (q, k, v))[2].abs().sum() > 0
    attend = sa.nn.MultiheadAttention(32, 4, batch_first=True, mapping=name, **given)
    out, weights = attend(*[torch.randn(2, 6, 32)] * 3, average_attn_weights=False)
    assert out.isfinite().all() and weights.shape == (2, 4, 6, 6)
    assert not torch.allclose(weights.sum(-1), torch.ones(2, 4, 6))


def test_groups_of_a_graph_take_linear_time_and_memory(monkeypatch):
    """No pass over all positions for each group, and little padding, also beside one long group."""
    of, scores, taken = torch.cat([torch.zeros(3000, dtype=torch.int64), torch.arange(2000)]), torch.randn(5000), []
    monkeypatch.setattr(
        group_sparsemax, "sparsemax", lambda x, **given: taken.append(x.numel()) or sa.sparsemax(x, **given)
    )
    order = torch.randperm(5000)
    p = sa.group_sparsemax(scores[order], of[order])
    assert len(taken) <= 14 and sum(taken) < 2 * 5000
    expected = torch.empty(5000)
    for g in (0, 1, 1999):
        at = (of == g).nonzero().flatten()
        expected[at] = sa.sparsemax(scores[at])
        assert torch.allclose(p[of[order] == g].sort().values, expected[at].sort().values)
    assert (p[of[order] > 0] == 1).all() and p.sum() == pytest.approx(2000)
    assert sa.group_sparsemax(torch.zeros(2, 0), torch.zeros(0, dtype=torch.int64)).shape == (2, 0)
