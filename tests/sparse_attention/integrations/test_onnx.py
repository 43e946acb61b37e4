"""Exported graphs give in onnxruntime what the mappings give in torch; what cannot be exported says so."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparse_attention as sa
from sparse_attention.kernels.reference import graph, structured

FREE = torch.export.Dim.DYNAMIC
SHAPES = [(1, 1), (2, 1), (3, 17), (5, 2), (4, 9)]
ROWS = [n for n in sa.names() if sa.spec(n).over == "row" and not sa.spec(n).stateful]
ALPHAS = (0.5, 1.3, 3.0, "learned", torch.tensor(2.5))
PARAMS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ROWS]
PARAMS += [("entmax", {"alpha": alpha}) for alpha in ALPHAS] + [("pnormmax", {"p": 1.1, "gamma": 0.5})]
PARAMS += [(name, {"lam": torch.tensor(0.3)}) for name in ("fusedmax", "oscarmax")]
PARAMS += [("oscarmax", {"lam": 0.1, "mode": "paper"}), ("group_sparsemax", {"groups": 2})]
FAST = ["sparsemax"]


class Called(nn.Module):
    """A model around a function; the modules inside are its own, so that their parameters are exported."""

    def __init__(self, function: Any, *parts: nn.Module):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def installed() -> Any:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="torch.onnx.export needs it: pip install 'sparse-attention[onnx]'")
    return pytest.importorskip("onnxruntime", reason="compares with onnxruntime, which is not installed")


def exported(model: nn.Module, inputs: tuple[Tensor, ...], free: tuple[int, ...]) -> Any:
    """``f(*inputs)`` by onnxruntime; the dimensions in ``free`` of every input are dynamic."""
    runtime = installed()
    shapes = (tuple({d: FREE for d in free if d < x.ndim} for x in inputs),)
    program = torch.onnx.export(model, inputs, dynamo=True, verbose=False, dynamic_shapes=shapes)
    proto = program.model_proto
    assert {node.domain for node in proto.graph.node} <= {""} and not proto.functions
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda *given: torch.from_numpy(
        session.run(None, {n: x.numpy() for n, x in zip(names, given, strict=True)})[0]
    )


def drawn(name: str, case: int, size: int) -> tuple[Tensor, ...]:
    """Scores of several sizes and scales, with ties, masks that hide whole rows, and bounds that leave a solution."""
    rows, n = SHAPES[case % len(SHAPES)]
    n *= size
    x = torch.randn(rows, n) * (1.0, 0.01, 30.0, 1000.0)[case % 4]
    x = x.round() if case % 3 == 0 else x
    x = x.abs() if sa.spec(name).domain == "nonnegative" else x.clamp(max=20.0) if name == "sparsegen_exp" else x
    keep = torch.rand(rows, n) > 0.3
    if case % 4 == 0:
        keep[0] = False
    if "bounds" not in sa.spec(name).inputs:
        return x, keep
    u = torch.rand(rows, n)
    return x, keep, 1.5 * u / (u * keep).sum(-1, keepdim=True).clamp(min=1e-3)


def case(name: str, params: dict[str, Any]) -> Any:
    marks = [] if name in FAST and not params else pytest.mark.slow
    return pytest.param(name, params, marks=marks, id=f"{name}-{'-'.join(map(str, params.values()))}")


@pytest.mark.parametrize(("name", "params"), [case(*one) for one in PARAMS])
def test_every_mapping_over_rows(name, params):
    size = params.get("groups", 1)  # rows are multiples
    m = sa.make(name, **({"groups": 1} if "groups" in sa.spec(name).inputs else {}) | params)

    def heads(x, keep, *u):  # [rows, 1, n], as attention has more dimensions than rows and scores
        return m(x[:, None], mask=keep[:, None], **({"bounds": u[0][:, None]} if u else {})).squeeze(1)

    model = Called(heads, m)
    example = (torch.randn(3, 7 * size).abs(), torch.rand(3, 7 * size) > 0.3, torch.full((3, 7), 0.6))
    bounded = "bounds" in sa.spec(name).inputs
    run = exported(model, example if bounded else example[:2], (0, 1))
    for case in range(20):
        inputs = drawn(name, case, size)
        torch.testing.assert_close(run(*inputs), model(*inputs).detach(), atol=1e-6, rtol=0.0, equal_nan=True)
    if not bounded:
        x = torch.tensor([[1.0, torch.nan, 0.0], [0.5, 1.0, -torch.inf], [-torch.inf] * 3]).repeat(1, size)
        all_ = torch.ones_like(x, dtype=torch.bool)
        torch.testing.assert_close(run(x, all_), model(x, all_).detach(), atol=1e-6, rtol=0.0, equal_nan=True)


@pytest.mark.filterwarnings("ignore")  # that this exporter is deprecated, and what it fixes while it traces
@pytest.mark.parametrize("name", ["sparsemax", "entmax", "fusedmax", "pnormmax", "attention"])
def test_the_older_exporter_keeps_lengths_free(name):
    runtime = installed()
    m = sa.make("sparsemax" if name == "attention" else name)
    attends = Called(
        lambda x: sa.sparse_attention(4 * x, x, x) if name == "attention" else m(x.transpose(2, 3)), m
    ).eval()
    file = io.BytesIO()
    free = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch", 2: "n"}}}
    torch.onnx.export(attends, (torch.randn(2, 3, 7, 8),), file, dynamo=False, **free)
    session = runtime.InferenceSession(file.getvalue())
    for batch, n in ((1, 1), (3, 5), (2, 12)):
        x = torch.randn(batch, 3, n, 8)
        found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        torch.testing.assert_close(found, attends(x), atol=1e-6, rtol=0.0)


FORMS: dict[str, dict[str, Any]] = {"sparsemax": {}, "window": {"window": (3, 0)}}
FORMS |= {name: {"mapping": name} for name in ("softmax", "fusedmax")}
FORMS["slopes"] = {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0])}
FORMS["sink"] = {"mapping": "entmax", "sink": torch.tensor([0.0, 1.0, -1.0, 0.5])}
FORMS["scale"] = {"mapping": "entmax", "scale": torch.tensor([0.2, 0.4, 0.8, 1.6])}
FORMS["scale"]["alpha"] = torch.tensor([1.2, 1.5, 2.0, 3.0])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_causal_attention(form):
    model = Called(lambda q, k, v: sa.sparse_attention(q, k, v, causal=True, **FORMS[form]))
    run = exported(model, tuple(torch.randn(2, 4, 7, 8) for _ in range(3)), (0, 2))
    for batch, n in ((1, 1), (3, 2), (2, 17)):
        q, k, v = (torch.randn(batch, 4, n, 8) for _ in range(3))
        torch.testing.assert_close(run(q, k, v), model(q, k, v), atol=2e-6, rtol=1e-6)


def _encoder() -> nn.Module:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1)
    assert sa.nn.replace(encoder, "sparsemax") == 1
    return Called(lambda x, padded: encoder(x, src_key_padding_mask=padded), encoder)


def _attends() -> nn.Module:
    attend = sa.nn.MultiheadAttention(16, 4, batch_first=True, mapping="entmax", alpha="learned")
    return Called(lambda x, padded, hidden: attend(x, x, x, padded, False, attn_mask=hidden)[0], attend)


def _theirs(name: str) -> nn.Module:
    from tiny_models import tiny, transformers

    kind = getattr(transformers, {"bert": "BertModel", "gpt2": "GPT2LMHeadModel"}[name])
    attend = sa.integrations.transformers.register("sparsemax")
    model = kind._from_config(tiny(kind.config_class, use_cache=False), attn_implementation=attend)
    with torch.no_grad():
        for parameter in model.parameters():  # for scores large enough for zeros
            parameter.mul_(4.0 if parameter.ndim == 2 else 1.0)
    return Called(lambda words, kept: model(input_ids=words, attention_mask=kept)[0], model)


def _padded(batch: int, n: int) -> Tensor:
    return torch.arange(n) >= torch.randint(1, n + 1, (batch, 1))


def _words(batch: int, n: int) -> tuple[Tensor, ...]:
    return torch.randint(60, (batch, n)), (~_padded(batch, n)).long()


MODELS: dict[str, tuple[Any, Any]] = {
    "encoder": (_encoder, lambda batch, n: (torch.randn(batch, n, 16), _padded(batch, n))),
    "module": (_attends, lambda batch, n: (torch.randn(batch, n, 16), _padded(batch, n), torch.rand(n, n) > 0.6)),
    "bert": (lambda: _theirs("bert"), _words),
    "gpt2": (lambda: _theirs("gpt2"), _words),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_of_any_batch_size_and_length(name):
    torch.manual_seed(0)
    build, draw = MODELS[name]
    model = build().eval()
    with torch.no_grad():
        run = exported(model, draw(2, 7), (0, 1))
        for n in range(1, 18):
            given = draw(1 + n % 3, n)
            torch.testing.assert_close(run(*given), model(*given), atol=1e-6, rtol=1e-6)


def test_the_formulas_for_graphs_equal_the_algorithms():
    for case in range(60):
        n, scale = case % 23 + 1, (0.1, 1.0, 10.0)[case % 3]
        y = torch.randn(3, n, dtype=torch.float64) * scale
        y = y.round() if case % 2 else y
        weight = torch.rand(3, n - 1, dtype=torch.float64) * (torch.rand(3, n - 1) > 0.2)
        torch.testing.assert_close(graph.tv_prox(y, weight), structured.tv_prox(y, weight), atol=1e-12, rtol=0.0)
        torch.testing.assert_close(graph.isotonic(y), structured.isotonic_decreasing(y)[0], atol=1e-12, rtol=0.0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x: sa.pnormmax(x, solver="pgd"), r"pnormmax with solver='pgd' cannot be exported.*use solver='exact'"),
        (lambda x: sa.tvmax(x), "tvmax cannot be exported to ONNX"),
        (lambda x: sa.sparsemap_matching(x), "sparsemap_matching cannot be exported to ONNX"),
        (lambda x: sa.sparsemap_sequence(x, x), "sparsemap_sequence cannot be exported to ONNX"),
        (lambda x: sa.structured.sparsemap(sa.structured.Budget(2), x[0]), "sparsemap cannot be exported to ONNX"),
    ],
)
def test_solvers_that_stop_on_convergence_refuse(call, sentence, monkeypatch):
    import torch.onnx

    x = torch.randn(4, 4)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(NotImplementedError, match=sentence):
        call(x)


def test_attention_in_a_graph_is_the_composition(monkeypatch):
    import torch.onnx

    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    q = torch.randn(1, 2, 4, 8)
    assert [sa.attention.plan(q, q, q, mapping=name).path for name in ("sparsemax", "softmax")] == ["composition"] * 2
    with sa.kernels.use("native"), torch._subclasses.FakeTensorMode() as mode:  # what an exporter traces with
        entries = torch.fx.experimental.proxy_tensor.make_fx(lambda x: sa.fusedmax(x, lam=0.3))(mode.from_tensor(q))
    assert not [n for n in entries.graph.nodes if "sparse_attention" in str(n.target)]


@pytest.mark.parametrize(
    "name", ["sparsemax", "attention", *(pytest.param(n, marks=pytest.mark.slow) for n in ("entmax", "fusedmax"))]
)
def test_with_the_reference_kernels_an_exported_program_has_operators_of_torch_alone(name):
    mapping = (lambda x: sa.sparse_attention(x, x, x, causal=True)) if name == "attention" else getattr(sa, name)
    model, x = Called(mapping), torch.randn(2, 3, 5, 5)
    for kernels in ("reference", "auto"):
        with sa.kernels.use(kernels):
            program = torch.export.export(model, (x,), dynamic_shapes=(({0: FREE},),))
        ours = [node for node in program.graph.nodes if str(node.target).startswith("sparse_attention")]
        assert bool(ours) == (kernels == "auto")
        other = torch.randn(3, 3, 5, 5)
        torch.testing.assert_close(program.module()(other), mapping(other), atol=1e-6, rtol=1e-5)
