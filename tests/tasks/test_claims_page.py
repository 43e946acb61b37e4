"""docs/claims.md and claims.json: the answers, and a folded section with a picture for each claim; what README says of them."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.language_model import report
from repro.results import archive
from repro.tables import build as tables
from repro.tables.claims import Change, Claim
from repro.tables.decide import CONTRADICTED, EXCLUDED, OPEN, SUPPORTED, Evidence, outcome_of
from tasks.commands import claims, recorded, reproduce
from tasks.commands.claims import chance
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request

ROOT = Path(__file__).parents[2]
BLEU = "test/bleu"
WORDS = {"question": "Is it as good?", "point": "it is as good", "says": "+.5 BLEU", "unit": "BLEU"}
TESTED = ("evidence_translation", ("tuned",), (BLEU,), "equivalence", ("softmax",), 1.0)
CLAIM = Claim("as good", "section 4", *TESTED, paper="who2000", id=7, **WORDS)


def outcome(runs, **changes):
    scores = {"a": {"softmax": {8: -0.1, 9: 0.0, 10: 0.1}, "tuned": dict(enumerate(runs))}}
    return outcome_of(replace(CLAIM, **changes), Evidence({BLEU: scores}))


def test_the_page_answers_first_then_folds_every_claim_with_its_runs():
    """A long claim is cut in its line and whole below."""
    found = [outcome((0.1, -0.1, 0.05)), outcome((2.0, -2.0), id=8, question="And that?", point="that is too")]
    text = claims.page(found)
    head, first, second = text.split("<details ")
    assert "| [Is it as good?](#claim-7) | +.5 BLEU | +0.02 [-0.21, +0.25] BLEU (3) | yes |" in head
    assert "| [And that?](#claim-8) | +.5 BLEU | " in head and "not decided: two seeds decide nothing |" in head
    assert "Supported: it is as good; not decided: that is too." in head
    assert "Of the 2 claims of the four papers, 1 are decided: 1 supported." in head
    assert (
        "cannot be tested here.\nClaims with the same" in head and "counted by sentences, 1 of 1 are decided.\n" in head
    )
    assert "counted by sentences" not in claims.page(found[:1])
    assert "<summary>7. <b>supported</b>: “as good”</summary>" in first and "> “as good” (section 4)" in first
    assert "](results/figures/claims/claim_7.svg)" in first and "+0.10, -0.10, +0.05" in first
    assert "**Inconclusive.** tuned against softmax: +0.00 BLEU, n = 2 and 3. Two seeds decide nothing." in second
    drawn = claims.pictures(found)
    assert list(drawn) == ["figures/claims/claim_7.svg", "figures/claims/claim_8.svg"]
    assert drawn == claims.pictures(found)
    text = "[continuous attention] allows [...] " + "many words " * 20 + "[to] the end"
    summary, _, section = claims.page([outcome((0.1, -0.1), claim=text)]).partition("<details ")[2].partition("</sum")
    assert summary.endswith("many words …") and "the end" not in summary and text in section


def test_what_was_analysed_again_is_marked_beside_the_old_outcome():
    old = Change(OPEN, "The margin was .1.", "+0.02, n = 3", seeds=(0, 1, 2))
    text = claims.page([outcome((0.1, -0.1, 0.05), history=(old,))])
    now = "Version 2, today: supported, *re-analysed after seeing the data*."
    said = [
        "| not decided yet (yes)\\* |",
        "\nNot decided: it is as good\\*.",
        "<b>supported*</b>",
        "0 are decided: none. 1 more have an outcome",
    ]
    for words in (*said, f"Version 1: inconclusive (+0.02, n = 3). The margin was .1. {now}"):
        assert words in text
    confirmed = claims.page([outcome((0.1, -0.1, 0.05, 0.1, 0.0, 0.1), history=(old,))])
    assert "| yes |" in confirmed and "and confirmed by new runs" in confirmed and "1 are decided" in confirmed


def test_the_answer_is_in_words():
    for runs, word, answer in (
        ((-0.1, 0.1, 0.0), EXCLUDED, "no, a gain of 0.5 or more is excluded"),
        ((-3.0, -3.1, -2.9), CONTRADICTED, "no, the opposite is seen"),
    ):
        one = outcome(runs, test="superiority", margin=0.5)
        assert one.outcome == word and f"| {answer} |" in claims.page([one])


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
    assert len(found) == sum(len(compose.claims(p)) for p in compose.names_in("claims"))
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


SCENE = 12  # scores without values for each example
SUMMARY = 27  # scores with such values, and training by epochs
CURVES = {"rested": [40.0, 42.0, 42.5, 42.4, 42.45, 42.4], "learning": [40.0, 41.0, 42.0, 43.0, 44.0, 45.0]}


class Planted:
    """The records of a table, and one claim on them."""

    def __init__(self, name: str, paper: str, number: int, columns: tuple[str], read: str, **changes) -> None:
        asked, self.records = archive.read(recorded.file_of(name, "cpu"))
        part = ["profile=cpu", f"columns={columns[0]}", f"rows={read}"]
        self.slots = reproduce.outlined(Request.read([*part, *asked["arguments"]], REPRODUCE, [name]))
        (claim,) = (c for c in compose.claims(paper) if c.id == number)
        self.claim = replace(claim, columns=columns, history=(), **changes)
        one, cells = self.slots
        self.places = {(one.rows[c.row].label, c.seed): archive.key(c.config, c.family) for c in cells}

    def copied(self) -> dict:
        """Fresh copies of all records, (row, seed) -> record, to be changed; those of other columns have no place here."""
        return {at: copy.deepcopy(one) for one in self.records for at, key in self.places.items() if one["key"] == key}

    def part(self, cells: dict):
        """The outcome of the claim's only comparison, if these are the records."""
        known = [{**one, "key": self.places[at]} for at, one in cells.items()]
        with recorded.restored(*self.slots, known) as (plan, store):
            (outcome,) = tables.build(plan, store, claims=[self.claim]).claims
        (part,) = outcome.parts
        assert part.outcome == outcome.outcome
        return part

    def score(self, one: dict) -> float:
        return scores(one)[self.claim.metrics[0]]

    def differences(self, cells: dict) -> list[float]:
        (row,), (other,) = self.claim.rows, self.claim.against
        seeds = sorted({s for r, s in cells if r == row} & {s for r, s in cells if r == other})
        return [self.score(cells[row, s]) - self.score(cells[other, s]) for s in seeds]

    def error(self, cells: dict, seeds) -> float:
        """Standard error of the mean difference over these seeds when the test examples are drawn again."""
        name = self.claim.metrics[0].removeprefix("test/")
        (row,), (other,) = self.claim.rows, self.claim.against
        of = [archive._columns(cells[r, s]["tests"]["test"]["examples"])[name] for r in (row, other) for s in seeds]
        each = np.array(of, float).reshape(2, len(seeds), -1).mean(1)
        return float(stats.sem(each[0] - each[1]))


def scores(one: dict) -> dict:
    return one["tests"]["test"]["scored"]["metrics"]


@pytest.fixture(scope="module")
def scene():
    rows = "softmax+log|sparsemax+hinge"
    return Planted("laha2018_table3", "laha2018", SCENE, ("scene",), rows, rows=("sparsemax+hinge",))


@pytest.fixture(scope="module")
def summary():
    table, rows = "niculae2017_table2", "softmax|sparsemax|fusedmax"
    planted = Planted(table, "niculae2017", SUMMARY, ("reuters",), rows, worth=0.0, experiment=table, paired=True)
    for one in planted.records:  # these records are older than the curves
        one["curve"] = {"metric": planted.slots[1][0].config["train"]["best_metric"], "dev": CURVES["rested"]}
    return planted


@pytest.mark.parametrize("added, word", [(0.0, CONTRADICTED), (0.05, SUPPORTED), (0.02, OPEN)])
def test_a_constant_added_to_a_row_changes_the_outcome_of_an_equivalence(scene, added, word):
    """The differences are -.067 with a margin of .05: .05 brings the row within it."""
    cells = scene.copied()
    d = np.add(scene.differences(cells), added)
    for seed in (4, 5, 6):
        scores(cells["sparsemax+hinge", seed])["test/f1"] += added
    part = scene.part(cells)
    assert part.outcome == word
    expected = np.mean(d), *stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert (part.effect, part.low, part.high) == pytest.approx(expected)


RUNS = [(0.0, None, OPEN), (0.5, None, SUPPORTED), (-2.0, None, CONTRADICTED), (0.0, 2, OPEN)]


@pytest.mark.parametrize("added, lost, word", RUNS)
def test_a_superiority_is_decided_by_the_seeds_and_examples_that_both_rows_have(summary, added, lost, word):
    """Half a point more supports it and two points less contradict it; the interval of two seeds is over test examples."""
    cells = summary.copied()
    cells.pop(("sparsemax", lost), None)
    for (row, _), one in cells.items():
        scores(one)["test/rouge1_f"] += added * (row == "sparsemax")
    part, d, seeds = summary.part(cells), summary.differences(cells), [s for s in (1, 2, 3) if s != lost]
    of_seeds, of_examples = np.var(d, ddof=1) / 3, summary.error(cells, seeds) ** 2
    df = 2 * ((of_seeds + of_examples) / of_seeds) ** 2
    half = stats.t.ppf(0.975, df) * np.sqrt(of_seeds + of_examples)
    if lost:
        half = stats.norm.ppf(0.975) * np.sqrt(of_examples)
    assert (part.effect, part.low, part.high) == pytest.approx(
        (np.mean(d), np.mean(d) - half, np.mean(d) + half), rel=1e-3
    )
    assert part.outcome == word and list(part.differences) == seeds


def test_a_row_that_still_learns_leaves_the_claim_open_where_that_could_undo_it(summary):
    """Half a point more supports the claim; that softmax still learns could undo it, that sparsemax does could not."""
    supported = summary.copied()
    for seed in (1, 2, 3):
        scores(supported["sparsemax", seed])["test/rouge1_f"] += 0.5
    learning = (OPEN, "still learning")
    for row, said in (("sparsemax", (SUPPORTED, "")), ("softmax", learning)):
        cells = copy.deepcopy(supported)
        for seed in (1, 2, 3):
            cells[row, seed]["curve"]["dev"] = CURVES["learning"]
        part = summary.part(cells)
        assert (part.outcome, part.why, part.n) == (*said, 3), row
    del supported["softmax", 2]["curve"]  # its best epoch was the last
    assert summary.part(supported).why == "convergence not known"
