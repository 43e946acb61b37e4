"""docs/claims.md, claims.json and docs/results: what the committed records give; what README says of them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.language_model import report
from repro.tables.claims import Change, Claim, Paper
from repro.tables.decide import CONTRADICTED, EXCLUDED, OPEN, SUPPORTED, Evidence, outcome_of
from tasks.commands import claims, recorded, results
from tasks.commands.claims import chance
from tasks.config import compose

ROOT = Path(__file__).parents[2]
BLEU = "test/bleu"
WORDS = {"question": "Is it as good?", "point": "it is as good", "says": "+.5 BLEU", "unit": "BLEU"}
TESTED = ("evidence_translation", ("tuned",), (BLEU,), "equivalence", ("softmax",), 1.0)
CLAIM = Claim("as good", "section 4", *TESTED, paper="who2000", id=7, **WORDS)
WHO = Paper("who2000", "Who 2000")


def outcome(runs, **changes):
    scores = {"a": {"softmax": {8: -0.1, 9: 0.0, 10: 0.1}, "tuned": dict(enumerate(runs))}}
    return outcome_of(replace(CLAIM, **changes), Evidence({BLEU: scores}))


def test_what_was_analysed_again_is_marked_beside_the_old_outcome():
    old = Change(OPEN, "The margin was .1.", "+0.02, n = 3", seeds=(0, 1, 2))
    text = claims.page([outcome((0.1, -0.1, 0.05), history=(old,))], (), [WHO])
    now = "Today's: supported, *re-analysed after seeing the data*."
    said = [
        "| not decided yet (yes)\\* |",
        "\nNot decided: it is as good\\*.",
        "<b>supported*</b>",
        "0 are decided: none. 1 more have an outcome",
    ]
    for words in (*said, f"tests of this claim: inconclusive (+0.02, n = 3). The margin was .1. {now}"):
        assert words in text
    confirmed = claims.page([outcome((0.1, -0.1, 0.05, 0.1, 0.0, 0.1), history=(old,))], (), [WHO])
    assert "| yes |" in confirmed and "and confirmed by new runs" in confirmed
    assert "Of the 1 claims of the paper, 1 is decided: 1 supported." in confirmed


RECORDS = "evidence_time_cpu evidence_headlines_cpu laha2018_table3_cpu martins2020_table2_cpu".split()
RECORDS += "niculae2017_table1_cpu peters2018_snli_cpu sweep_alpha sweep_p".split()


def test_the_committed_pages_are_what_the_committed_records_give(tmp_path):
    """Of some records: tables, pictures, sweeps and the claims on them; `make results` computes all of them."""
    whole, at = recorded.RESULTS, tmp_path / "results"
    (at / "records").mkdir(parents=True)
    (at / "figures").mkdir()
    for page in (tmp_path / "claims.md", at / "properties.md", at / "figures" / "README.md"):
        page.touch()
    shutil.copy(whole / "language_model.json", at)
    for name in RECORDS:
        shutil.copy(whole / "records" / f"{name}.jsonl", at / "records")
    made = results.expected(at, {"language_model": report.page})
    pages = [path.read_text(encoding="utf-8").replace("](../../", "](") for path in whole.rglob("*.md")]
    assert [key for key, (_, text) in made.sections.items() if not any(text in page for page in pages)] == []
    claimed = (whole.parent / "claims.md").read_text(encoding="utf-8")
    page = made.files.pop("../claims.md")
    told = [*re.findall("<details id=.*?</details>", page, re.S), *re.findall(r"(?m)^\| \[.*$", page)]
    of_these = [one for one in told if "no finished cells" not in one.lower()]
    assert len(of_these) > 5 and [one for one in of_these if one not in claimed] == []
    del made.drawn["figures/claims/chances.svg"]  # of all records
    committed = {name: (whole / name).read_text(encoding="utf-8") for name in made.files | made.drawn}
    assert [name for name, text in made.files.items() if committed[name] != text] == []
    assert [name for name, text in made.drawn.items() if not results._alike(committed[name], text)] == []


def test_the_page_counts_what_is_decided():
    found = [outcome((0.1, -0.1, 0.05)), outcome((2.0, -2.0), id=8, question="And that?", point="that is too")]
    head = claims.page(found, (), [WHO]).partition("<details ")[0]
    assert "Supported: it is as good; not decided: that is too." in head
    assert (
        "Of the 2 claims of the paper, 1 is decided: 1 supported.\n1 is not decided, 0 are not tested, and 0 " in head
    )
    assert "counted by sentences, 1 of 1 are decided.\n" in head
    assert "counted by sentences" not in claims.page(found[:1], (), [WHO])


def test_the_page_names_and_counts_the_papers_that_say_so():
    names = ("who2000", "other2001", "apart2002")
    found = [outcome((0.1, -0.1, 0.05), id=n, claim=f"as good as {n}", paper=paper) for n, paper in enumerate(names, 1)]
    found[2] = replace(found[2], claim=replace(found[2].claim, question="", paper="apart2002"))
    papers = [WHO, Paper("other2001", "Other & Co. 2001"), Paper("apart2002", "Apart 2002", counted=False)]
    text = claims.page(found, (), papers)
    assert "The main 2 of the 2 claims of Who 2000 and Other & Co. 2001:" in text
    assert "Of the 2 claims of the two papers, 2 are decided: 2 supported." in text
    heads = ["### Who 2000", "### Other & Co. 2001", "### Apart 2002, counted separately"]
    assert re.findall("(?m)^###.*$", text) == heads and re.findall(r"<summary>(\d+)", text) == ["1", "2", "3"]
    alone = claims.page(found, (), papers[:1])
    assert "of the 1 claims of Who 2000:" in alone and re.findall("(?m)^###.*$", alone) == heads[:1]


def test_a_question_whose_row_was_not_run_is_not_tested():
    text = claims.page([outcome(())], (), [WHO])
    assert "\nNot tested: it is as good.\n" in text and "| not run | not tested |" in text
    assert "<b>not tested</b>" in text and "**Not tested.** Not run." in text
    assert "0 are decided: none.\n0 are not decided, 1 is not tested" in text


def test_the_answer_is_in_words():
    for runs, word, answer in (
        ((-0.1, 0.1, 0.0), EXCLUDED, "no, a gain of 0.5 or more is excluded"),
        ((-3.0, -3.1, -2.9), CONTRADICTED, "no, the opposite is seen"),
    ):
        one = outcome(runs, test="superiority", margin=0.5)
        assert one.outcome == word and f"| {answer} |" in claims.page([one], (), [WHO])


def test_the_chance_of_being_better_is_that_of_rliable():
    """Against a count of all pairs by hand; with two tasks, the mean of both."""
    one = chance("tuned", {"a": ([1.0, 3.0, 5.0], [2.0, 3.0])})
    assert one.mean == pytest.approx((0 + 0 + 1 + 0.5 + 1 + 1) / 6) and one.low < one.mean < one.high
    both = chance("tuned", {"a": ([1.0, 3.0, 5.0], [2.0, 3.0]), "b": ([9.0, 9.0], [1.0])})
    assert both.mean == pytest.approx((one.mean + 1) / 2) and (both.tasks, both.runs) == (("a", "b"), (3, 2))
    rng = np.random.RandomState(0)
    cover = [chance("x", {"a": (rng.normal(0, 1, 12), rng.normal(0, 1, 12))}, draws=300) for _ in range(200)]
    assert np.mean([c.low <= 0.5 <= c.high for c in cover]) > 0.88
    with pytest.raises(ValueError, match="no runs"):
        chance("tuned", {})


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


def test_readme_says_what_the_claims_and_the_benchmarks_say():
    names = ("README.md", "docs/claims.md", "docs/reference/benchmarks.md", "docs/results/language_model.json")
    readme, decided, measured, trained = ((ROOT / name).read_text(encoding="utf-8") for name in names)
    words = dict(re.findall(r"^<summary>(\d+)\. <b>([a-z ]+\*?)</b>", decided, re.M))
    told = re.findall(r"\[([a-z ]+)(\\\*)?\]\(docs/claims\.md#claim-(\d+)\)(?: \(([-+][^]]+\]))?", readme)
    assert len(told) >= 8 and all(words[n] == word + "*" * bool(star) for word, star, n, _ in told)
    sections = dict(re.findall(r'<details id="claim-(\d+)"(.*?)</details>', decided, re.S))
    for _, _, n, effect in told:
        assert re.sub(r" [A-Za-z][\w-]*(?= \[)", "", effect) in sections[n], n
    page, times = measured.partition("## Forward and backward")[2], {}
    for name in ("sparsemax", "entmax 1.5", "entmax 1.3"):
        cells = re.search(rf"^\| \*\*{re.escape(name)}\*\* \|(.*)\|", page, re.M)[1].replace("*", "").split("|")[:6]
        times[name] = [float(cell) for cell in cells]
    entmax = times["entmax 1.5"] + times["entmax 1.3"]
    ours, others = (f"{min(values):.1f} to {max(values):.1f}" for values in (times["sparsemax"], entmax))
    sentence = f"sparsemax takes {ours} times softmax's time, and entmax 1.3 and 1.5 take {others}"
    assert sentence in " ".join(readme.split())
    assert report.sentence(json.loads(trained)) in " ".join(readme.split())
