"""The report in a real browser: at the width of a desk and of a telephone, in light and in dark."""

import pytest
from chromium import BINARY, Chromium
from made_report import Made

from repro.report import page as report
from repro.tables import build as tables

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
DESK, PHONE = 1300, 390
SCREENS = 3  # of 900 pixels: what the page below may take on a telephone before anything is unfolded
TABLE = "document.querySelector('table.results.sortable')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three rows, two seeds, a sentence of ordinary words and a word that does not end."""
    root = tmp_path_factory.mktemp("report")
    made = Made(root, comparable=True, seeds=(1, 2), text="an ordinary sentence about attention " + "x" * 300)
    built = tables.build(made.plan, made.store, made.records)
    built.deviations.append("`a.very.long.key.of.a.configuration.which.no.line.of.a.telephone.holds=true`")
    return report.write(built, made.plan, made.store, root / "report" / "r.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_page_fits_its_window_folded_and_unfolded_and_asks_for_nothing(browser, page, width, dark):
    assert browser.open(page, width, dark) == [], "the report loads nothing"
    said = [e["params"] for e in browser.events if e.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert said == [], "no error in the console"
    paper, ink = browser.ask("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    light = [sum(int(v) for v in colour[4:-1].split(",")) for colour in (paper, ink)]
    assert (light[0] < light[1]) == dark and abs(light[0] - light[1]) > 450
    assert browser.ask("document.documentElement.scrollHeight") < SCREENS * 900
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.ask("document.documentElement.scrollWidth") == width, "the page scrolls sideways"
    # a sentence has room for words: no cell with text is a column of letters
    cells = "[...document.querySelectorAll('.sample td:nth-child(2), .small li, .results tbody th')]"
    narrow = f"{cells}.filter(e => e.textContent.trim().length > 12 && e.getBoundingClientRect().width < 95).length"
    assert browser.ask(narrow) == 0
    beyond = browser.ask(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, .plots, pre, svg') && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []


def test_a_click_sorts_a_table_and_printing_unfolds(browser, page):
    browser.open(page, DESK)
    column, head = f"[...{TABLE}.tBodies[0].rows].map(r => r.cells[2].textContent)", f"{TABLE}.tHead.rows[0].cells[2]"
    before = browser.ask(column)
    browser.ask(f"{head}.click()")
    first = browser.ask(column)
    browser.ask(f"{head}.click()")
    assert sorted(before) == first and browser.ask(column) == first[::-1]
    browser.ask("dispatchEvent(new Event('beforeprint'))")
    assert browser.ask("document.querySelectorAll('details:not([open])').length") == 0
