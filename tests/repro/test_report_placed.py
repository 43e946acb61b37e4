"""Figures of the papers in a report."""

from __future__ import annotations

import pytest
from made_report import Made, Page

from repro.report.placed import LARGEST, note, placed

pytest.importorskip("jinja2")
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"><rect width="5" height="5"/></svg>'


def figure(made: Made, name: str, profile: str, cells=("gone",)):
    folder = made.store.root / "figures" / made.plan.experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.svg").write_text(SVG)
    (folder / f"{name}.json").write_text("{}")
    return note(folder / name, f"Figure <{name}>", "ours", "theirs & more", profile, folder / f"{name}.json", cells)


def test_a_figure_stands_in_the_report_of_its_profile(tmp_path):
    made = Made(tmp_path)
    profile = made.plan.experiment.profile
    known = next(iter(made.plan.cells.values())).training_id
    figure(made, "one", profile, [known])
    figure(made, "other", "elsewhere")
    text = made.write()
    page = Page(text)
    assert "Figure <one>" in page.text and "Published: theirs & more." in page.text
    assert "Figure <other>" not in page.text and "not in this report" not in page.text
    (image,) = [a["src"] for tag, a in page.elements if a.get("alt") == "Figure <one>, of our cells"]
    assert image.startswith("data:image/svg+xml;base64,")
    assert any((a.get("href") or "").endswith("one.json") for _, a in page.elements)
    svg = next(made.store.root.rglob("one.svg"))
    (shown,) = placed(svg.parent, profile, (), tmp_path)
    place = svg.parent.relative_to(tmp_path)
    assert (shown["svg"], shown["data"], shown["others"]) == (f"{place}/one.svg", f"{place}/one.json", 1)
    figure(made, "one", profile)
    assert "Drawn from 1 cell(s) that are not in this report." in Page(made.write()).text
    (made.store.root / "figures" / made.plan.experiment.name / "one.svg").write_text(SVG + " " * LARGEST)
    page = Page(made.write())  # too large to stand in it
    assert "Figure <one>" in page.text and not [a for _, a in page.elements if "of our cells" in (a.get("alt") or "")]
