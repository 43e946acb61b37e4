"""One-line mutations of the product's own code, and which tests are asked to notice them; `tests/mutants.py` runs the sample.

A mutation changes one expression or statement that stands on one line: a comparison, an operator, a number, a truth value, a key, a
branch, an argument's place, a returned value, or it removes the statement. Docstrings, annotations, texts and what `raise` says stay.
Left out is what cannot run without a GPU or a cluster (`ELSEWHERE` and the bodies of `if ...cuda...:`).
"""

import ast
import copy
import hashlib
import math
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

PRODUCT = ("sparse_attention", "repro", "tasks", "scripts")
# GPU kernels and their wheels, Slurm, and the scripts that build an environment.
ELSEWHERE = ("sparse_attention/kernels/triton/", "repro/launch/slurm.py", "repro/launch/element.py")
ELSEWHERE += ("benchmarks/wheels.py", "scripts/setup.py", "scripts/lock.py")
SWAPS: dict[type, tuple[type, ...]] = {ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt)}
SWAPS |= {ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,)}
SWAPS |= {ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,)}
SWAPS |= {ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Add: (ast.Sub,)}
SWAPS |= {ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,)}
SWAPS |= {ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,)}
SWAPS |= {ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.And: (ast.Or,)}
SWAPS |= {ast.Or: (ast.And,)}


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
    text = ast.unparse(other)
    return f"({text})" if isinstance(other, (ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.IfExp)) else text


def _key_like(node: ast.AST, parent: ast.AST | None) -> bool:
    if isinstance(parent, ast.Subscript):
        return node is parent.slice
    if isinstance(parent, ast.Dict):
        return node in parent.keys
    return isinstance(parent, ast.Call) and node in parent.args[:1] and ast.unparse(parent.func).endswith(".get")


def _variants(node: ast.AST, parent: ast.AST | None) -> Iterator[str]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[op, *more]):
            for swapped in SWAPS[type(op)]:
                yield _changed(node, ops=[swapped(), *more])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPS:
            for swapped in SWAPS[type(op)]:
                yield _changed(node, op=swapped())
        case ast.AugAssign(op=op) if type(op) in SWAPS:
            yield _changed(node, op=SWAPS[type(op)][0]())
            yield "pass"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int() | float() as value):
            yield from (f"({new!r})" if new < 0 else repr(new) for new in (value + 1, value - 1, value * 2))
        case ast.Constant(value=str(value)) if _key_like(node, parent):
            yield repr(value + "X")
        case ast.Call(args=[first, second, *more]) if not any(isinstance(a, ast.Starred) for a in (first, second)):
            yield _changed(node, args=[second, first, *more])
            if isinstance(parent, ast.Expr):
                yield "pass"
        case ast.Call() if isinstance(parent, ast.Expr):
            yield "pass"
        case ast.IfExp(body=body, orelse=orelse):
            yield _changed(node, body=orelse, orelse=body)
        case ast.Assign() | ast.Raise():
            yield "pass"
        case ast.Return(value=ast.AST() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"
    tested = isinstance(parent, (ast.If, ast.While)) and node is parent.test
    if tested and not isinstance(node, (ast.Compare, ast.UnaryOp)):
        yield f"(not {ast.unparse(node)})" if isinstance(node, ast.BoolOp) else f"not {ast.unparse(node)}"


def _nodes(node: ast.AST, parent: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Every node that may be changed with the one above it."""
    yield node, parent
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: an assertion
            continue
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
            continue
        if name in ("annotation", "returns", "decorator_list"):
            continue
        body = isinstance(node, ast.If) and name == "body"
        if body and re.search("cuda|TYPE_CHECKING|__name__", ast.unparse(node.test)):
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
            if mutant.before == mutant.after or line.count(mutant.before) != 1:
                continue
            found[mutant.line, mutant.after] = mutant
    return sorted(found.values(), key=lambda m: m.line)


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


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

    sources, places = {}, []
    for file in sorted(f for part in PRODUCT for f in (root / part).rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if path.startswith(ELSEWHERE):
            continue
        sources[path] = source = file.read_text(encoding="utf-8")
        lines: dict[int, list[Mutant]] = defaultdict(list)
        for mutant in mutants(path, source):
            lines[mutant.line].append(mutant)
        seen: Counter[str] = Counter()
        for found in lines.values():
            seen[found[0].before] += 1  # the same words may stand on several lines
            places.append((rank(f"{path} {found[0].before} {seen[found[0].before]}"), found))
    chosen = []
    for _, found in sorted(places, key=lambda place: place[0]):
        ranked = sorted(found, key=lambda m: rank(m.key))
        fit = (m for m in ranked if parses(m.applied(sources[m.path])))
        chosen += [m for m in fit if only in f"{m.path}:{m.line} {m.before}"] if only else [*islice(fit, 1)]
        if len(chosen) >= n:
            break
    return chosen[:n]


class Nearest:
    """The test files of a tree and what each imports."""

    def __init__(self, root: Path):
        self.root = root
        asked = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
        listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        self.files = [file for file in listed if (root / file).is_file()]

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """File -> files of the tree that it imports, inside functions too, or names as `tasks.x.y` or "train.py"."""
        modules = {f.removesuffix(".py").removesuffix("/__init__").replace("/", "."): f for f in self.files}
        found: dict[str, set[str]] = {}
        for file in self.files:
            package, names = file.removesuffix(".py").split("/")[:-1], set()
            for node in ast.walk(ast.parse((self.root / file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    base = package[: len(package) - node.level + 1] if node.level else []
                    base = ".".join([*base, *(node.module or "").split(".")]).strip(".")
                    names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names |= {node.value.partition(":")[0], "scripts." + node.value.removesuffix(".py")}
                    names.add(".".join(package) + node.value if node.value.startswith(".") else "")
                elif isinstance(node, ast.JoinedStr) and (first := re.match(r"f'((\w+\.)+)\{", ast.unparse(node))):
                    names |= {name for name in modules if name.startswith(first[1])}  # one of a folder's, by name
            found[file] = {modules[name] for name in names if name in modules and modules[name] != file}
        return found

    def of(self, path: str) -> list[str]:
        """Test files that import a file: those that import it themselves, those that speak of the same things."""
        stem, folders = Path(path).stem.strip("_"), Path(path).parts[:-1]
        stem = folders[-1] if stem == "init" else stem
        distance, ring = {path: 0}, {path}
        for step in range(1, 6):
            ring = {f for f, found in self.imports.items() if f not in distance and found & ring}
            distance |= dict.fromkeys(ring, step)
        alike = {stem.rstrip("s"), folders[-1].rstrip("s")}  # what a registry imports, no file does
        named = [f for f in self.files if alike & {*Path(f).stem.split("_")} or stem in f]
        beside = [f for f in self.files if len(distance) == 1 and f.startswith(f"tests/{Path(path).parent}/")]
        for file in (*named, *beside):
            distance.setdefault(file, 6)
        tests = [f for f in distance if re.search(r"(^|/)test_[^/]*\.py$", f) and not f.startswith("tests/slurm")]

        own = self.words[path]

        def rank(test: str) -> tuple:
            words = self.words[test]
            shared = sum(self.rarity[w] for w in own & words) / len(words) ** 0.5
            everything = test.count("/") == 1  # tests of the whole project are long
            return everything, distance[test] > 1, -shared * (1 + (stem.rstrip("s") in Path(test).stem))

        return sorted(tests, key=rank)

    @cached_property
    def words(self) -> dict[str, set[str]]:
        """File -> the words in it."""
        return {f: set(re.findall(r"[A-Za-z]{3,}", (self.root / f).read_text(encoding="utf-8"))) for f in self.files}

    @cached_property
    def rarity(self) -> dict[str, float]:
        """Word -> how much it tells about what a file is of: the logarithm of the number of files over those that have it."""
        counts = Counter(word for words in self.words.values() for word in words)
        return {word: math.log(len(self.words) / n) for word, n in counts.items()}
