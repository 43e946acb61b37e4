"""docs/claims.md, claims.json and docs/results: what the committed records give; what README says of them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.language_model import report
from benchmarks.length import report as length
from repro.claims.claim import Change, Claim, Form, Paper
from repro.claims.decide import Evidence, outcome_of
from repro.claims.outcome import CONTRADICTED, EXCLUDED, OPEN, SUPPORTED
from tasks.commands import claims, records, results
from tasks.config import compose

BLEU = "test/bleu"
WORDS = {"question": "Is it as good?", "point": "it is as good", "says": "+.5 BLEU", "unit": "BLEU"}
TESTED = ("evidence_translation", ("tuned",), (BLEU,), "equivalence", ("softmax",), 1.0)
CLAIM = Claim("as good", "section 4", *TESTED, paper="who2000", id=7, **WORDS)
WHO = Paper("who2000", "Who 2000")


def outcome(runs, **changes):
    scores = {"a": {"softmax": {8: -0.1, 9: 0.0, 10: 0.1}, "tuned": dict(enumerate(runs))}}
    return outcome_of(replace(CLAIM, **changes), Evidence({BLEU: scores}))


def test_what_was_analysed_again_is_open_until_new_runs_confirm_it():
    old = Change(OPEN, "The margin was .1.", "+0.02, n = 3", seeds=(0, 1, 2))
    text = claims.page([outcome((0.1, -0.1, 0.05), history=(old,))], (), [WHO])
    assert "| **open** | [it is as good](#claim-7) |" in text and "\n## Open\n\n### Claim 7\n" in text
    assert "**0 hold, 0 fail, 1 are open, 0 are" in text
    assert "versions of the test: open (+0.02, n = 3). The margin was .1. *We re-analysed the records after" in text
    confirmed = claims.page([outcome((0.1, -0.1, 0.05, 0.1, 0.0, 0.1), history=(old,))], (), [WHO])
    assert "| **hold** | [it is" in confirmed and "after seeing them, and new runs confirm the answer.*" in confirmed


RECORDS = "evidence_time_cpu evidence_headlines_cpu laha2018_table3_cpu martins2020_table2_cpu".split()
RECORDS += "niculae2017_table1_cpu peters2018_snli_cpu sweep_alpha sweep_p".split()


def test_the_committed_pages_are_what_the_committed_records_give(tmp_path):
    """Of some records: tables, pictures, sweeps and the claims on them; `make results` computes all of them."""
    whole, at = records.RESULTS, tmp_path / "results"
    (at / "records").mkdir(parents=True)
    (at / "figures").mkdir()
    for page in (tmp_path / "claims.md", at / "properties.md", at / "other.md", at / "figures" / "README.md"):
        page.touch()
    for name in ("language_model", "length"):
        shutil.copy(whole / f"{name}.json", at)
    for name in RECORDS:
        shutil.copy(whole / "records" / f"{name}.jsonl", at / "records")
    made = results.expected(at, {"language_model": report.page, "length": length.page})
    pages = [path.read_text(encoding="utf-8").replace("](../../", "](") for path in whole.rglob("*.md")]
    assert [key for key, (_, text) in made.sections.items() if not any(text in page for page in pages)] == []
    claimed = (whole.parent / "claims.md").read_text(encoding="utf-8")
    page = made.files.pop("../claims.md")
    told = re.findall(r"(?ms)^### Claim.*?(?=^##)|^\| (?:\*\*|  ?\|).*?$", page + "##")
    of_these = [one for one in told if "no finished cells" not in one.lower()]
    assert len(of_these) > 5
    assert [one for one in of_these if one.strip("| *\nabcdefghijklmnopqrstuvwxyz") not in claimed] == []
    told = made.files.pop("other.md").splitlines()
    assert len(told) > 8 and [one for one in told if one not in (whole / "other.md").read_text(encoding="utf-8")] == []
    committed = {name: (whole / name).read_text(encoding="utf-8") for name in made.files | made.drawn}
    assert [name for name, text in made.files.items() if committed[name] != text] == []
    assert [name for name, text in made.drawn.items() if not results._alike(committed[name], text)] == []


def test_the_page_counts_papers_that_say_so_and_opens_with_a_word_and_every_row():
    names = ("who2000", "other2001", "apart2002")
    found = [outcome((0.1, -0.1, 0.05), id=n, claim=f"as good as {n}", paper=paper) for n, paper in enumerate(names, 1)]
    found[1] = outcome((2.0, 2.1, 2.2), id=2, paper="other2001", point="that is too", says="+.2 BLEU")
    found[2] = replace(found[2], claim=replace(found[2].claim, question="", paper="apart2002"))
    papers = [WHO, Paper("other2001", "Other & Co. 2001"), Paper("apart2002", "Apart 2002", counted=False)]
    text = claims.page(found, (), papers)
    assert (
        "examined 2 claims of two papers" in text and "**1 hold, 1 fail, 0 are open, 0 are not testable here**" in text
    )
    assert "| **hold** | [it is as good](#claim-1) | +.5 BLEU | +0.02 [-0.21, +0.25] BLEU | 3 |" in text
    assert "| **fail** | [that is too](#claim-2) | +.2 BLEU | +2.10 [+1.87, +2.33] BLEU | 3 |" in text
    assert re.findall("(?m)^##.*$", text) == ["## How we decide", "## Fail", "### Claim 2", "## Hold", "### Claim 1", "### Claim 3"]  # fmt: skip
    assert "(Apart 2002, section 4)" in text and "<" not in text.replace("p<", "")


def test_a_row_that_was_not_run_and_an_excluded_gain_have_their_words():
    text = claims.page([outcome(())], (), [WHO])
    assert "| **not testable here** | [it is as good](#claim-7) | +.5 BLEU | not run" in text
    assert "## Not testable here\n\n### Claim 7\n" in text and "\n\nNot run.\n" in text
    for runs, word, said in (((-0.1, 0.1, 0.0), EXCLUDED, "A gain of 0.5 or more is excluded."), ((-3.0, -3.1, -2.9), CONTRADICTED, "")):  # fmt: skip
        one = outcome(runs, test="superiority", margin=0.5)
        text = claims.page([one], (), [WHO])
        assert one.outcome == word and "## Fail\n\n### Claim 7" in text and said in text
    again = outcome((-0.1, 0.1, 0.0), test="superiority", margin=0.5, forms=(Form("as printed", ("tuned",)),))
    assert "; runs: 3; a gain of 0.5 or more is excluded)." in claims.page([again], (), [WHO])


def test_other_forms_of_a_claim_stand_below_its_table():
    one = outcome((0.1, -0.1, 0.05), forms=(Form("as printed", ("tuned",), ("tuned",)), Form("in small", ("nobody",))))
    text = claims.page([one], (), [WHO])
    assert "\nAs printed: hold (tuned: +0.00" in text and "; runs: 3).\n" in text
    assert "\nIn small: not testable here (nobody: not run).\n" in text
    assert "hold in another form" not in text, "it holds anyway"
    failed = claims.page([outcome((2.0, 2.1, 1.9), forms=one.claim.forms)], (), [WHO])
    assert "are not testable here**. Of those that fail, 7 hold in another form, named below.\n" in failed
    said = claims.values(one)["forms"]
    told = [{"form": "as printed", "outcome": SUPPORTED}, {"form": "in small", "outcome": "not tested"}]
    assert [{k: of[k] for k in ("form", "outcome")} for of in said] == told
    assert [p["row"] for p in said[0]["parts"]] == ["tuned"] and said[0]["parts"][0]["effect"] == 0
    assert "forms" not in claims.values(outcome((0.1, -0.1)))
    rows = {"tuned": (2.0, 2.1, 1.9), "softmax": (0.0, 0.1, -0.1), "wide": (0.1, 0.4, 3.0), "other": (0.0, 0.0, 3.0)}
    scores = {"a": {row: dict(enumerate(found)) for row, found in rows.items()}}
    wide = replace(CLAIM, forms=(Form("as printed", ("wide", "other")),))
    text = claims.page([outcome_of(wide, Evidence({BLEU: scores}))], (), [WHO])
    assert "Of those that fail, 7 would be open in another form, named below.\n" in text
    assert "\nAs printed: open (wide: +1.17 [" in text and "]; other: +1.00 [" in text


def test_all_pairs_of_runs_are_counted():
    def row(label, *scores):
        results = [SimpleNamespace(metrics={BLEU: score}) for score in scores]
        return SimpleNamespace(label=label, baseline=False, results=results)

    rows = [row("softmax", 2.0, 3.0, 2.0), row("sparsemax", 1.0, 3.0, 5.0)]
    table = SimpleNamespace(name="evidence_translation", blocks=[SimpleNamespace(rows=rows)])
    assert claims.better([table]) == {"translation": pytest.approx((0 + 0 + 0 + 1 + 0.5 + 1 + 1 + 1 + 1) / 9)}
    another = SimpleNamespace(name="another", blocks=table.blocks)
    assert claims.better([another]) == {}


def test_a_claim_without_records_is_listed_with_the_reason_and_the_json_has_no_nan():
    found = claims.of_tables([])
    assert [o.claim.id for o in found] == sorted(c.id for p in compose.papers() for c in p.claims)
    assert all(o.part.why == (o.claim.told or "no finished cells") for o in found)
    assert claims.pictures(found) == {}
    decided, one_seed = claims.values(outcome((0.1, -0.1, 0.05))), claims.values(outcome((0.1,)))
    assert decided["outcome"] == SUPPORTED and decided["interval"][0] < decided["effect"] < decided["interval"][1]
    assert (decided["n"], decided["paper"], decided["version"], decided["counts"]) == (3, "who2000", 1, True)
    assert one_seed["effect"] is None and one_seed["interval"] == [None, None]
    json.dumps([decided, one_seed], allow_nan=False)


def test_an_open_claim_says_what_would_decide_it():
    """Runs of an hour and half an hour, in each of two columns; those that are lacking take as long."""
    rows = [
        SimpleNamespace(label=label, results=[SimpleNamespace(seconds=60.0 * m)] * n)
        for label, n, m in (("softmax", 3, 60), ("tuned", 4, 30), ("fusedmax", 1, 1))
    ]
    table = SimpleNamespace(name="evidence_translation", blocks=[SimpleNamespace(own=rows, rows=[])])
    runs = {"softmax": {8: -0.1, 9: 0.0, 10: 0.1}, "tuned": dict(enumerate((-0.9, -0.1, 0.1, 1.2)))}
    two = Evidence({BLEU: {"a": runs, "b": runs}})
    for pooled in (False, True):
        found = outcome_of(replace(CLAIM, pooled=pooled), two)
        assert found.outcome == OPEN and found.needs > 4 and len(found.parts) == 2 - pooled
        lacking = found.needs - 3, found.needs - 4
        runs, hours = 2 * sum(lacking), 2 * (lacking[0] + lacking[1] / 2)
        told = claims.values(found, [table])
        assert (told["more_runs"], told["more_hours"]) == (runs, hours)
        page = claims.page([found], [table], [WHO])
        assert f"{found.needs} runs a row ({runs} more, {hours:.1f} hours)" in page
    hopeless = claims.values(replace(found, needs=0), [table])
    assert hopeless["more_runs"] is None and "more_runs" not in claims.values(outcome((0.1, -0.1, 0.05)), [table])
