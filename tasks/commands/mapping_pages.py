"""Generate documentation from the registry: mapping pages, an index, type stubs, the list in the package's docstring.

`scripts/pages.py` writes the files. The page of a mapping has its docstring, the docstring of its module, its source,
its parameters and an example call.
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

INDEX = """# Mappings

| name | kind | over | what it does |
|---|---|---|---|
{}

A mapping of your own, stateful or not: [own](own.md). More on densities: [continuous](../../guides/continuous.md); on structures and
factors of your own: [structured](../../guides/structured.md). Laha's table of properties: `make properties-table`. `make pages` writes
the pages of this folder but own.md.
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
    if s.params:
        rows = ["| parameter | default | range | tensor | meaning |", "|---|---|---|---|---|"]
        for p in s.params:
            default = "required" if p.required else f"`{_default(p)}`"
            rows.append(f"| `{p.name}` | {default} | {p.range} | {'yes' if p.tensor else 'no'} | {p.meaning} |")
        parts.append("\n".join(rows))
    return "\n\n".join([*filter(None, parts), "```python\n" + "\n".join(code) + "\n```\n"])


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


def _signature(name: str, given: list[str], result: str, indent: str) -> str:
    line = f"{indent}def {name}({', '.join(given)}) -> {result}: ...\n"
    if len(line) <= 121:
        return line
    return "".join([f"{indent}def {name}(\n", *(f"{indent}    {g},\n" for g in given), f"{indent}) -> {result}: ...\n"])


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
    """Path in the repository -> text of the file."""
    specs = [sa.spec(name) for name in sa.names()]
    rows = "\n".join(f"| [{s.name}]({s.name}.md) | {s.kind} | {s.over} | {markdown(s.summary)} |" for s in specs)
    public = sorted((where, name) for name in dir(sa) if (where := _defined(name, getattr(sa, name))))
    imports = [f"from {w.removeprefix('sparse_attention') or '.'} import {name} as {name}" for w, name in public]
    package = Path(sa.__file__).read_text(encoding="utf-8")
    return {
        "sparse_attention/__init__.py": _listed(package, specs),
        **{f"docs/reference/mappings/{s.name}.md": page(s) for s in specs},
        "docs/reference/mappings/README.md": INDEX.format(rows),
        "sparse_attention/__init__.pyi": STUBS.format("\n".join(imports)) + "".join(map(_stub, specs)),
    }
