"""Mutation testing: change one line of the code at a time and check that a test fails.

    python tests/mutants.py [--seed 1] [--n 200] [--workers 1] [--only TEXT]

`--only` leaves mutants whose `file:line` or text contains TEXT, as in `python tests/mutants.py --only rouge.py`.

A mutation changes one expression or statement that stands on one line: a comparison, an operator, a number, a truth value, a key, a
branch, an argument's place, a returned value, or it removes the statement. Annotations, texts and what `raise` says stay. A mutant is
tested with the twelve nearest test files for a minute of processor time, in a clone of the repository with the changes that git knows. It is
killed if a test hangs, or fails although it passes without the mutant. Survivors need a new test; a mutant that is equivalent to the
original goes into tests/equivalent_mutants.txt with the reason and is not counted. Exit status 1 if fewer than 85 % are killed.
"""

import ast
import contextlib
import copy
import functools
import hashlib
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tasks.commands.entry import command  # noqa: E402

PRODUCT = ("sparse_attention", "repro", "tasks", "scripts")
# What cannot run without a GPU or a cluster, the script that builds an environment, and what stands below an `if` of some words.
ELSEWHERE = ("sparse_attention/kernels/triton/", "repro/launch/slurm.py", "scripts/setup.py")
UNREACHED = "cuda|TYPE_CHECKING|__name__"
FILES = 12  # test files asked of a mutant
SECONDS = 60  # of processor time for all of them
STUCK = 25  # seconds after which a test hangs
GOAL = 0.85  # of the mutants, killed
_SWAPS = """Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In, Add Sub,
    Sub Add, Mult Div, Div Mult, FloorDiv Mult, Mod Mult, Pow Mult, BitAnd BitOr, BitOr BitAnd, And Or, Or And"""
# operator -> what takes its place
SWAPS = {one: others for one, *others in ([getattr(ast, n) for n in part.split()] for part in _SWAPS.split(","))}


class Mutant(NamedTuple):
    """`before` -> `after`: line `line` of `path`, without its indentation."""

    path: str
    line: int
    before: str
    after: str

    def applied(self, source: str) -> str:
        lines = source.split("\n")
        lines[self.line - 1] = lines[self.line - 1].replace(self.before, self.after)
        return "\n".join(lines)


def _changed(node: ast.AST, **fields: object) -> str:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return f"({ast.unparse(other)})" if isinstance(other, ast.expr) else ast.unparse(other)


def _variants(node: ast.AST, parent: ast.AST | None) -> Iterator[str]:
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
        unreached = name == "body" and isinstance(node, ast.If) and re.search(UNREACHED, ast.unparse(node.test))
        if name not in ("annotation", "returns", "decorator_list") and not unreached:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child, node)


def mutants(path: str, source: str) -> Iterator[Mutant]:
    lines = source.split("\n")
    for node, parent in _nodes(ast.parse(source)):
        if getattr(node, "lineno", None) is not None and node.lineno == node.end_lineno:
            line = lines[node.lineno - 1]
            head, tail = line.encode()[: node.col_offset].decode(), line.encode()[node.end_col_offset :].decode()
            for text in _variants(node, parent):
                mutant = Mutant(path, node.lineno, line.strip(), f"{head}{text}{tail}".strip())
                if mutant.before != mutant.after and line.count(mutant.before) == 1:
                    yield mutant


def parses(mutant: Mutant) -> bool:
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(mutant.applied((ROOT / mutant.path).read_text(encoding="utf-8"))))
    return False


def sample(n: int, seed: int, only: str) -> list[Mutant]:
    """`n` lines of the product in an order that an edit elsewhere leaves as it is, and one mutation of each, or with `only` every one."""

    def rank(*text: object) -> str:
        return hashlib.sha256(f"{seed} {text}".encode()).hexdigest()

    files = (file.relative_to(ROOT).as_posix() for part in PRODUCT for file in (ROOT / part).rglob("*.py"))
    known = (m for p in files if not p.startswith(ELSEWHERE) for m in mutants(p, (ROOT / p).read_text("utf-8")))
    order = sorted(
        {m for m in known if only in f"{m.path}:{m.line} {m.before}"},
        key=lambda m: (rank(m.path, m.before), rank(*m[::2], m.after)),
    )
    by_line = groupby(order, key=lambda m: (m.path, m.before))
    return [*islice((m for _, each in by_line for m in islice(filter(parses, each), None if only else 1)), n)]


@functools.cache
def _words() -> tuple[dict[str, set[str]], Counter[str]]:
    """Code file -> the words in it; word -> the number of files that have it."""
    files = [f for part in ("tests", *PRODUCT) for f in (ROOT / part).rglob("*.py")]
    words = {f.relative_to(ROOT).as_posix(): {*re.findall(r"[A-Za-z_]{3,}", f.read_text("utf-8"))} for f in files}
    return words, Counter(word for found in words.values() for word in found)


def nearest(path: str) -> list[str]:
    """Test files in the order in which they share words with a file: those named like it first, those of the whole project last."""
    words, counts = _words()
    stem = Path(path.removesuffix("/__init__.py")).stem.strip("_").rstrip("s")

    def rank(test: str) -> tuple[bool, float]:
        shared = sum(math.log(len(words) / counts[w]) for w in words[path] & words[test])
        return test.count("/") == 1, -shared * (1 + (stem in Path(test).stem)) / len(words[test]) ** 0.5

    return sorted((f for f in words if re.search("(^|/)test_[^/]*$", f) and "/slurm/" not in f), key=rank)


def cloned(tree: Path) -> Path:
    """A clone of the tree as it stands."""
    shutil.rmtree(tree, ignore_errors=True)
    changed = subprocess.run(["git", "stash", "create"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(tree)], check=True)
    subprocess.run(["git", "checkout", "-q", changed.strip() or "HEAD"], cwd=tree, check=True)
    with (tree / "CHANGELOG.md").open("a") as file:
        file.write("\n")  # a checkout with changes already: no test tells a mutant by that alone
    return tree


def failing(tree: Path, asked: Sequence[str]) -> str:
    """The first of these tests that fails or hangs; "" if none does in the time."""
    hangs = ["-o", f"faulthandler_timeout={STUCK}", "-o", "faulthandler_exit_on_timeout=true"]
    line = [sys.executable, "-m", "pytest", "-xv", "-n", "0", "-p", "no:cacheprovider", *hangs, *asked]
    once = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "start_new_session": True}
    how["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with subprocess.Popen(line, cwd=tree, env=os.environ | once, **how) as process:
        said, _ = process.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what its tests have started goes as well
    if process.returncode in (0, 5, -signal.SIGXCPU):
        return ""
    begun = re.findall(r"^(tests/\S+\.py::.+?)(?: (?:PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b.*)?$", said, re.M)
    return begun[-1].strip() if begun else asked[-1]


def work(tree: Path, given: list[Mutant]) -> list[str]:
    """For each mutant, which is printed, the test that notices it, or "". A test that does not pass without a mutant is not asked again."""
    cloned(tree)
    clean: dict[str, bool] = {}
    done = []
    for mutant in given:
        file, asked = tree / mutant.path, nearest(mutant.path)[:FILES]
        source = file.read_text(encoding="utf-8")
        by, passes = "", False
        while not passes:
            file.write_text(mutant.applied(source), encoding="utf-8")
            by = failing(tree, [*(f"--deselect={test}" for test, fine in clean.items() if not fine), *asked])
            file.write_text(source, encoding="utf-8")
            passes = not by or clean.setdefault(by, not failing(tree, [by]))
        done.append(by)
        told = f"{len(done)}/{len(given)} {'killed' if by else 'survived':9}  {mutant.path}:{mutant.line}"
        print(f"{told}  {mutant.before}  ->  {mutant.after}  {by}", flush=True)
    return done


@command
def main(*, seed: int = 1, n: int = 200, workers: int = 1, only: str = "") -> int:
    lines = (ROOT / "tests" / "equivalent_mutants.txt").read_text(encoding="utf-8").splitlines()
    equivalent = {line.rpartition(" | ")[0] for line in lines}
    chosen = sample(n, seed, only)
    counted = [m for m in chosen if f"{m.path} | {m.before} | {m.after}" not in equivalent]
    trees = [ROOT / f"outputs/mutants/worker{number}/tree" for number in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        shares = pool.map(work, trees, (counted[number::workers] for number in range(workers)))
        done = [one for share in shares for one in share]
    killed = sum(map(bool, done))
    print(f"{killed} of {len(done)} killed ({killed / max(len(done), 1):.1%}); {len(chosen) - len(counted)} equivalent")
    return int(killed < GOAL * len(done))
