"""Copy functions and classes, with everything of this repository that they use, so that they run without it.

Only statements that the wanted names reach are copied. Type annotations do not count, because they are not evaluated
(every file imports `annotations`), so a model is copied without its options and the code that reads configurations.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OURS = ("tasks", "repro")  # sparse_attention is installed
PACKAGE = "model"  # tasks.seq2seq.search is copied as model.seq2seq.search
HEAD = '"""The parts of the project that predict.py runs; the docstring of a file describes all of its original."""\n'
_IMPORT = re.compile(rf"^(\s*(?:from|import) )(?:{'|'.join(OURS)})\.", re.MULTILINE)


def copied(program: str, wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The sources of predict.py and of what it needs: path, relative to the new folder -> source.

    Args:
        program: the module that becomes predict.py.
        wanted: what it uses besides its imports: module -> names of functions and classes at its top.

    Raises:
        ValueError: a name that is needed is not defined at the top of its module.
    """
    reached: dict[str, set[str]] = {}
    every = {program: list(_module(program).binds), **wanted}
    todo = [(module, name) for module, names in every.items() for name in names]
    while todo:
        module, name = todo.pop()
        if name not in reached.setdefault(module, set()):
            reached[module].add(name)
            todo += _module(module).uses(name)
    del reached[program]
    files = {_file(module, PACKAGE): _module(module).part(names) for module, names in reached.items()}
    files |= {"predict.py": _module(program).text, f"{PACKAGE}/__init__.py": HEAD}
    return {path: _IMPORT.sub(rf"\g<1>{PACKAGE}.", source) for path, source in files.items()}


def _file(module: str, package: str) -> str:
    """The path of a module, in a topmost folder named `package`."""
    path = package + module[module.index(".") :].replace(".", "/")
    return f"{path}/__init__.py" if (ROOT / module.replace(".", "/")).is_dir() else f"{path}.py"


@cache
def _module(name: str) -> _Module:
    return _Module(name)


class _Module:
    """The statements of a module, and for each name at its top the statement that binds it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (ROOT / _file(name, name.partition(".")[0])).read_text(encoding="utf-8")
        self.statements = ast.parse(self.text).body
        self.binds = {bound: statement for statement in self.statements for bound in _bound(statement)}
        self.imports = {  # from our own modules: name here -> (module, name there)
            _name(alias): (statement.module, alias.name)
            for statement in self.statements if _is_ours(statement) for alias in statement.names
        }  # fmt: skip

    def uses(self, name: str) -> Iterator[tuple[str, str]]:
        """The (module, name) of what the statement that binds `name` needs."""
        if name not in self.binds:
            raise ValueError(f"{self.name} defines no {name!r} at its top, so it cannot be copied")
        if name in self.imports:
            if not self._submodule(name):
                yield self.imports[name]
            return
        nodes = list(ast.walk(self.binds[name]))
        hints = {hint for node in nodes for field in ("annotation", "returns") if (hint := getattr(node, field, None))}
        unevaluated = {node for hint in hints for node in ast.walk(hint)}
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in self.binds:
                ours = node.id in self.imports or isinstance(self.binds[node.id], ast.FunctionDef | ast.ClassDef)
                if not ours or node not in unevaluated:
                    yield self.name, node.id
            elif isinstance(node, ast.Attribute) and (module := self._submodule(ast.unparse(node.value))):
                yield module, node.attr
            elif _is_ours(node):
                yield from ((node.module, alias.name) for alias in node.names)

    def _submodule(self, name: str) -> str:
        """The module that `from package import module` binds to `name`, or ""."""
        module = ".".join(self.imports.get(name, ()))
        return module if module and (ROOT / f"{module.replace('.', '/')}.py").is_file() else ""

    def part(self, names: set[str]) -> str:
        """The source of the statements that bind `names`, in order, after the module's docstring."""
        lines, found = self.text.splitlines(), []
        for statement in self.statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                some = copy.copy(statement)
                some.names = [a for a in statement.names if _name(a) in names or a.name == "annotations"]
                found += [ast.unparse(some)] if some.names else []
            elif statement is self.statements[0] or names.intersection(_bound(statement)):
                first = min(part.lineno for part in (statement, *getattr(statement, "decorator_list", ())))
                space = "\n\n" if isinstance(statement, ast.FunctionDef | ast.ClassDef) else ""
                found.append(space + "\n".join(lines[first - 1 : statement.end_lineno]))
        return "\n".join(found) + "\n"


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module binds."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [_name(alias) for alias in statement.names]
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return [node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)]


def _name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _is_ours(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS
