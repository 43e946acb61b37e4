"""Attention whose words can be used up: the loop property, bounds that just fit or do not, gradients through the steps."""

import pytest
import torch

import sparse_attention as sa

NAMES = sa.names("stateful")
CONSTRAINED = {"fertility_softmax": sa.constrained_softmax, "fertility_sparsemax": sa.constrained_sparsemax}


def drawn(rows: int, n: int, steps: int, seed: int = 1) -> torch.Tensor:
    """Whole fertilities [rows, n] that sum to the number of steps."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(n, (rows, steps), generator=generator)
    return torch.nn.functional.one_hot(words, n).sum(1).double()


def run(name: str, scores: torch.Tensor, fertility: torch.Tensor, mask: torch.Tensor | None = None, **params):
    """Attention [B, T, n] of all steps, and what is left [B, n]."""
    m = sa.make(name, **params)
    state = m.start(torch.ones_like(fertility, dtype=torch.bool) if mask is None else mask, fertility=fertility)
    steps = []
    for x in scores.unbind(1):
        p, state = m.step(x, state, mask)
        steps.append(p)
    return torch.stack(steps, 1), state["left"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("n, steps", [(1, 4), (3, 3), (5, 8), (12, 20)])
def test_fertilities_that_sum_to_the_number_of_steps_are_used_up_exactly(name, dtype, tolerance, n, steps):
    """The loop property (Malaviya et al. 2018) on two thousand rows, words of fertility 0 among them."""
    fertility = drawn(2000, n, steps).to(dtype)
    assert n < 3 or fertility.eq(0).any()
    generator = torch.Generator().manual_seed(2)
    scores = 3 * torch.randn(2000, steps, n, generator=generator, dtype=torch.float64).to(dtype)
    p, left = run(name, scores, fertility, c=0.2)
    assert (p.sum(-1) - 1).abs().max() < tolerance and p.min() >= 0
    assert (p.sum(1) - fertility).abs().max() < tolerance and left.max() < tolerance
    assert p.masked_select(fertility.eq(0).unsqueeze(1).expand_as(p)).eq(0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_the_constrained_mapping_under_what_is_left(name):
    torch.manual_seed(1)
    scores, fertility = torch.randn(4, 3, 6, dtype=torch.float64), 0.3 + torch.rand(4, 6, dtype=torch.float64)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1, 4:] = False
    p, _ = run(name, scores, fertility, mask, c=0.2)
    left = fertility.clone()
    for t in range(3):
        expected = CONSTRAINED[name](scores[:, t] + 0.2 * left, left, mask=mask)
        torch.testing.assert_close(p[:, t], expected)
        left = (left - expected).clamp(min=0)
    together = sa.make(name, c=0.2)(scores, mask, fertility=fertility)
    torch.testing.assert_close(together, p)


@pytest.mark.parametrize("name", NAMES)
def test_without_limits_it_is_the_plain_mapping_and_a_sink_is_never_exhausted(name):
    torch.manual_seed(1)
    scores = torch.randn(3, 30, 4, dtype=torch.float64)
    plain = {"fertility_softmax": sa.softmax, "fertility_sparsemax": sa.sparsemax}[name](scores)
    free, left = run(name, scores, torch.full((3, 4), torch.inf, dtype=torch.float64), c=0.2)
    torch.testing.assert_close(free, plain)
    assert left.isinf().all()
    fertility = torch.tensor([[1.0, 1.0, 1.0, torch.inf]], dtype=torch.float64).expand(3, 4)
    p, left = run(name, scores, fertility)
    assert (p[..., :3].sum(1) <= 1 + 1e-9).all() and torch.allclose(p.sum(-1), torch.ones(3, 30, dtype=torch.float64))
    assert left[:, 3].isinf().all() and p[:, -1, 3].min() > 0.99


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_told(name):
    scores, fertility = torch.randn(2, 3, 4), torch.tensor([[2.0] * 4, [0.5] * 4])
    p, _ = run(name, scores[:, :2], fertility)  # the second row just fits two steps
    torch.testing.assert_close(p[1].sum(0), fertility[1])
    with pytest.raises(ValueError, match=r"remaining fertility is too small: bounds of row \(1,\).*model.sink=true"):
        run(name, scores, fertility)
    with pytest.raises(ValueError, match=r"contain -1"):
        run(name, scores, -torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"c >= 0"):
        sa.make(name, c=-0.1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("c", [0.0, 0.2])
def test_gradients_through_three_steps(name, c):
    """Finite differences, for scores and fertilities; some words are used up on the way."""
    torch.manual_seed(3)
    scores = (2 * torch.randn(2, 3, 5, dtype=torch.float64)).requires_grad_()
    fertility = (0.4 + torch.rand(2, 5, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(2, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        assert run(name, scores, fertility, c=c)[1].eq(0).any()
    assert torch.autograd.gradcheck(lambda z, f: (weights * run(name, z, f, c=c)[0]).sum(), (scores, fertility))
