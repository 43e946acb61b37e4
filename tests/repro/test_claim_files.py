"""The files of papers and their claims: errors are named; the shipped ones name what exists."""

import pytest
import yaml

from repro.claims.claim import Claim, Paper, read
from repro.errors import ConfigError
from tasks.config import compose
from tasks.config import pages as config_pages

WRONG = {
    "id: 0": r"claims\.1\.id=0 must be a whole number above 0",
    "tset: trend": r"claims\.1\.tset is unknown \(did you mean 'test'\?\)",
    "test: equality": "allowed: equivalence, noninferiority, superiority, trend, most",
    "rows: []": "rows must be given",
    "metrics: []": "metrics must be given",
    "direction: up": "allowed: higher, lower",
    "margin: 0": "must be above 0",
    "against: []": "needs the rows that it is `against`",
    "grid: lam": "a trend, and no other test, needs a grid and one row",
    "{test: trend, against: []}": "a trend, and no other test, needs a grid and one row",
    "{test: trend, grid: lam, rows: [x, y]}": "a trend, and no other test, needs a grid and one row",
    "history: [{outcome: x}]": r"claims\.1\.history\.1\.why must be set",
    "paper: other": "paper='other' stands at the top of the file",
}


@pytest.mark.parametrize("change, said", WRONG.items())
def test_a_file_with_errors_is_refused(change, said):
    one = {"id": 3, "claim": "c", "place": "p", "experiment": "e", "rows": ["r"], "metrics": ["m"]}
    one |= {"test": "equivalence", "margin": 1.0, "against": ["x"]}
    wanted = Claim("c", "p", "e", ("r",), ("m",), "equivalence", ("x",), 1.0, paper="page", id=3)
    head = {"paper": "page", "title": "Page 1963"}
    assert read({**head, "claims": [one]}, "page") == Paper("page", "Page 1963", claims=(wanted,))
    with pytest.raises(ConfigError, match=said):
        read({**head, "claims": [one | yaml.safe_load(change)]}, "page")


WRONG_HEADS = {
    "title: ''": "title must be the paper's name",
    "paper: other": "paper='other' must be the name of the file",
    "tilte: x": r"tilte is unknown \(did you mean 'title'\?\)",
    "order: first": "order='first' must be a whole number",
    "claims: null": "claims=None must be a list",
    "claims: [as good]": r"claims=\['as good'\] has 'as good' at place 1, which must be a mapping of claim, place",
    "{counted: false, claims: [{id: 1, claim: c, place: p, untested: x, question: 'Really?'}]}": "question is only for",
}


@pytest.mark.parametrize("change, said", WRONG_HEADS.items())
def test_the_head_of_a_paper_with_errors_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        read({"paper": "page", "title": "Page 1963", "claims": []} | yaml.safe_load(change), "page")


def papers(claims):
    """Those of configs/claims with one more file, sixth2021.yaml."""
    names, page = config_pages.names_in, config_pages.page
    made = {"paper": "sixth2021", "title": "Sixth 2021", "claims": claims}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_pages, "names_in", lambda g: [*names(g), *["sixth2021"] * (g == "claims")])
        patch.setattr(config_pages, "page", lambda g, name: made if name == "sixth2021" else page(g, name))
        return compose.papers()


SIXTH = {"id": 99, "claim": "c", "place": "p", "experiment": "evidence_snli", "rows": ["sparsemax"]}
SIXTH |= {"against": ["softmax"], "metrics": ["test/accuracy"], "margin": 0.1}
MISSPELT = {
    "rows: [sparsmax]": "claim 99, rows: evidence_snli has no 'sparsmax' .did you mean 'sparsemax'",
    "against: [sofmax]": "against: evidence_snli has no 'sofmax'",
    "columns: [snli_02k]": "columns: evidence_snli has no 'snli_02k' .did you mean 'snli_20k'",
    "columns: ['x*']": r"columns: evidence_snli has no 'x\*'",
    "than: [none]": "than: evidence_snli has no 'none'",
    "forms: [{form: f, rows: [sparsmax]}]": "forms.rows: evidence_snli has no 'sparsmax' .did you mean 'sparsemax'",
    "forms: [{form: f, rows: [sparsemax], against: [sofmax]}]": "forms.against: evidence_snli has no 'sofmax'",
    "profile: cup": "profile: evidence_snli has no 'cup' .did you mean 'cpu'",
    "experiment: evidence_snil": "experiment 'evidence_snil' is unknown .did you mean 'evidence_snli'",
    "id: 7": "id 7 is that of two claims, .* of laha2018 and 'c' of sixth2021; the next free id is",
}


@pytest.mark.parametrize("change, said", MISSPELT.items())
def test_a_claim_names_rows_that_exist_and_has_an_id_of_its_own(change, said):
    assert [p.paper for p in papers([SIXTH])][-2:] == ["sixth2021", "malaviya2018"]
    with pytest.raises(compose.ConfigError, match=said):
        papers([SIXTH | yaml.safe_load(change)])


def test_papers_have_the_order_that_they_name():
    named = [Paper(*of) for of in (("b", "B", None, False), ("d", "D"), ("c", "C"), ("e", "E", 2), ("f", "F", 1))]
    assert "".join(p.paper for p in sorted(named, key=lambda p: p.place)) == "fecdb"
    shipped = "niculae2017 laha2018 peters2018 martins2020 malaviya2018".split()
    assert [p.paper for p in compose.papers() if p.paper in shipped] == shipped


SHIPPED = compose.claims()


@pytest.mark.parametrize("claim", [c for c in SHIPPED if not c.told], ids=lambda c: c.id)
def test_the_shipped_claims_name_rows_columns_and_metrics_that_exist(claim):
    page = compose.page("experiment", claim.experiment)
    labels = {row["label"] for row in page["rows"]}
    assert {*claim.rows, *claim.against} <= labels and page.get("paper", claim.paper) == claim.paper
    shown = {s["metric"] for column in page["columns"].values() for s in column["show"]}
    more = {"test/attention_marked_precision", "test/attention_contiguity"}  # in the records, not in the table
    assert {*claim.metrics, claim.worth_metric} - {""} - more <= shown
    assert claim.unit
