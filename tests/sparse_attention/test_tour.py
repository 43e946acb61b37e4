"""The tour of the library runs as written, prints what it says, and its notebook and pictures are those of `make tour`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from sparse_attention import registry
from tasks.commands import tour

DOCS = Path(__file__).resolve().parents[2] / "docs" / "start"
PAGE = (DOCS / "library.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    with torch.random.fork_rng():
        yield


def test_the_page_runs_and_says_what_is_printed():
    assert len(tour.BLOCK.findall(PAGE)) == PAGE.count("```python") > 12
    assert tour.run(PAGE) == PAGE, "run `make tour`"


def test_what_a_block_prints_is_put_below_it_and_the_old_text_goes():
    page = "a\n\n```python\nx = 2\nprint(x)\n```\n\n```text\n3\n```\n\nb\n\n```python\nx += 1\n```\n"
    assert tour.run(page) == page.replace("3\n", "2\n")
    with pytest.raises(NameError):
        tour.run("```python\nunknown\n```\n")


def test_the_notebook_is_the_page_and_its_cells_execute():
    text = (DOCS / "library.ipynb").read_text(encoding="utf-8")
    assert text == tour.notebook(PAGE), "run `make tour`"
    book = json.loads(text)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    names: dict[str, object] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["sa"].__name__ == "sparse_attention"


def test_links_and_pictures_exist_and_are_small():
    links = re.findall(r"\]\(([\w./]+)(?:#[\w-]+)?\)", PAGE)
    assert [name for name in links if not (DOCS / name).is_file()] == []
    pictures = {name.removeprefix("figures/") for name in links if name.startswith("figures/")}
    assert pictures == {path.name for path in (DOCS / "figures").glob("library*.svg")}
    assert max((DOCS / "figures" / name).stat().st_size for name in pictures) < 60_000


def test_pictures_are_drawn_the_same_twice():
    pytest.importorskip("matplotlib")
    drawn = dict(tour.figures())
    assert set(drawn) == {path.name for path in (DOCS / "figures").glob("library*.svg")}
    assert drawn == dict(tour.figures())
