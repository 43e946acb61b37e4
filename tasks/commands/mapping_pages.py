"""Generate from the registry: a gallery of the mappings, their pages, type stubs, the list in the package's docstring.

`make pages` writes the gallery, the stubs and the list, which are committed. The pages are made when the site is built
(docs/hooks.py): the docstrings of a mapping and its module, a picture, its source, parameters, an example call, the
experiments that use it (configs/experiment) and its measured cost (docs/reference/benchmarks.md). The gallery's table
of which mapping to use is README's.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import sparse_attention as sa
from sparse_attention.describe import Param, Spec
from tasks.draw.mappings import drawable, picture, sheet

ROOT = Path(__file__).resolve().parents[2]
CHOICE = "## Which mapping should I use?\n"
KIND = {
    "simplex": "Rows that sum to 1",
    "unnormalised": "Rows that need not sum to 1",
    "constrained": "Rows with bounds",
    "stateful": "Rows with a state between decoder steps",
    "structured": "Structures",
    "continuous": "Densities",
}
INDEX = """# Mappings

{}

![Weights of the same ten scores by each mapping](weights.svg)

Each panel shows the weights of the same ten scores (less their minimum, for mappings of non-negative scores); a ring is an exact 0, and the number is the largest
weight. Cost: the time of forward and backward as a multiple of `torch.softmax`'s at 32,768 rows of 128 ([more sizes](../benchmarks.md)). `help(sa.fusedmax)` prints the
formula of a mapping. On the documentation site (`make docs`) each name leads to a page with formula, ranges, an example call and the experiments that use it.

{}

A mapping of your own, stateful or not: [own](own.md). More on densities: [continuous](../../guides/continuous.md); on structures and
factors of your own: [structured](../../guides/structured.md). Laha's table of properties: `make properties-table`. `make pages` writes this page.
"""
STUBS = '''"""Types of the package, written by `make pages`: checkers do not see what the registry makes."""

from torch import Tensor

{}

__version__: str
'''


GROUPS = {"unnormalised": "no sum 1", "structured": "structures", "continuous": "densities"}


def markdown(text: str) -> str:
    """A docstring as Markdown, without its sections on arguments, return values and errors."""
    return roles(re.split(r"\n+(?:Args|Returns|Raises):", inspect.cleandoc(text))[0])


def roles(text: str) -> str:
    """The Sphinx roles of a docstring as Markdown: formulas between dollar signs, names and code between backquotes."""
    text = re.sub(r"^( *)\.\. math:: (.*?)(?=\n\n|\Z)", r"\1$$\n\1\2\n\1$$", text, flags=re.M | re.S)
    text = re.sub(r":math:`(.*?)`", r"$\1$", text, flags=re.S)
    return re.sub(r"``(.*?)``", r"`\1`", re.sub(r":(?:func|class):`(.*?)`", r"`\1`", text), flags=re.S)


def costs(name: str) -> dict[str, dict[str, str]]:
    """Label -> shape -> time of forward and backward, and that of torch.softmax, as docs/reference/benchmarks.md has it."""
    text = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Forward and backward\n")
    lines = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in section.partition("\n## ")[0].split("\n") if line[:1] == "|"]  # fmt: skip
    if not lines:
        return {}
    head, _, *rows = lines
    return {row[0]: dict(zip(head[1:-1], row[1:-1])) for row in rows if row[0].split(" ")[0] == name}


def choice() -> str:
    """README's table of which mapping to use, with links from this folder."""
    _, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(CHOICE)
    return CHOICE + rest.partition("\n## ")[0].rstrip().replace("](docs/", "](../../")


def gallery(specs: list[Spec]) -> str:
    """One table for each kind. A name links to its own row; docs/hooks.py turns such links into links to its page."""
    found = []
    for kind, title in KIND.items():
        some = [s for s in specs if s.kind == kind]
        timed = any(costs(s.name) for s in some)
        head = ["mapping", "what it does", "parameters", "paper", *["cost"] * timed]
        lines = [f"## {title}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for s in some:
            params = ", ".join(f"`{p.name}`" if p.required else f"`{p.name}={_default(p)}`" for p in s.params)
            row = [f'<a id="{s.name}"></a>[{s.name}](#{s.name})', markdown(s.summary), params, s.paper]
            told = {label.removeprefix(s.name).strip(): of["32768x128"] for label, of in costs(s.name).items()}
            row += ["; ".join(f"{time} ({label})" if label else time for label, time in told.items())] * timed
            lines.append(f"| {' | '.join(row)} |")
        found.append("\n".join(lines))
    return "\n\n".join(found)


def _default(p: Param) -> str:
    return repr(p.default).replace("'", '"')


def page(s: Spec) -> str:
    thing: Any = s.function or vars(s.module)["inner_class"]
    inputs = [f"{name}={name}" for name in s.inputs]
    fixed = [f"{p.name}={_default(p)}" for p in s.params if not p.required]
    needed = [a.name for a in inspect.signature(thing).parameters.values() if a.default is a.empty]
    made = ", ".join([f'"{s.name}"', *fixed])
    code = [f"m = sa.make({made})  # or sa.{s.module.__name__}"]
    if s.stateful:
        code += [f"state = m.start({', '.join(['mask', *inputs])})", "p, state = m.step(scores, state, mask)"]
    else:
        code.append(f"p = m({', '.join(['scores', 'mask=mask', *inputs] if s.over == 'row' else needed)})")
    if s.function is not None:
        row = ["dim=-1", *fixed, "mask=mask"] if s.over == "row" else fixed
        code.insert(0, f"p = sa.{s.name}({', '.join([*needed, *row])})")
    parts = [f"# {s.name}", markdown(thing.__doc__ or s.summary), markdown(sys.modules[thing.__module__].__doc__ or "")]
    scores = "" if s.domain == "real" else f", of {s.domain} scores"
    parts.append(f"Kind: {s.kind}, over a {s.over}{scores}. Source: {s.paper}. Tested against: {s.oracle}.")
    if drawable(s):
        parts.insert(2, f"![The first weight of two scores, and the weights of ten](figures/{s.name}.svg)")
    if s.params:
        rows = ["| parameter | default | range | tensor | meaning |", "|---|---|---|---|---|"]
        for p in s.params:
            default = "required" if p.required else f"`{_default(p)}`"
            rows.append(f"| `{p.name}` | {default} | {p.range} | {'yes' if p.tensor else 'no'} | {p.meaning} |")
        parts.append("\n".join(rows))
    parts.append("```python\n" + "\n".join(code) + "\n```")
    files = sorted((ROOT / "configs" / "experiment").glob("*.yaml"))
    row = re.compile(rf"\b(?:mapping|name)[:=] ?{s.name}\b")  # of an experiment, or a column
    if used := [file.stem for file in files if row.search(file.read_text(encoding="utf-8"))]:
        parts.append(f"Used in the experiments {', '.join(f'`{one}`' for one in used)}.")
    for label, of in costs(s.name).items():
        times = ", ".join(f"{value} ({shape})" for shape, value in of.items())
        parts.append(f"Time of forward and backward as a multiple of `torch.softmax`'s, {label}: {times} ([benchmarks](../benchmarks.md)).")  # fmt: skip
    return "\n\n".join(filter(None, parts)) + "\n"


def _stub(s: Spec) -> str:
    """Type stub of the module's class, and of the function if the registry created it."""
    given = []
    for p in s.params:
        kind = "str" if p.choices else ("int" if p.whole else "float") + " | Tensor" * p.tensor
        given.append(f"{p.name}: {kind}{' | None' * (p.required or p.optional)} = {_default(p)}")
    along = ["*", "dim: int = -1"] if s.over == "row" else []
    text = f"\nclass {s.module.__name__}(Mapping):\n" + _signature("__init__", ["self", *given, *along], "None", "    ")
    if s.function is None or _defined(s.name, s.function):
        return text
    row = ["scores: Tensor", "dim: int = -1", "mask: Tensor | None = None", *given]
    return text + "\n" + _signature(s.name, row, "Tensor", "")


def _signature(name: str, parameters: list[str], result: str, indent: str) -> str:
    line = f"{indent}def {name}({', '.join(parameters)}) -> {result}: ...\n"
    if len(line) <= 121:
        return line
    inside = "".join(f"{indent}    {parameter},\n" for parameter in parameters)
    return f"{indent}def {name}(\n{inside}{indent}) -> {result}: ...\n"


def _defined(name: str, thing: object) -> str:
    """The name of the module that defines a public name; an empty string if the registry created the object."""
    where = thing.__name__.rpartition(".")[0] if inspect.ismodule(thing) else getattr(thing, "__module__", "")
    return where if where and getattr(sys.modules[where], name, None) is thing else ""


def _listed(source: str, specs: list[Spec]) -> str:
    """The source of the package's __init__.py, with the list of mappings in its docstring renewed."""
    kinds: dict[str, list[str]] = {"rows": [], "no sum 1": [], "structures": [], "densities": []}
    for s in specs:
        if s.function is not None or s.kind == "continuous":
            kinds[GROUPS.get(s.kind, "rows")].append(s.name)
    modules = [*(s.module.__name__ for s in specs), "all are a Mapping"]
    text = {kind: " ".join(names) for kind, names in kinds.items()} | {
        "modules": " ".join(modules[:-1]) + "; " + modules[-1]
    }
    lines = [textwrap.fill(f"    {k:<13}{v}", 119, subsequent_indent=" " * 17) for k, v in text.items()]
    before, rest = source.split("\n    rows  ", 1)
    return before + "\n" + "\n".join(lines) + "\n    registry  " + rest.split("\n    registry  ", 1)[1]


def pages() -> dict[str, str]:
    """Path in the repository -> text of each committed file."""
    specs = [sa.spec(name) for name in sa.names()]
    public = sorted((where, name) for name in dir(sa) if (where := _defined(name, getattr(sa, name))))
    imports = [f"from {w.removeprefix('sparse_attention') or '.'} import {name} as {name}" for w, name in public]
    package = Path(sa.__file__).read_text(encoding="utf-8")
    return {
        "sparse_attention/__init__.py": _listed(package, specs),
        "docs/reference/mappings/README.md": INDEX.format(choice(), gallery(specs)),
        "docs/reference/mappings/weights.svg": sheet(list(filter(drawable, specs))),
        "sparse_attention/__init__.pyi": STUBS.format("\n".join(imports)) + "".join(map(_stub, specs)),
    }


def site() -> dict[str, str]:
    """Path in docs -> text of each page and picture that exists only on the site."""
    specs = [sa.spec(name) for name in sa.names()]
    made = {f"{s.name}.md": page(s) for s in specs}
    made |= {f"figures/{s.name}.svg": picture(s) for s in specs if drawable(s)}
    return {f"reference/mappings/{name}": text for name, text in made.items()}
