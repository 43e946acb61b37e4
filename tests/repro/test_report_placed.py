"""Figures of the papers in a report."""

from __future__ import annotations

import pytest
from made_report import Made, Page

from repro.report.placed import LARGEST, note, placed

pytest.importorskip("jinja2")
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"><rect width="5" height="5"/></svg>'


def test_figures_stand_in_the_report_of_their_profile(tmp_path):
    made = Made(tmp_path)
    profile, known = made.plan.experiment.profile, next(iter(made.plan.cells.values())).training_id
    folder = made.store.root / "figures" / made.plan.experiment.name
    folder.mkdir(parents=True)
    for name, of, cell in (
        ("one", profile, known),
        ("gone", profile, "x"),
        ("large", profile, known),
        ("other", "cpu", "x"),
    ):
        (folder / f"{name}.svg").write_text(SVG + " " * LARGEST * (name == "large"))
        (folder / f"{name}.json").write_text("{}")
        note(folder / name, f"Figure <{name}>", "ours", "theirs & more", of, folder / f"{name}.json", [cell])
    page = Page(made.write())
    assert "Figure <other>" not in page.text and "Published: theirs & more." in page.text
    assert page.text.count("Drawn from 1 cell(s) that are not in this report.") == 1
    images = {a["alt"]: a["src"] for tag, a in page.elements if "of our cells" in (a.get("alt") or "")}
    assert [*images] == ["Figure <gone>, of our cells", "Figure <one>, of our cells"], "the large one is linked alone"
    assert "Figure <large>" in page.text and images.popitem()[1].startswith("data:image/svg+xml;base64,")
    place = folder.relative_to(tmp_path)
    shown = {one["title"]: one for one in placed(folder, profile, (), tmp_path)}["Figure <one>"]
    assert (shown["svg"], shown["data"], shown["others"]) == (f"{place}/one.svg", f"{place}/one.json", 1)
    links = [a.get("href") or "" for _, a in page.elements]
    assert any(link.endswith("one.json") for link in links) and any(link.endswith("large.svg") for link in links)
