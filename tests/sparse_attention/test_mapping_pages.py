"""Pages and type stubs are what the registry says; they name files that exist; the page on own mappings runs."""

import ast
import inspect
import re
import sys
from pathlib import Path

import entmax
import pytest
import torch
from attention_oracles import bisected, distances, formula, named, visible

import sparse_attention as sa
from tasks.commands import mapping_pages
from tasks.draw import mappings

ROOT = Path(__file__).resolve().parents[2]
MAPPINGS = ROOT / "docs" / "reference" / "mappings"
GALLERY = (MAPPINGS / "README.md").read_text(encoding="utf-8")
SITE = mapping_pages.site()
BENCHMARKS = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")


def test_committed_files_are_what_make_pages_writes():
    written = mapping_pages.pages()
    stale = [name for name, text in written.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run `make pages`"
    assert {path.name for path in MAPPINGS.iterdir()} == {"README.md", "weights.svg", "own.md"}


@pytest.mark.parametrize("name", sa.names())
def test_page(name):
    page, known = SITE[f"reference/mappings/{name}.md"], sa.spec(name)
    assert known.paper in page and known.oracle in page
    for p in known.params:
        assert f"| `{p.name}` |" in page and p.range in page and p.meaning in page
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    ast.parse(code)
    (row,) = re.findall(rf'^\| <a id="{name}"></a>\[{name}\]\(#{name}\) (.*)$', GALLERY, re.M)
    assert known.paper in row and all(f"`{p.name}" in row for p in known.params)
    # Where forward and backward live.
    text = inspect.getdoc(sys.modules[(known.function or known.module.inner_class).__module__])
    line = re.search(r"Forward and backward: (.*?)(?:\n\n|$)", text, re.S)
    assert line, "the file's docstring has no line `Forward and backward: ...`"
    files = re.findall(r"``([\w/]+\.(?:py|h))``", line.group(1))
    assert all((ROOT / "sparse_attention" / f).is_file() for f in files)
    named = re.findall(r"\(``(\w+)(?:``|\*)", line.group(1))
    assert all(any(n in (ROOT / "sparse_attention" / f).read_text() for f in files) for n in named)


def test_the_stubs_know_what_the_package_has():
    tree = ast.parse((ROOT / "sparse_attention" / "__init__.pyi").read_text(encoding="utf-8"))
    named = {n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    named |= {alias.asname for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names if alias.asname}
    assert named | {"__version__"} == set(dir(sa))


def test_pages_of_own_mappings_could_be_written():
    code = "\n".join(re.findall(r"```python\n(.*?)```", (MAPPINGS / "own.md").read_text(encoding="utf-8"), re.S))
    exec(compile(code, "own.md", "exec"), {"__name__": __name__})
    assert "p, state = m.step(scores, state, mask)" in mapping_pages.site()["reference/mappings/coverage_softmax.md"]
    stubs = mapping_pages.pages()["sparse_attention/__init__.pyi"]
    assert "class Powermax(Mapping):" in stubs and "def powermax(scores: Tensor, dim: int = -1, mask:" in stubs


def test_the_guides_scales_for_long_sequences_are_their_formulas():
    text = (ROOT / "docs" / "guides" / "attention.md").read_text(encoding="utf-8").split("## Longer sequences")[1]
    (code,) = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.S)
    made: dict = {}
    exec(compile(code, "attention.md", "exec"), made)
    x, at, head = made["x"], torch.arange(made["n"]), torch.arange(4).view(4, 1, 1)
    beta, gamma = (made[name](x).mT.unsqueeze(-1) for name in ("to_beta", "to_gamma"))  # [B, H, n, 1]
    logs = torch.log(at + 2.0).unsqueeze(-1)
    added = torch.where(head < 2, distances(len(at), len(at)) / (head + 1.0), 0.0)
    for name, mapped, factor in (
        ("asentmax", bisected(1.5), 1 + torch.nn.functional.softplus(beta) * logs ** (2 * gamma.tanh())),
        ("ssmax", named("softmax"), logs),
    ):
        scale = torch.where(head < 2, 1.0, factor) * made["d"] ** -0.5
        want, _ = formula(mapped, *(made[name] for name in "qkv"), visible(len(at), len(at), causal=True), scale, added)
        torch.testing.assert_close(made[name].double(), want, atol=1e-5, rtol=1e-5)
    made["asentmax"].sum().backward()
    assert made["to_beta"].weight.grad.abs().sum() > 0 and made["to_gamma"].weight.grad.abs().sum() > 0


def test_pictures_show_the_weights_of_other_packages():
    """The right panel of three pictures: heights of the bars against scipy and the entmax package, rings where 0."""
    x = torch.tensor(mappings.TEN, dtype=torch.float64)
    others = {"softmax": torch.softmax(x, -1), "sparsemax": entmax.sparsemax(x), "entmax": entmax.entmax15(x)}
    for name, expected in others.items():
        drawn = SITE[f"reference/mappings/figures/{name}.svg"]
        bars = [float(one) for one in re.findall(r'<rect .*height="([\d.]+)"', drawn)]
        tall = (mappings.HEIGHT * expected / expected.max())[expected > 0].tolist()
        assert bars == pytest.approx(tall, abs=0.06) and drawn.count("<circle") == int((expected == 0).sum())
    curve, _ = mappings.weights(sa.spec("sparsemax"))
    t = torch.linspace(-3, 3, len(curve), dtype=torch.float64)
    assert curve == pytest.approx(((t + 1) / 2).clamp(0, 1).tolist())


def test_the_gallery_has_the_papers_use_and_the_measured_cost():
    page = SITE["reference/mappings/oscarmax.md"]
    assert "`niculae2017_table2`" in page and "`peters2018_snli`" not in page
    row = re.search(r"^\| \*\*oscarmax \.01\*\* \|.*$", BENCHMARKS.partition("## Forward and backward")[2], re.M)[0]
    at_128 = row.split("|")[4].strip(" *")
    assert f"{at_128} (32768x128)" in page and f"{at_128} (.01)" in GALLERY
