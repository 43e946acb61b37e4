"""`help(sa)` and `dir(sa)` are complete, and a user's file passes `mypy --strict`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from alone import HEAD

import sparse_attention as sa
from sparse_attention import registry

# Modules that need the package they are written for.
TRITON = ("attention_blocks", "attention_kernels", "list_kernels", "rows", "short_kernels", "simplex", "structured")
NEEDS = {"integrations.transformers": "transformers"} | {f"kernels.triton.{name}": "triton" for name in TRITON}
# Prints the modules that need more than torch, with what they need, and the number of modules.
ALONE = "import warnings; warnings.simplefilter('ignore')  # torch misses numpy" + HEAD
ALONE += """
for found in pkgutil.walk_packages(sa.__path__, "sparse_attention."):
    try:
        found.name.endswith("__main__") or importlib.import_module(found.name)
    except ImportError as error:
        print(found.name.removeprefix("sparse_attention."), str(error).replace("'", " ").split("named ")[1].split()[0])
print(len([name for name in sys.modules if name.startswith("sparse_attention")]))
"""
USER = Path(__file__).with_name("user_file.py")


def own_names() -> set[str]:
    """`dir(sa)` without mappings that other tests have registered."""
    every = map(registry.spec, registry.names())
    others = [s for s in every if not (s.function or s.module).__module__.startswith("sparse_attention")]
    return set(dir(sa)) - {name for s in others for name in (s.name, s.module.__name__)}


def test_all_holds_every_public_name():
    starred: dict[str, object] = {}
    exec("from sparse_attention import *", starred)
    assert {*starred, "__version__"} - {"__builtins__"} == {*sa.__all__, "__version__"} == own_names()


def test_the_old_name_of_attention_warns():
    with pytest.warns(DeprecationWarning, match=r"sa\.attention; 0\.4"):
        assert sa.fused is sa.attention


def test_the_users_file_uses_many_names_and_runs():
    source = USER.read_text(encoding="utf-8")
    assert len(set(re.findall(r"\bsa\.(\w+)", source))) >= 22
    names: dict[str, object] = {"__name__": "user_file"}
    exec(compile(source, str(USER), "exec"), names)
    assert names["main"]()["rows"] == 3.0


def test_every_module_imports_with_torch_alone():
    said = subprocess.check_output([sys.executable, "-c", ALONE], text=True, cwd=Path(sa.__file__).parents[1])
    *failed, count = said.split("\n")[:-1]
    assert dict(line.split() for line in failed) == NEEDS and int(count) > 80


@pytest.mark.slow  # mypy reads all of torch
def test_the_users_file_passes_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    ours = str(Path(sa.__file__).parents[1])
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import sparse_attention as sa\n\nsa.make(3)\nx: int = sa.names()\nsa.sparsemacks\n")
    command = [sys.executable, *"-m mypy --strict --follow-imports=silent --cache-dir".split(), str(tmp_path / "cache")]
    env = {**os.environ, "MYPYPATH": ours}
    done = subprocess.run(
        [*command, str(USER), str(wrong)], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
    )
    said = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in said if "wrong.py" not in line] == []
    assert [re.findall(r"\[([\w-]+)\]$", line)[0] for line in said] == ["arg-type", "assignment", "attr-defined"]
