"""`help(sa)` and `dir(sa)` are complete, and a user's file passes `mypy --strict`."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparse_attention as sa
from sparse_attention import registry

USER = Path(__file__).with_name("user_file.py")
ROOMS = ("attention", "fused", "integrations", "kernels", "losses", "nn", "prox", "quality", "structured")


def own_names() -> set[str]:
    """`dir(sa)` without mappings that other tests have registered."""
    others = [
        s
        for s in map(registry.spec, registry.names())
        if s.function and not s.function.__module__.startswith("sparse_attention")
    ]
    return set(dir(sa)) - {name for s in others for name in (s.name, s.module.__name__)}


def test_every_public_name_has_a_docstring():
    things = {name: getattr(sa, name) for name in own_names() if name != "__version__"}
    for room in ROOMS:
        module = getattr(sa, room)
        named = {f"{room}.{name}": getattr(module, name) for name in module.__all__}
        things |= {name: thing for name, thing in named.items() if callable(thing)}
    own = {n: vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__ for n, thing in things.items()}
    assert len(own) > 100 and [name for name, text in own.items() if not (text or "").strip()] == []


def test_the_docstring_that_help_begins_with_lists_every_public_name():
    listed = set(re.findall(r"\w+", sa.__doc__.partition("What there is")[2]))
    assert own_names() - listed == set()


def test_dir_names_what_can_be_had_and_an_unknown_name_is_an_attribute_error():
    assert [name for name in dir(sa) if not hasattr(sa, name)] == []
    assert set(sa.__all__) <= set(dir(sa))
    with pytest.raises(AttributeError, match="sparcemax"):
        sa.sparcemax  # noqa: B018


def test_the_users_file_uses_many_names_and_runs(monkeypatch):
    source = USER.read_text(encoding="utf-8")
    assert len(set(re.findall(r"\bsa\.(\w+)", source))) >= 30
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    names: dict[str, object] = {"__name__": "user_file"}
    with torch.random.fork_rng():
        exec(compile(source, str(USER), "exec"), names)
        assert names["main"]()["rows"] == 3.0


@pytest.mark.slow  # mypy reads all of torch
def test_the_users_file_passes_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    ours = str(Path(sa.__file__).parents[1])
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import sparse_attention as sa\n\nsa.make(3)\nx: int = sa.names()\nsa.sparsemacks\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"),
         str(USER), str(wrong)],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "MYPYPATH": ours}, check=False,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in said if "wrong.py" not in line] == []
    assert [re.findall(r"\[([\w-]+)\]$", line)[0] for line in said] == ["arg-type", "assignment", "attr-defined"]
