"""The documentation site: `make docs` builds it, and what is wrong in a built site is found."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("mkdocs", "math_core", "mkdocstrings"):
    pytest.importorskip(package, reason=f"{package}, of the extra dev, builds the site")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


GOOD = '<p id="here"><a href="b/index.html#there">b</a> <a href="#here">a</a> <a href="https://x.org">x</a> <code>\\frac</code></p>'
FAULTS = {
    '<a href="c.html">': "a.html links to c.html, which is not there",
    '<img src="c.svg">': "a.html links to c.svg, which is not there",
    '<a href="b/index.html#gone">': "a.html links to b/index.html#gone, which has no such anchor",
    '<a href="#gone">': "a.html links to #gone, which has no such anchor",
    '<script src="https://x.org/x.js"></script>': "a.html loads https://x.org/x.js from elsewhere",
    r"<p>the value \frac12</p>": r"a.html shows '\\frac' as text",
    "<p>as in :func:<code>f</code></p>": "a.html shows ':func:' as text",
}


@pytest.mark.parametrize("wrong", ["", *FAULTS])
def test_a_fault_of_a_built_page_is_found(wrong, hooks, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h2 id="there">b</h2><a href="../a.html">a</a>')
    (tmp_path / "a.html").write_text(GOOD + wrong)
    assert hooks.faults(tmp_path) == ([FAULTS[wrong]] if wrong else [])


def test_the_site_builds_and_readmes_links_stay_links(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    for to in ("start/install", "start/library", "guides/attention", "reference/api", "claims"):
        assert f'href="{to}' in first.partition("<article")[2], to
    assert (site / "start" / "library.ipynb").is_file()
    formulas = (site / "guides" / "losses" / "index.html").read_text(encoding="utf-8")
    assert "<math>" in formulas and "arithmatex" not in formulas
