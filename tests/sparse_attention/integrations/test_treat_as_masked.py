import copy
import pickle

import pytest
import torch

import sparse_attention as sa


@pytest.mark.parametrize("name", [n for n in sa.names("simplex") if sa.spec(n).over == "row" and not sa.spec(n).inputs])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fills_are_masks(name, dtype):
    scores = torch.rand(4, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    keep = torch.ones(4, 7, dtype=torch.bool)
    keep[1, 5:], keep[2, 1:4], keep[3] = False, False, False
    filled = scores.masked_fill(~keep, -torch.finfo(dtype).max)
    f = sa.integrations.treat_as_masked(name)
    assert torch.equal(f(filled), sa.make(name)(scores, mask=keep))
    assert torch.equal(f(filled.T, dim=0), sa.make(name)(scores, mask=keep).T)
    assert (f(filled)[~keep] == 0).all()
    biased = filled + torch.finfo(dtype).max / 100  # a bias added to the fill leaves it one
    assert torch.equal(sa.integrations.separate(biased)[0], keep)


@pytest.mark.parametrize("fill", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4, -5000.0])
def test_one_rule_says_what_hides(fill):
    """Of filled scores, of masks that transformers' models add and of sa.nn's (tests/sparse_attention/test_nn.py)."""
    scores = torch.tensor([[0.3, fill, 0.1, 0.2]])
    keep = torch.tensor([[True, False, True, True]])
    found = sa.integrations.treat_as_masked("fusedmax", lam=0.1)(scores)
    assert torch.equal(found, sa.fusedmax(scores, lam=0.1, mask=keep))
    assert torch.equal(sa.integrations.separate(scores)[0], keep)
    kept, bias = sa.integrations.separate(torch.tensor([fill, -4999.0, 2.0, torch.nan]))
    assert kept.tolist() == [False, True, True, True] and bias[:3].tolist() == [0.0, -4999.0, 2.0]


def test_what_counts_as_a_fill_can_be_said():
    scores = torch.tensor([[0.3, -100.0, 0.1, 0.2]])
    keep = scores > -50
    wrong = sa.integrations.treat_as_masked("fusedmax", lam=0.1)(scores)
    for below in (-50, -100):
        right = sa.integrations.treat_as_masked("fusedmax", below=below, lam=0.1)(scores)
        assert torch.equal(right, sa.fusedmax(scores, lam=0.1, mask=keep)) and not torch.allclose(right, wrong)
    nan = torch.tensor([[0.3, torch.nan, 0.1]])
    assert sa.integrations.treat_as_masked("sparsemax")(nan).isnan().all()
    with pytest.raises(ValueError, match="lam: allowed only with a mapping's name"):
        sa.integrations.treat_as_masked(sa.make("fusedmax"), lam=0.1)


def test_the_result_is_a_module():
    """It is saved, copied and trained with the model that holds it, also in place of a torch.nn.Softmax."""
    model = torch.nn.Module()
    model.softmax = torch.nn.Softmax(-1)
    model.softmax = sa.integrations.treat_as_masked("entmax", alpha="learned")
    assert [name for name, _ in model.named_parameters()] == ["softmax.mapping.alpha_logit"]
    scores = torch.randn(3, 4)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(again.softmax(scores), model.softmax(scores))
        assert again.softmax.mapping.alpha_logit is not model.softmax.mapping.alpha_logit
    for made in (
        sa.integrations.treat_as_masked("sparsemax", dim=0),
        sa.integrations.treat_as_masked(sa.make("sparsemax", dim=0)),
    ):
        assert torch.equal(made(scores), sa.sparsemax(scores, dim=0))
        assert torch.equal(made(scores, dim=1), sa.sparsemax(scores))
