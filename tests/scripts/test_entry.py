"""The one grammar of the scripts, on functions of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from repro.errors import StoreError
from tasks.commands.entry import command


@command
def one(
    cell: str, kind: Literal["a", "b"], *, overrides: list[str], n: int = 1, lam: float = 0.5, only: Sequence[str] = (), heat: bool = False,
    in_: Path | None = None, on: Literal["cpu", "gpu"] | None = None, paths_outputs: str = "",
) -> int:  # fmt: skip
    print((cell, kind, overrides, n, lam, only, heat, in_, on, paths_outputs))
    return 3


@command
def many(*names: str, to: Path, also: list[str] = (), fail: str = "", words: list[int] = ()) -> None:
    if fail:
        raise {"value": ValueError, "store": StoreError, "disk": OSError, "bug": RuntimeError}[fail]("so")
    print(names, to, *also, *words)


def test_words_values_and_flags(capsys):
    line = "t/m,seed=1 --n 3 --lam=-1 b decode.beam=2 +x=1 ~y --only p q --heat in=f on=gpu paths.outputs=o"
    assert one(line.split()) == 3
    said = ("t/m,seed=1", "b", ["decode.beam=2", "+x=1", "~y"], 3, -1.0, ["p", "q"], True, Path("f"), "gpu", "o")
    assert capsys.readouterr().out == f"{said}\n"
    assert one(["c", "a", "x=1", "--only", "p", "--only=q"]) == 3  # the option twice
    assert "['x=1'], 1, 0.5, ['p', 'q'], False, None, None, ''" in capsys.readouterr().out
    beside = ["x", "--to", "-", "--also", "p", "y", "-", "--words", "7"]  # names: an option takes one value
    assert many(beside) == 0
    assert capsys.readouterr().out == f"('x', 'y', '-') {Path('-')} p 7\n"


REFUSED = """
c | error: the following arguments are required: KIND; c d | argument KIND: invalid choice; c a z | unexpected argument 'z'; c a --heat=1 | argument --heat: ignored
c a --haet | --haet is unknown here (did you mean '--heat'?); c a --n | argument --n: expected one; c a n=x | argument --n: invalid int value: 'x'
c a lam=x | argument --lam: invalid float value: 'x'; many x | required: --to; many to=f tu=g | did you mean 'to='
u=1 a | 'u=1' stands where CELL is expected
"""


@pytest.mark.parametrize("line", REFUSED.strip().replace("\n", "; ").split("; "))
def test_what_is_refused(capsys, line):
    given, said = line.split(" | ")
    first, *others = given.split()
    assert (many(others) if first == "many" else one([first, *others])) == 2
    told = capsys.readouterr()
    assert said in told.err and not told.out


def test_the_exit_status_says_what_failed(capsys):
    for fail, status in (("value", 2), ("store", 1), ("disk", 1)):
        assert many(["to=f", f"fail={fail}"]) == status and capsys.readouterr().err == "error: so\n"
    with pytest.raises(RuntimeError, match="so"):  # a bug keeps its traceback
        many(["to=f", "fail=bug"])


def test_help_is_the_docstring_and_needs_nothing(capsys):
    assert one(["--help"]) == many(["-h"]) == 0
    assert capsys.readouterr().out.startswith("The one grammar of the scripts")
