"""docs/claims.md and claims.json: one line, section and picture for each claim; what README says of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from benchmarks.language_model import report
from repro.tables.claims import OPEN, SUPPORTED, Claim, Pilot, outcome_of
from tasks.commands import claims
from tasks.config import compose

ROOT = Path(__file__).parents[2]
PLACE = ("as good", "section 4", "evidence_translation", ("tuned",), "test/bleu")
CLAIM = Claim(*PLACE, "equivalence", "softmax", 1.0, pilot=Pilot(0.5, 0.1), paper="who2000")


def outcome(runs):
    scores = {"a": {"softmax": dict.fromkeys(range(len(runs)), 0.0), "tuned": dict(enumerate(runs))}}
    return outcome_of(CLAIM, scores, lambda *_: 0.0, {}, 2)


def test_the_page_answers_first_then_shows_every_comparison_with_its_seeds():
    found = [outcome((0.1, -0.1, 0.05)), outcome((2.0, -2.0))]
    text = claims.page(found)
    head, first, second = text.split("## Claim ")
    assert "1 of 2 claims are decided: 1 supported; 1 open." in head
    assert "decides the most is `evidence_translation` (1)." in head
    assert f"| [as good](#claim-1) | supported |  | +0.02 [-0.24, +0.28] | 3 | {found[0].power:.2f} | who2000 |" in head
    assert "| [as good](#claim-2) | inconclusive | two seeds |  |" not in head and "| two seeds | +0.00" in head
    assert "](results/figures/claims/who2000_0.svg)" in first and "+0.10, -0.10, +0.05" in first
    assert f"**Inconclusive.** Two seeds decide nothing. {found[1].needed} seeds would support it" in second
    drawn = claims.pictures(found)
    assert set(drawn) == {"figures/claims/who2000_0.svg"} and drawn == claims.pictures(found)
    assert all(">tuned, a</text>" in picture and "as good" in picture for picture in drawn.values())


def test_the_page_answers_for_each_task_and_says_why_nothing_is_decided():
    """Three seeds in a table that has two more rows count, not one seed of theirs or of another table; numbers by hand."""

    def of(experiment, runs, doubt="", **changes):
        claim = replace(CLAIM, experiment=experiment, rows=tuple(runs), columns=("*",), **changes)
        scores = {"softmax": dict.fromkeys((1, 2, 3), 30.0), **{row: dict(enumerate(s, 1)) for row, s in runs.items()}}
        doubts = {"fren": {row: doubt for row in runs if doubt}}
        return outcome_of(claim, {"fren": scores}, lambda *_: 0.1, doubts, 2)

    runs = {"low": (30.5, 30.7, 30.6), "high": (31.1, 31.3, 31.2), "one seed": (39.0,)}
    most = of("evidence_translation", runs, "still learning")
    one = of("malaviya2018_deen", {"other": (99.0,)})
    (line,) = [x for x in claims.page([most, one]).splitlines() if x.startswith("- ")]
    assert line == (
        "- translation: BLEU against softmax: +0.60 (low) to +1.20 (high); 2 rows, n = 3. Not decided: still learning."
    )
    worse = of("evidence_imdb", {"dense": (27.0, 27.2, 27.1)}, metric="test/accuracy")
    page = claims.page([one, worse])
    assert "- IMDB: accuracy against softmax: -2.90 (dense); 1 rows, n = 3. Contradicted: claim [2](#claim-2)." in page
    assert "| translation | [as good](#claim-1) | inconclusive | one seed |" in page


def test_a_long_claim_is_cut_in_the_table_and_whole_below():
    text = "[continuous attention] allows [...] " + "many words " * 20 + "[to] the end"
    page = claims.page([replace(outcome((0.1, -0.1)), claim=replace(CLAIM, claim=text))])
    head, section = page.split("## Claim 1")
    assert "[continuous attention allows … many words" in head and " …](#claim-1)" in head and "the end" not in head
    assert text in section


def test_a_claim_without_records_is_listed_with_the_reason():
    found = claims.of_tables([])
    assert len(found) == sum(len(compose.claims(p)) for p in compose.names_in("claims"))
    assert all(o.outcome == OPEN and o.part.why.startswith("no records of ") for o in found)
    assert claims.pictures(found) == {}


def test_the_json_has_what_a_reader_needs_and_no_nan():
    decided, one_seed = outcome((0.1, -0.1, 0.05)).values(), outcome((0.1,)).values()
    assert decided["outcome"] == SUPPORTED and decided["interval"][0] < decided["effect"] < decided["interval"][1]
    assert (decided["n"], decided["paper"]) == (3, "who2000")
    assert one_seed["effect"] is None and one_seed["interval"] == [None, None]
    json.dumps([decided, one_seed], allow_nan=False)
    assert {"claim", "paper", "outcome", "effect", "interval", "n", "power"} <= decided.keys()


def test_readme_says_what_the_claims_and_the_benchmarks_say():
    names = ("README.md", "docs/claims.md", "docs/reference/benchmarks.md", "docs/results/language_model.json")
    readme, decided, measured, trained = ((ROOT / name).read_text(encoding="utf-8") for name in names)
    rows = re.findall(r"^\|.*?\(#claim-(\d+)\) \| (\w+) ", decided, re.M)
    said = re.findall(r"\[(\w+)\]\(docs/claims\.md#claim-(\d+)\)", readme)
    assert len(said) >= 4 and {(n, outcome) for outcome, n in said} <= set(rows)
    for number, effect in re.findall(r"#claim-(\d+)\) \(([-+][^]]+\])", readme):
        shown = re.search(rf"\(#claim-{number}\) \|[^|]*\|[^|]*\| ([^|]+) \|", decided)[1]
        assert re.sub(r" [A-Za-z][\w -]*(?= \[)", "", effect) == shown, number
    page, times = measured.partition("## Forward and backward")[2], {}
    for name in ("sparsemax", "entmax 1.5", "entmax 1.3"):
        cells = re.search(rf"^\| \*\*{re.escape(name)}\*\* \|(.*)\|", page, re.M)[1].replace("*", "").split("|")[:6]
        times[name] = [float(cell) for cell in cells]
    entmax = times["entmax 1.5"] + times["entmax 1.3"]
    low, high, low_entmax, high_entmax = (
        f"{of(values):.1f}" for values in (times["sparsemax"], entmax) for of in (min, max)
    )
    sentence = f"sparsemax takes {low} to {high} times softmax's time, and entmax 1.3 and 1.5 take {low_entmax} to {high_entmax}"
    assert sentence in " ".join(readme.split())
    assert report.sentence(json.loads(trained)) in " ".join(readme.split())
