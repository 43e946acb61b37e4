"""The documentation site, which `make docs` builds and tests, and what is wrong in a built site is found."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import griffe
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if "SITE" in os.environ:
        return ROOT / os.environ["SITE"]
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
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


@pytest.mark.slow
def test_the_site_builds_and_readmes_links_stay_links(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    for to in ("start/install", "start/my_model", "guides/attention", "reference/api", "claims"):
        assert f'href="{to}.html' in first.partition("<article")[2], to
    for page in ("start/which.html", "reference/mappings/index.html"):
        article = (site / page).read_text(encoding="utf-8").partition("<article")[2]
        links = re.findall(r'href="([^"]*)">fusedmax</a>', article)
        assert {link.rpartition("/")[2] for link in links} == {"fusedmax.html"}, "a row of the gallery"
    formulas = (site / "guides" / "losses.html").read_text(encoding="utf-8")
    assert "<math>" in formulas and "arithmatex" not in formulas


@pytest.mark.slow
def test_pages_of_results_show_the_pictures_made_from_them(site):
    for page, picture in {
        "niculae2017_table1_cpu": "figures/niculae2017_figure3_cpu.svg",
        "laha2018_table2_cpu": "figures/laha2018_figure8_cpu.svg",
        "evidence_imdb_cpu": "figures/claims/claim_16.svg",
    }.items():
        shown = re.findall(r'<img [^>]*src="([^"]+)"', (site / "results" / f"{page}.html").read_text(encoding="utf-8"))
        assert [one for one in shown if one.endswith(picture)], (page, shown)
    nmt = (site / "results" / "niculae2017_nmt_cpu.html").read_text(encoding="utf-8")
    assert nmt.count("niculae2017_figure4_cpu.svg") == 1, "the page shows it already"


def test_all_that_the_page_of_the_api_shows_has_a_docstring(hooks):
    missing, seen = [], 0

    def look(thing):
        nonlocal seen
        seen += 1
        if not (thing.docstring and thing.docstring.value.strip()):
            missing.append(thing.path)
        for name, member in thing.members.items():
            shown = not (name.startswith("_") or member.is_alias or member.is_attribute or member.is_module)
            if shown:
                look(member)

    package = griffe.load("sparse_attention", search_paths=[ROOT])
    for name in re.findall(r"^::: sparse_attention\.(\S+)", hooks.api(), re.M):
        look(package[name])
    assert missing == [] and seen > 110
