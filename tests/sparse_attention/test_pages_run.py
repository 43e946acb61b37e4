"""The code of pages about the library runs from top to bottom and prints what the pages show, and so do the papers' errata."""

import contextlib
import io
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).resolve().parents[2] / "docs"
ERRATA = DOCS / "reference" / "errata"
SCRIPTS = sorted(ERRATA.glob("*.py"))
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.S)
CHECKS: dict[str, tuple[int, str]] = {  # how many blocks, and what holds after them
    "start/my_model.md": (12, "(p[2] == 0).all() and step.shape == (1, 4, 1, 32)"),
    "guides/losses.md": (3, "p.shape == (4, 30) and loss.ndim == 0"),
    "guides/attention.md": (
        3,
        "torch.allclose(edge_weights[1:3].sum(0), torch.ones(2)) and out.is_nested and weights.is_nested and ssmax.shape == (2, 4, 16, 8)",
    ),
    "guides/continuous.md": (1, "r.shape == (8, 100) and context.shape == (8, 128)"),
    "guides/transformers.md": (
        5,
        "count == 2 and weights[0, 2] == 0 and type(model.layers[1].self_attn) is type(attend)",
    ),
    "guides/structured.md": (3, "(p[:, 5] == 0).all() and x.grad.isfinite().all() and found.gap.shape == (8,)"),
    "reference/mappings/own.md": (3, "first[0, 0] > second[0, 0] and own(sa.make('mymax', sharpness=3.0))"),
}


class _Selects(torch.nn.Module):
    def __init__(self, *sizes: int, **given: Any) -> None:
        super().__init__()
        self.selector = torch.nn.Softmax(-1)


# Packages that the tests do not install, by what stands for them: the package, the module, its names.
FOREIGN = [
    ("x_transformers", "x_transformers", {"Decoder": dict}),
    ("pytorch_tabnet", "pytorch_tabnet.tab_network", {"AttentiveTransformer": _Selects, "TabNetEncoder": _Selects}),
]


# They write files, read a trained cell, or read the files of a distribution.
ELSEWHERE = {"guides/onnx.md", "guides/predict.md", "guides/in_your_language.md", "guides/sweeps.md"}


def test_every_guide_with_code_is_run():
    pages = {f"guides/{page.name}" for page in (DOCS / "guides").glob("*.md") if "```python" in page.read_text("utf-8")}
    assert pages - set(CHECKS) == ELSEWHERE


def own(mapping: Any) -> bool:
    """Sparse distributions over what a mask keeps, and uniform ones of equal scores."""
    mask = torch.arange(6) < 4
    p = mapping(torch.cat((torch.randn(50, 6), torch.full((1, 6), 0.1))), mask=mask)
    sums = (p[:, ~mask] == 0).all() and torch.allclose(p.sum(-1), torch.ones(51))
    return bool(sums and torch.allclose(p[-1, mask], torch.tensor(0.25)) and (p[:, mask] == 0).any())


@pytest.mark.parametrize("page", CHECKS)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, monkeypatch):
    count, check = CHECKS[page]
    if page == "guides/transformers.md":
        pytest.importorskip("transformers")
        for package, module, names in FOREIGN:
            monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
            monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**names))
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": __name__}
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, page, "exec"), names)
        assert out.getvalue() == shown, code
    assert len(blocks) >= count and eval(check, {"own": own, **names})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_demonstration(script, capsys):
    runpy.run_path(str(script))  # its assertions are the test
    assert capsys.readouterr().out


def test_the_page_lists_every_script():
    page = (ERRATA / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) >= 10
    assert {s.name for s in SCRIPTS} == {*re.findall(r"(?m)^\| `([^`]+)`", page)}
