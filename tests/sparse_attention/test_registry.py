from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import sparse_attention as sa
from sparse_attention import registry


@pytest.fixture
def scratch(monkeypatch):
    """Registrations of a test end with it."""
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


def test_names_and_specs():
    assert sa.names("simplex")[:6] == ["softmax", "sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax"]
    assert {"constrained_softmax", "constrained_sparsemax"} == set(sa.names("constrained"))
    for name in sa.names("simplex"):
        found = sa.spec(name)
        assert found.name == name and found.paper and found.oracle and found.summary
        assert getattr(sa, name) is found.function
        for param in found.params:
            assert param.meaning and param.range
            assert param.check(param.default) == param.default
            for value in param.grid:
                param.check(value)


def test_unknown_names_are_answered_with_the_nearest():
    for error in (ValueError, KeyError):
        with pytest.raises(error, match=r"nearest is 'fusedmax'.*sparsemax"):
            sa.make("fusdmax")
    with pytest.raises(ValueError, match=r"lam=-1 is out of range: lam >= 0.*gamma=0 is out of range: gamma > 0"):
        sa.make("fusedmax", lam=-1, gamma=0)
    with pytest.raises(ValueError, match=r"no parameter 'lamb'.*did you mean 'lam'"):
        sa.make("fusedmax", lamb=1)
    with pytest.raises(ValueError, match="is not one of simplex"):
        sa.names("simple")


@pytest.mark.parametrize(
    "name, parameter, bad, good",
    [
        ("fusedmax", "lam", -0.1, 0.0),
        ("oscarmax", "lam", float("nan"), 2),
        ("sparsemax", "gamma", 0.0, 1e-3),
        ("entmax", "alpha", 1.0, 1.01),
        ("pnormmax", "p", 2.01, 2),
        ("pnormmax", "p", 1.0, 1.5),
        ("sparsegen_lin", "lam", 1.0, -5),
        ("sparsehourglass", "q", -1e-9, 0),
        ("oscarmax", "mode", "signed", "paper"),
        ("pnormmax", "solver", "newton", "pgd"),
        ("softmax", "gamma", float("inf"), 2.0),
        ("entmax", "alpha", "1.5", 2),
    ],
)
def test_ranges_hold_for_modules_and_functions(name, parameter, bad, good):
    x = torch.rand(3, 4)
    sa.make(name, **{parameter: good})(x)
    for call in (lambda: sa.make(name, **{parameter: bad}), lambda: sa.spec(name).function(x, **{parameter: bad})):
        with pytest.raises(ValueError, match=parameter):
            call()


def test_a_function_from_outside_gets_the_whole_contract(scratch):
    @sa.register("powermax", paper="none")
    def powermax(scores, mask, power=2.0):
        """Powers, normalised."""
        z = scores.abs().masked_fill(~mask, 0.0) ** power
        return z / z.sum(-1, keepdim=True)

    assert sa.spec("powermax").summary == "Powers, normalised."
    m = sa.make("powermax", power=3)
    x = torch.rand(4, 5, 6) + 0.1
    mask = torch.rand(4, 5, 6) > 0.3
    mask[0, :, 0] = False
    p = m(x, mask=mask, dim=1)
    z = x**3 * mask
    assert torch.allclose(p, (z / z.sum(1, keepdim=True)).nan_to_num(), atol=1e-6)
    x[1, 2, 3] = float("nan")
    assert torch.isnan(m(x, dim=1)).sum() == 5  # its row only
    assert m(x.half()).dtype == torch.float16
    x = x.nan_to_num(1.0).requires_grad_()
    m(x, mask=mask, dim=1).square().sum().backward()
    assert torch.isfinite(x.grad).all()
    with pytest.raises(ValueError, match="already registered"):
        sa.register("powermax")(powermax)
    sa.register("powermax", replace=True)(powermax)


def test_a_class_from_outside(scratch):
    @sa.register("warmmax", summary="learned temperature")
    class Warmmax(nn.Module):
        def __init__(self, start=1.0):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(start))

        def forward(self, scores, mask):
            return torch.softmax((scores * self.scale).masked_fill(~mask, -torch.inf), -1)

    m = sa.make("warmmax", start=2.0)
    x, mask = torch.randn(3, 4), torch.tensor([[True] * 4, [False] * 4, [True, False, True, False]])
    assert torch.allclose(m(x, mask=mask), sa.softmax(x * 2, mask=mask), atol=1e-6)
    m(x, mask=mask)[0, 0].backward()
    assert torch.isfinite(m.inner.scale.grad) and "start=2.0" in repr(m)


def test_learned_parameters_belong_to_the_module():
    lam = nn.Parameter(torch.full((4, 1), 0.1))
    m = sa.make("fusedmax", lam=lam)
    assert next(iter(m.parameters())) is lam and "learned (4, 1)" in repr(m)
    m(torch.randn(2, 4, 3, 7))[..., 0].sum().backward()
    assert lam.grad.shape == (4, 1) and lam.grad.abs().sum() > 0
    assert m.double().params["lam"].dtype == torch.float64


def test_import_is_light():
    code = (
        "import sys, time, torch; t = time.perf_counter(); import sparse_attention; d = time.perf_counter() - t; "
        "heavy = [m for m in ('torch._dynamo', 'triton', 'numpy.testing', 'scipy', 'fairseq', 'hydra', 'sympy') "
        "if m in sys.modules]; print(d, heavy)"
    )
    base = subprocess.run(
        [sys.executable, "-c", code.replace("import sparse_attention", "pass")], capture_output=True, text=True
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    seconds, _, heavy = out.partition(" ")
    assert heavy == base.stdout.partition(" ")[2], "something heavy was imported that torch alone does not import"
    assert float(seconds) < 0.3


def test_choosing_kernels():
    assert sa.kernels.active() in sa.kernels.NAMES
    before = sa.kernels.active()
    with sa.kernels.use("reference"):
        assert sa.kernels.active() == "reference"
        assert sa.kernels.select("sparsemax", torch.zeros(1, 1)).__name__.endswith("reference")
    assert sa.kernels.active() == before
    with pytest.raises(ValueError, match="'fast' do not exist; choose one of auto"):
        sa.kernels.use("fast")
    with sa.kernels.use("triton"), pytest.raises(RuntimeError, match=r"'triton'.*use\('auto'\)"):
        sa.sparsemax(torch.randn(2, 3))
