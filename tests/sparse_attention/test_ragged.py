"""Mappings over jagged tensors agree with the loop over single sequences, in values and gradients."""

import pytest
import torch

import sparse_attention as sa

NAMES = [n for n in sa.names() if sa.spec(n).over == "row" and not sa.spec(n).stateful]
LENGTHS = (4, 0, 7, 2, 4, 1)
pytestmark = pytest.mark.filterwarnings("ignore")


def jagged(parts):
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def inputs(name):
    return {key: {"bounds": 1.0, "groups": 1}[key] for key in sa.spec(name).inputs}


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_single_sequences(name):
    for shape, dim in (((), -1), ((3,), 1), ((3,), -1), ((2, 3), 2)):
        parts = [torch.rand(n, *shape).requires_grad_() for n in LENGTHS]
        scores, m = jagged(parts), sa.make(name)
        out = m(scores, dim=dim, **inputs(name))
        alone = [m(x, dim=dim if dim < 0 else dim - 1, **inputs(name)) for x in parts]
        torch.testing.assert_close(out.unbind(), tuple(alone))
        assert (out * scores).shape == scores.shape  # the same ragged size
        slopes = torch.autograd.grad(out.values().cos().sum(), parts)
        torch.testing.assert_close(slopes, torch.autograd.grad(sum(x.cos().sum() for x in alone), parts))


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "fusedmax", "top_k", "constrained_sparsemax"])
def test_masks_are_jagged(name):
    parts, masks = [torch.randn(n, 2) for n in LENGTHS], [torch.rand(n, 2) < 0.7 for n in LENGTHS]
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    scores, mask = (torch.nested.nested_tensor_from_jagged(torch.cat(x), ends.clone()) for x in (parts, masks))
    m = sa.spec(name).function
    for dim in (1, 2):
        out = m(scores, dim=dim, mask=mask, **inputs(name))
        alone = [m(x, dim=dim - 1, mask=keep, **inputs(name)) for x, keep in zip(parts, masks)]
        torch.testing.assert_close(out.unbind(), tuple(alone))


def test_a_parameter_that_is_a_tensor_learns():
    parts, gamma = [torch.randn(n) for n in LENGTHS], torch.tensor(0.5, requires_grad=True)
    found = (sa.sparsemax(jagged(parts), gamma=gamma).unbind(), [sa.sparsemax(x, gamma=gamma) for x in parts])
    slopes = [torch.autograd.grad(sum(x.cos().sum() for x in p), gamma) for p in found]
    torch.testing.assert_close(*slopes)


def test_gradients_and_graphs():
    values = torch.randn(9, dtype=torch.float64, requires_grad=True)
    ends = torch.tensor([0, 3, 3, 5, 9])

    def attend(x):
        scores = torch.nested.nested_tensor_from_jagged(x, ends)
        return (sa.entmax(2 * scores) * scores).values()

    assert torch.autograd.gradcheck(attend, values)
    torch.testing.assert_close(torch.compile(attend, backend="eager")(values), attend(values))  # the graph breaks
    torch.compiler.reset()
    with pytest.raises(Exception, match="lengths of nested tensors; for fullgraph=True, pad them"):
        torch.compile(attend, backend="eager", fullgraph=True)(values)
    empty = torch.nested.nested_tensor_from_jagged(values[:0], ends * 0)
    assert sa.sparsemax(empty).values().shape == (0,)


def test_what_is_refused():
    scores = jagged([torch.randn(3, 4), torch.randn(2, 4)])
    gaps = torch.nested.narrow(torch.randn(2, 5), 1, torch.tensor([0, 1]), torch.tensor([3, 2]), layout=torch.jagged)
    other, flat = jagged([torch.ones(n, 4) for n in (2, 3)]).bool(), jagged([torch.ones(n) for n in (3, 2)]).bool()
    for call, error, words in (
        (lambda: sa.sparsemax(scores, dim=0), ValueError, "dim=0 of nested scores .*: mappings take dim from 1 to 2"),
        (lambda: sa.sparsemax(scores.transpose(1, 2)), ValueError, "nested scores .B, ., .*see transpose"),
        (lambda: sa.sparsemax(scores, mask=torch.ones(4).bool()), TypeError, "must be nested.*tensor_from_jagged"),
        (lambda: sa.sparsemax(scores, mask=other), ValueError, "the sequences of mask must have the same lengths"),
        (
            lambda: sa.sparsemax(scores, mask=jagged([torch.ones(n, 1) for n in (3, 2)]).bool()),
            ValueError,
            "have the shape",
        ),
        (lambda: sa.sparsemax(scores, mask=flat), ValueError, "must have the shape of the scores"),
        (
            lambda: sa.sparsemax(scores, dim=1, gamma=torch.ones(5)),
            ValueError,
            "gamma must be one number for nested scores",
        ),
        (lambda: sa.sparsemax(gaps), ValueError, r"scores has gaps .*scores.contiguous\(\)"),
        (lambda: sa.make("fertility_softmax")(scores, fertility=torch.ones(2)), TypeError, "scores is a nested tensor"),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize(
    ("name", "params"),
    [("softmax", {}), ("sparsemax", {"gamma": torch.tensor([0.5, 1.0])}), ("entmax", {"alpha": 1.3})],
)
def test_every_segment_gets_the_weights_that_it_has_alone(name, params):
    """The edges of a graph in any order, two heads, one node without edges; values, gradients, a mask and a NaN."""
    to = torch.tensor([3, 0, 3, 1, 0, 3, 3, 3, 1, 3, 5])
    x, keep = torch.randn(len(to), 2, dtype=torch.float64), torch.rand(len(to), 1) < 0.8
    x[10] = torch.nan
    x.requires_grad_()
    mapping = getattr(sa, name)
    p = mapping(x, dim=0, mask=keep, segments=to, **params)
    alone = torch.zeros_like(p)
    for node in to.unique():
        own = to == node
        alone[own] = mapping(x[own], dim=0, mask=keep[own], **params)
    torch.testing.assert_close(p, alone, equal_nan=True)
    g = torch.randn(len(to), 2, dtype=torch.float64)
    (a,), (b,) = (torch.autograd.grad(y[:10], x, g[:10]) for y in (p, alone))
    torch.testing.assert_close(a[:10], b[:10])
    if name == "sparsemax":
        plain = x.detach()[:10]
        grouped = sa.group_sparsemax(plain, to[:10], dim=0)
        assert torch.equal(sa.Sparsemax()(plain, segments=to[:10], dim=0), grouped)


@pytest.mark.parametrize(
    ("word", "value", "way"), [("segments", torch.tensor([0, 0, 1]), "nested"), ("dtype", torch.float64, "scores.to")]
)
def test_what_only_some_mappings_take_the_others_refuse_by_name(word, value, way):
    """Of every function over positions; a mapping with a state is none, and densities have no positions."""
    x = torch.randn(3)
    taking = ("softmax", "sparsemax", "entmax")
    of = [s for s in map(sa.spec, sa.names()) if not s.stateful and s.over != "density" and s.name not in taking]
    for name in (s.name for s in of):
        for call in [getattr(sa, name)] + [sa.make("fusedmax")] * (name == "fusedmax"):
            with pytest.raises(TypeError, match=f"^{name} takes no {word}; softmax, sparsemax, entmax do. .*{way}"):
                call(x, **{word: value})
    for name in taking if word == "dtype" else ():  # as torch.softmax: converted first, whole numbers too
        p = getattr(sa, name)(torch.arange(3), dtype=value)
        assert p.dtype == value and torch.equal(p, getattr(sa, name)(torch.arange(3.0, dtype=value)))


def test_segments_that_do_not_fit_are_refused():
    x, nested = torch.randn(3, 2), torch.nested.nested_tensor([torch.randn(2, 4)], layout=torch.jagged)
    for segments in (torch.tensor([0, 1]), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, -1, 1]), 2):
        with pytest.raises(ValueError, match=r"segments is .*; it must be int64 of shape \(3,\)"):
            sa.sparsemax(x, dim=0, segments=segments)
    with pytest.raises(TypeError, match=r"leave out segments, or pass the values"):
        sa.sparsemax(nested, dim=1, segments=torch.tensor([0, 0]))


def test_top_k_takes_a_k_for_each_row():
    x, k = torch.randn(2, 3, 9), torch.tensor([1, 2, 12])
    assert ((sa.top_k(x, k=k) > 0).sum(-1) == k.clamp(max=9)).all()
    torch.testing.assert_close(sa.top_k(x.mT, dim=1, k=k), sa.top_k(x, k=k).mT)
    torch.testing.assert_close(sa.TopK(k=k)(x)[:, 1], sa.top_k(x[:, 1], k=2))
    assert sa.top_k(x, k=torch.tensor([1, 0, 2]))[:, 1].isnan().all()
