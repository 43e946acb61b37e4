"""Top-k and top-p against enumeration of all sets."""

import itertools

import pytest
import torch

import sparse_attention as sa


def best_set(x: torch.Tensor, size: int) -> tuple[int, ...]:
    """The set of ``size`` positions of largest sum; among equals the first in lexicographic order."""
    return max(itertools.combinations(range(len(x)), size), key=lambda s: float(x[list(s)].sum()))


def softmax_of(x: torch.Tensor, size: int) -> torch.Tensor:
    inside = list(best_set(x, size))
    return torch.zeros_like(x).index_put((torch.tensor(inside),), torch.softmax(x[inside], 0))


@pytest.mark.parametrize("k", [1, 3, 6, 9])
def test_top_k_is_softmax_of_the_set_of_largest_sum(k: int) -> None:
    torch.manual_seed(k)
    for x in torch.randn(20, 6, dtype=torch.float64).round(decimals=1):
        torch.testing.assert_close(sa.top_k(x, k=k), softmax_of(x, min(k, 6)))


@pytest.mark.parametrize("mass", [0.1, 0.5, 0.9, 0.999, 1.0])
def test_top_p_is_softmax_of_the_smallest_set_that_holds_the_mass(mass: float) -> None:
    torch.manual_seed(0)
    for x in torch.randn(20, 6, dtype=torch.float64):
        q = torch.softmax(x, 0)
        size = next(s for s in range(1, 7) if q[list(best_set(x, s))].sum() >= mass - 1e-12)
        torch.testing.assert_close(sa.top_p(x, mass=mass), softmax_of(x, size))
