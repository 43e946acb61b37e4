"""One-line mutations of the product's own code, and which tests are asked to notice them; `tests/mutants.py` runs the sample.

A mutation changes one expression or statement that stands on one line: a comparison, an operator, a number, a truth value, a key, a
branch, an argument's place, a returned value, or it removes the statement. Docstrings, annotations, texts and what `raise` says stay.
Left out is what cannot run without a GPU or a cluster (`ELSEWHERE` and the bodies of `if ...cuda...:`).
"""

import ast
import copy
import functools
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

PRODUCT = ("sparse_attention", "repro", "tasks", "scripts")
# GPU kernels, Slurm, and the scripts that build an environment.
ELSEWHERE = ("sparse_attention/kernels/triton/", "repro/launch/slurm.py")
ELSEWHERE += ("scripts/setup.py",)
UNREACHED = "cuda|TYPE_CHECKING|__name__"  # what stands below an `if` of these
_SWAPS = """Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In, Add Sub,
    Sub Add, Mult Div, Div Mult, FloorDiv Mult, Mod Mult, Pow Mult, BitAnd BitOr, BitOr BitAnd, And Or, Or And"""
# operator -> what takes its place
SWAPS = {one: others for one, *others in ([getattr(ast, n) for n in part.split()] for part in _SWAPS.split(","))}


@dataclass(frozen=True)
class Mutant:
    """`before` -> `after`: line `line` of `path`, without its indentation."""

    path: str
    line: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """The same wherever in the file the line stands."""
        return f"{self.path} | {self.before} | {self.after}"

    def applied(self, source: str) -> str:
        lines = source.split("\n")
        assert lines[self.line - 1].strip() == self.before, f"{self.path}:{self.line} has changed"
        lines[self.line - 1] = lines[self.line - 1].replace(self.before, self.after)
        return "\n".join(lines)


def _changed(node: ast.AST, **fields: object) -> str:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return f"({ast.unparse(other)})" if isinstance(other, ast.expr) else ast.unparse(other)


def _variants(node: ast.AST, parent: ast.AST) -> Iterator[str]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[op, *more]):
            yield from (_changed(node, ops=[swapped(), *more]) for swapped in SWAPS[type(op)])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield from (_changed(node, op=swapped()) for swapped in SWAPS[type(op)])
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int() | float() as value):
            yield from map(repr, (value + 1, value - 1, value * 2))
        case ast.Constant(value=str(value)) if isinstance(parent, ast.Subscript) and node is parent.slice:
            yield repr(value + "X")
        case ast.Call(args=[first, second, *more]) if not any(isinstance(a, ast.Starred) for a in (first, second)):
            yield _changed(node, args=[second, first, *more])
        case ast.IfExp(body=body, orelse=orelse):
            yield _changed(node, body=orelse, orelse=body)
        case ast.Assign() | ast.AugAssign() | ast.Raise() | ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Return(value=ast.AST() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"
    tested = isinstance(parent, (ast.If, ast.While)) and node is parent.test
    if tested and not isinstance(node, (ast.Compare, ast.UnaryOp)):
        yield f"not ({ast.unparse(node)})"


def _nodes(node: ast.AST, parent: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Every node that may be changed with the one above it."""
    yield node, parent
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        if name == "body" and isinstance(node, ast.If) and re.search(UNREACHED, ast.unparse(node.test)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, node)


def mutants(path: str, source: str) -> list[Mutant]:
    """Every mutation of a file, in the order of its lines."""
    lines, found = source.split("\n"), {}
    for node, parent in _nodes(ast.parse(source)):
        if getattr(node, "lineno", None) is None or node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        head, tail = line.encode()[: node.col_offset].decode(), line.encode()[node.end_col_offset :].decode()
        for text in _variants(node, parent):
            mutant = Mutant(path, node.lineno, line.strip(), f"{head}{text}{tail}".strip())
            if mutant.before != mutant.after and line.count(mutant.before) == 1:
                found[mutant.line, mutant.after] = mutant
    return sorted(found.values(), key=lambda m: m.line)


def parses(text: str) -> bool:
    try:
        return bool(ast.parse(text))
    except SyntaxError:
        return False


def equivalent(root: Path) -> dict[str, str]:
    """Mutants that nothing can tell from the original -> why; each line of the file: path | line | mutated line | reason."""
    lines = (root / "tests" / "equivalent_mutants.txt").read_text(encoding="utf-8").splitlines()
    return {key: why for key, _, why in (line.rpartition(" | ") for line in lines if line and not line.startswith("#"))}


def sample(root: Path, n: int, seed: int, only: str = "") -> list[Mutant]:
    """`n` lines of the product in a random order that an edit elsewhere leaves as it is, and one mutation of each.

    only: leaves mutants whose `path:line` or text contains it, every mutation of each line.
    """

    def rank(text: str) -> str:
        return hashlib.sha256(f"{seed} {text}".encode()).hexdigest()

    sources, lines = {}, defaultdict(list)
    for file in (f for part in PRODUCT for f in (root / part).rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if not path.startswith(ELSEWHERE):
            sources[path] = file.read_text(encoding="utf-8")
            for mutant in mutants(path, sources[path]):
                if only in f"{path}:{mutant.line} {mutant.before}":
                    lines[f"{path} {mutant.before}"].append(mutant)
    chosen = []
    for place in sorted(lines, key=rank):
        ranked = sorted(lines[place], key=lambda m: rank(m.key))
        chosen += islice((m for m in ranked if parses(m.applied(sources[m.path]))), None if only else 1)
        if len(chosen) >= n:
            break
    return chosen[:n]


@functools.cache
def _words(root: Path) -> tuple[dict[str, set[str]], Counter[str]]:
    """Code file -> the words in it; word -> the number of files that have it."""
    files = [f for part in ("tests", *PRODUCT) for f in (root / part).rglob("*.py")]
    words = {f.relative_to(root).as_posix(): {*re.findall(r"[A-Za-z_]{3,}", f.read_text("utf-8"))} for f in files}
    return words, Counter(word for found in words.values() for word in found)


def nearest(root: Path, path: str) -> list[str]:
    """Test files in the order in which they share words with a file: those named like it first, those of the whole project last."""
    words, counts = _words(root)
    stem = Path(path.removesuffix("/__init__.py")).stem.strip("_").rstrip("s")

    def rank(test: str) -> tuple[bool, float]:
        shared = sum(math.log(len(words) / counts[w]) for w in words[path] & words[test])
        return test.count("/") == 1, -shared * (1 + (stem in Path(test).stem)) / len(words[test]) ** 0.5

    return sorted((f for f in words if re.search("(^|/)test_[^/]*$", f) and "/slurm/" not in f), key=rank)
