"""Modules named in strings (imports: the contracts in pyproject.toml, `make lint`); what an import loads; what tracked files must not contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[1]


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


SOURCES = ("sparse_attention/*.py", "repro/*.py", "tasks/*.py", "benchmarks/*.py")


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def heights() -> dict[str, int]:
    """Package or room -> how high import-linter's contracts in pyproject.toml place it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    placed = {"scripts": 1000}
    for contract in tomllib.loads(text)["tool"]["importlinter"]["contracts"]:
        packages = [f"{package}." for package in contract.get("containers", ())] or [""]
        for height, layer in enumerate(contract.get("layers", ())[::-1]):
            placed |= {p + room: height if p else 100 * height for p in packages for room in re.findall(r"\w+", layer)}
    return placed


def test_no_string_names_a_module_of_a_room_above():
    """The contracts see every import, also those in functions, but no name in a string."""
    placed, named = heights(), set()

    def height(name: str) -> int:
        first, second = [*name.split("."), ""][:2]
        return placed[first] + placed.get(f"{first}.{second}", 0)

    of_ours = re.compile(r"(repro|tasks|benchmarks|scripts)(\.(?!md)\w+)+$")
    for path in tracked(*SOURCES):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        strings = (str(node.value) for node in nodes if isinstance(node, ast.Constant))
        named |= {(module(path), s) for s in strings if of_ours.match(s)}
    order = "scripts.train tasks.commands.train tasks.use repro.report.page repro.cell repro.files".split()
    places = [ROOT / name.replace(".", "/") for name in order]
    assert [p for p in places if not (p.is_dir() or p.with_suffix(".py").is_file())] == [], "no such module"
    heights_of = list(map(height, order))
    assert heights_of == sorted({*heights_of}, reverse=True) and len(named) > 5
    assert [(here, there) for here, there in named if height(there) > height(here)] == []


HEAVY = {"fairseq", "hydra", "omegaconf", "wandb", "matplotlib", "triton", "scipy", "transformers", "pydantic"}


def loaded_by(*modules: str) -> list[str]:
    """Which of HEAVY an import of these loads; what torch loads does not count."""
    code = f"import sys, torch; before = set(sys.modules); import {', '.join(modules)}; "
    code += f"print(*[m for m in {sorted(HEAVY)} if m in sys.modules and m not in before])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_library_and_the_engine_load_nothing_heavy():
    assert loaded_by("sparse_attention") == []
    engine = [name for name in map(module, tracked("repro/*.py")) if name != "repro.validation"]
    assert len(engine) > 30 and set(loaded_by(*engine)) <= {"scipy"}


# Written in pieces so that this file does not contain what it forbids.
HOSTS = ("py" + "pi.org", "python" + "hosted.org", "deb." + "debian.org", "security." + "debian.org")
HOSTS += ("archive." + "ubuntu.com", "conda." + "anaconda.org", "registry." + "npmjs.org")
FOLDERS = ("ro" + "ot", "wo" + "rk", "ho" + "me", "Us" + "ers", "mnt", "tmp/x")


def test_no_path_of_a_machine_and_no_package_registry_is_named():
    forbidden = re.compile(rf"(?<![\w.}}$])/(?:{'|'.join(FOLDERS)})/\w|{'|'.join(map(re.escape, HOSTS))}")
    hits, read = [], 0
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        read += 1
        hits += [f"{path.relative_to(ROOT)}: {m.group(0)}" for m in forbidden.finditer(text)]
    assert read > 100 and hits == []


def test_every_page_that_code_names_exists():
    """In messages, docstrings and comments; tests name made ones, and make docs checks docs/hooks.py and the links of pages."""
    sources = tracked("*.py", "*.pyi", "*.h", "*.cpp", "*.yaml", "*.toml", "*.sh", "*.def", "Makefile", "containers/*")
    named = set()
    for path in sources:
        if path.relative_to(ROOT).parts[0] not in ("tests", "docs"):
            text = path.read_text(encoding="utf-8", errors="ignore")
            pages = re.findall(r"(?<![\w/.{}])docs/[\w/.*-]*[\w*]", text)
            named |= {(str(path.relative_to(ROOT)), page) for page in pages}
    assert len(named) > 60 and sorted(one for one in named if not any(ROOT.glob(one[1]))) == []


def test_every_lstm_is_ours():
    """`tasks.layers.lstm.Lstm` runs in half precision on every processor."""
    assert [path for path in tracked("tasks/*.py") if "nn.LSTM(" in path.read_text(encoding="utf-8")] == []
