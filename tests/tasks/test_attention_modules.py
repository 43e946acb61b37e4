import pytest
import torch

import sparse_attention as sa
from tasks.layers import attention

MODULES = [
    lambda: attention.Attention(attention.DotScores(), "sparsemax"),
    lambda: attention.Attention(attention.GeneralScores(6, 6), "sparsemax"),
    lambda: attention.Attention(attention.AdditiveScores(6, 6, 5), sa.make("sparsemax")),
]


@pytest.mark.parametrize("make", MODULES)
def test_context_is_the_weighted_sum_and_padding_is_invisible(make):
    attend = make()
    query, keys = torch.randn(3, 6), torch.randn(3, 5, 6)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])
    context, weights = attend(query, keys, mask)
    assert torch.allclose(context, torch.einsum("bs,bsd->bd", weights, keys), atol=1e-6)
    assert (context[2] == 0).all() and (weights[1, 3:] == 0).all()
    short, _ = attend(query[1:2], keys[1:2, :3])
    assert torch.allclose(context[1:2], short, atol=1e-6)
