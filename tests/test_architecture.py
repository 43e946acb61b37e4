"""Who may import whom, read from the sources; what an import loads; what tracked files must not contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
APPLICATION = {"fairseq", "fairseq_cli", "hydra", "omegaconf", "wandb"}  # never below the tasks


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def imports(path: Path) -> set[str]:
    """Full dotted names of every import in a file, also those inside functions and importlib.import_module("...")."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.add(argument.value)
    return found


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def offenders(files: list[Path], forbidden: set[str]) -> list[str]:
    return [f"{f.relative_to(ROOT)}: {', '.join(sorted(bad))}" for f in files if (bad := packages(f) & forbidden)]


def test_the_reader_of_imports_sees_every_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    folder = tmp_path / "tasks" / "a"
    folder.mkdir(parents=True)
    file = folder / "b.py"
    file.write_text(
        "import os.path\nfrom ..c import d\ndef f():\n    from fairseq import x\n    importlib.import_module('wandb.sdk')\n"
    )
    assert imports(file) == {"os.path", "tasks.c.d", "fairseq.x", "wandb.sdk"}
    assert packages(file) == {"os", "tasks", "fairseq", "wandb"}


def test_the_library_knows_neither_tasks_nor_applications():
    files = tracked("sparse_attention/*.py")
    assert len(files) > 20
    assert offenders(files, {"tasks", "scripts", "tests"} | APPLICATION) == []


def test_tasks_do_not_import_scripts():
    files = tracked("tasks/*.py")
    assert len(files) > 20
    assert offenders(files, {"scripts", "tests"}) == []


def test_only_the_plugin_imports_fairseq():
    files = [f for f in tracked("*.py") if "fairseq_plugin" not in f.parts]
    assert offenders([f for f in files if "tests" not in f.parts], {"fairseq", "fairseq_cli"}) == []
    inside = [f for f in tracked("tasks/fairseq_plugin/*.py") if "fairseq" in packages(f)]
    assert inside, "the rule would hold for nothing"


def test_scripts_are_thin():
    lengths = {f.name: len(f.read_text().splitlines()) for f in tracked("scripts/*.py")}
    assert lengths
    assert {name: n for name, n in lengths.items() if n > 80} == {}


def test_no_source_file_is_too_long(record_property):
    sources = tracked("*.py", "*.cpp", "*.h", "*.cu")
    lengths = {str(f.relative_to(ROOT)): len(f.read_text(encoding="utf-8").splitlines()) for f in sources}
    long = {name: n for name, n in sorted(lengths.items()) if n > 400}
    record_property("files over 400 lines", str(long))
    print(f"files over 400 lines: {long or 'none'}")
    assert {name: n for name, n in long.items() if n > 500} == {}, "500 lines is where a file is split"


HEAVY = ("fairseq", "hydra", "omegaconf", "wandb", "matplotlib", "triton", "scipy")


def test_importing_the_library_loads_nothing_heavy():
    code = (
        "import sys, torch; before = set(sys.modules); import sparse_attention; "
        f"print([m for m in {HEAVY!r} if m in sys.modules and m not in before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_repro_package_loads_no_application():
    modules = ("cell", "plan", "pool", "store", "stats", "table", "published", "display")
    code = (
        "import sys; "
        + "; ".join(f"import sparse_attention.repro.{m}" for m in modules)
        + f"; print([m for m in {sorted(APPLICATION | {'matplotlib'})!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def texts() -> list[tuple[str, str]]:
    found = []
    for path in tracked():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    assert len(found) > 100
    return found


def test_no_path_of_a_machine():
    # Written in pieces so that this file does not contain what it forbids.
    pattern = re.compile(
        r"(?<![\w.}$])/(?:" + "|".join(("ro" + "ot", "wo" + "rk", "ho" + "me", "Us" + "ers", "mnt", "tmp/x")) + r")/\w"
    )
    hits = [f"{name}: {m.group(0)}" for name, text in texts() for m in pattern.finditer(text)]
    assert hits == []


def test_no_package_registry_is_named():
    hosts = ("py" + "pi.org", "python" + "hosted.org", "deb." + "debian.org", "security." + "debian.org", "archive." + "ubuntu.com",
             "conda." + "anaconda.org", "registry." + "npmjs.org")  # fmt: skip
    hits = [f"{name}: {host}" for name, text in texts() for host in hosts if host in text]
    assert hits == []
