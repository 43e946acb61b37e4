"""Generate from the registry: a gallery of the mappings, their pages, type stubs, the list in the package's docstring.

`make pages` writes the gallery, the stubs and the list, which are committed. The pages are made when the site is built
(docs/hooks.py): the docstrings of a mapping and its module, a picture, its source, parameters, an example call, the
experiments that use it (configs/experiment) and its measured cost (docs/reference/benchmarks.md).
"""

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import sparse_attention as sa
from repro.files import templates
from sparse_attention.describe import Param, Spec
from tasks.draw.mappings import drawable, picture, sheet

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"unnormalised": "unnormalised", "structured": "structures", "continuous": "densities"}


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


def gallery(specs: list[Spec]) -> str:
    """The page with one table for each kind."""
    timed = [s.name for s in specs if costs(s.name)]
    return _made("mappings.md.jinja", specs=specs, markdown=markdown, costs=costs, measured=timed)


def _made(name: str, **told: Any) -> str:
    return templates(Path(__file__).parent).get_template(name).render(told, default=_default)


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
    files = sorted((ROOT / "configs" / "experiment").glob("*.yaml"))
    row = re.compile(rf"\b(?:mapping|name)[:=] ?{s.name}\b")  # of an experiment, or a column
    used = [file.stem for file in files if row.search(file.read_text(encoding="utf-8"))]
    told = {"told": markdown(thing.__doc__ or s.summary), "drawn": drawable(s), "code": code, "used": used}
    told |= {"module": markdown(sys.modules[thing.__module__].__doc__ or ""), "costs": costs(s.name)}
    return _made("mapping_page.md.jinja", **told, s=s)


def _given(s: Spec) -> list[str]:
    """The mapping's parameters with their types, as in a signature."""
    kinds = ("str" if p.choices else ("int" if p.whole else "float") + " | Tensor" * p.tensor for p in s.params)
    optional = (" | None" * (p.required or p.optional) for p in s.params)
    return [f"{p.name}: {kind}{none} = {_default(p)}" for p, kind, none in zip(s.params, kinds, optional)]


def _defined(name: str, thing: object) -> str:
    """The name of the module that defines a public name; an empty string if the registry created the object."""
    where = thing.__name__.rpartition(".")[0] if inspect.ismodule(thing) else getattr(thing, "__module__", "")
    return where if where and getattr(sys.modules[where], name, None) is thing else ""


def _listed(source: str, specs: list[Spec]) -> str:
    """The source of the package's __init__.py, with the list of mappings in its docstring renewed."""
    kinds: dict[str, list[str]] = {"rows": [], "unnormalised": [], "structures": [], "densities": []}
    for s in specs:
        if s.function is not None or s.kind == "continuous":
            kinds[GROUPS.get(s.kind, "rows")].append(s.name)
    modules = " ".join(s.module.__name__ for s in specs) + "; each is a Mapping"
    text = {kind: " ".join(names) for kind, names in kinds.items()} | {"modules": modules}
    lines = [textwrap.fill(f"    {k:<13}{v}", 119, subsequent_indent=" " * 17) for k, v in text.items()]
    before, rest = source.split("\n    rows  ", 1)
    return before + "\n" + "\n".join(lines) + "\n    registry  " + rest.split("\n    registry  ", 1)[1]


def pages() -> dict[str, str]:
    """Path in the repository -> text of each committed file."""
    specs = [sa.spec(name) for name in sa.names()]
    public = sorted((where, name) for name in dir(sa) if (where := _defined(name, getattr(sa, name))))
    package = Path(sa.__file__).read_text(encoding="utf-8")
    stubs = _made("stubs.pyi.jinja", public=public, specs=specs, given=_given, defined=_defined)
    return {
        "sparse_attention/__init__.py": _listed(package, specs),
        "docs/reference/mappings/README.md": gallery(specs),
        "docs/reference/mappings/weights.svg": sheet(list(filter(drawable, specs))),
        "sparse_attention/__init__.pyi": stubs,
    }


def site() -> dict[str, str]:
    """Path in docs -> text of each page and picture that exists only on the site."""
    specs = [sa.spec(name) for name in sa.names()]
    made = {f"{s.name}.md": page(s) for s in specs}
    made |= {f"figures/{s.name}.svg": picture(s) for s in specs if drawable(s)}
    return {f"reference/mappings/{name}": text for name, text in made.items()}


if __name__ == "__main__":
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    print("written:", ", ".join(pages()) + "; `git diff` shows what changed")
