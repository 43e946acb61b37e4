"""The demonstrations of the papers' errata run, and the page lists them all."""

import runpy
from pathlib import Path

import pytest

ERRATA = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errata"
SCRIPTS = sorted(ERRATA.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_demonstration(script, capsys):
    runpy.run_path(str(script))  # its assertions are the test
    assert capsys.readouterr().out


def test_the_page_lists_every_script():
    page = (ERRATA / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) >= 10
    assert {s.name for s in SCRIPTS} == {
        word.strip("`") for line in page.splitlines() if line.startswith("| `") for word in line.split()[1:2]
    }
