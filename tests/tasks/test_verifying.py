"""Forgeries: each changes one thing in a copy of some of docs/results and of README, and must be found.

Where records or code give what was changed, it is found although the forger has written the checksums anew too.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from repro.store import archive
from tasks.commands import recorded, verify
from tasks.config import compose

EXPECTED = verify.expected  # the fixture puts what it computed once in its place
NAMES = ("martins2020_nmt_cpu", "peters2018_snli_cpu")
COPIED = (
    *(f"{name}.md" for name in NAMES), *(f"records/{name}.jsonl" for name in NAMES), "records/sweep_p.jsonl", "sweeps",
    "language_model.md", "language_model.json", "properties.md", "figures/README.md", "figures/martins2020_figure1_line.csv",
    "figures/martins2020_figure1_line.svg", "figures/martins2020_figure2_cpu.json", "figures/peters2018_figure2_cpu.json",
    "figures/peters2018_figure2_cpu.svg", "vqa/attention.png",
)  # fmt: skip
BLEU_PAGE, SNLI_PAGE = (f"docs/results/{name}.md" for name in NAMES)
BLEU, SNLI = (f"docs/results/records/{name}.jsonl" for name in NAMES)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """(a repository's root whose results are right, what they must be)."""
    root = tmp_path_factory.mktemp("repository")
    results = root / "docs" / "results"
    for name in COPIED:
        source = recorded.RESULTS / name
        results.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, results / name)
    for name in ("alpha", "gamma", "lambda", "q"):
        shutil.rmtree(results / "sweeps" / name)
    shutil.copy(recorded.RESULTS.parents[1] / "README.md", root)
    (root / "docs" / "guides").mkdir()
    shutil.copy(recorded.RESULTS.parent / "guides" / "transformers_models.md", root / "docs" / "guides")
    of = verify.expected(results)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "expected", lambda results: of)
        verify.write(results, ["*"])
        yield root, of


def found(honest, path, edit, renewed=False):
    """What is said of a copy in which a file was edited; `renewed`: its checksum too."""
    root, of = honest
    results, file = root / "docs" / "results", root / path
    before, listed = file.read_bytes(), (results / recorded.CHECKSUMS).read_bytes()
    try:
        file.write_bytes(edit(before))
        assert file.read_bytes() != before, "the forgery changes nothing"
        of = replace(of, wrong=verify.contradictions(results))
        if renewed:
            (results / recorded.CHECKSUMS).write_text(json.dumps(verify.sums(results, of)))
        return verify.check(results, of).wrong
    finally:
        file.write_bytes(before)
        (results / recorded.CHECKSUMS).write_bytes(listed)


def put(old, new, count=1):
    """`old`, a pattern, becomes `new`."""
    return lambda content: re.sub(old, new, content.decode(), count=count, flags=re.M).encode()


def swap(first, second):
    """Two lines that begin so change places."""

    def edit(content):
        lines = content.decode().split("\n")
        a, b = (next(i for i, line in enumerate(lines) if line.startswith(x)) for x in (first, second))
        lines[a], lines[b] = lines[b], lines[a]
        return "\n".join(lines).encode()

    return edit


def in_record(change, nth=1):
    """`change` of the record in a line of a file, whose checksum is renewed."""

    def edit(content):
        lines = content.decode().splitlines()
        one = json.loads(lines[nth])
        change(one)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "records.jsonl"
            asked = {k: v for k, v in json.loads(lines[0]).items() if k not in ("version", "checksum")}
            archive.write(path, asked, [*map(json.loads, lines[1:nth]), one, *map(json.loads, lines[nth + 1 :])])
            return path.read_bytes()

    return edit


def raised(name, by=3.0):
    return lambda one: one["tests"]["test"]["scored"]["metrics"].update(
        {name: one["tests"]["test"]["scored"]["metrics"][name] + by}
    )


def shorter(one):
    """The last example is taken away; the score is that of the others."""
    of_test = one["tests"]["test"]
    values = json.loads(zlib.decompress(base64.b64decode(of_test["examples"]["accuracy"])))[:-1]
    of_test["examples"] = {"accuracy": base64.b64encode(zlib.compress(json.dumps(values).encode())).decode()}
    of_test["scored"]["metrics"]["test/accuracy"] = sum(values) / len(values)


def baseline(one):
    one["tests"]["test"]["scored"]["baselines"]["nearest neighbour"]["test/bleu"] = 41.2


def vectors(one):
    one["trained"]["facts"]["notes"] = ["GloVe 840B"]


NUMBERS = {  # name -> (file, edit): what records or code determine
    "a digit of a score": (BLEU_PAGE, put(r"38\.43", "38.53")),
    "a spread": (SNLI_PAGE, put(r"(\| sparsemax .*?±)0\.9", r"\g<1>0.1")),
    "an end of an interval": ("docs/results/sweeps/p/table.md", put(r"\[14\.02, 22\.56\]", "[17.02, 19.56]")),
    "the order of rows": (SNLI_PAGE, swap("| sparsemax", "| linear chain")),
    "bold given": (SNLI_PAGE, put(r"^(\| softmax \| 2 \| )([^|]*?) \|", r"\1**\2** |")),
    "a mark of significance": (BLEU_PAGE, put(r"38\.12", "38.12*")),
    "a row taken away": (SNLI_PAGE, put(r"^\| linear chain.*\n", "")),
    "a row of our own": (SNLI_PAGE, put(r"^(\| linear chain.*\n)", r"\1| ourmax | 2 | 99.9 |\n")),
    "a baseline taken away": (BLEU_PAGE, put(r"^\| nearest neighbour.*\n", "")),
    "the number of runs": (SNLI_PAGE, put(r"^\| softmax \| 2 \|", "| softmax | 5 |")),
    "a published number": (BLEU_PAGE, put(r"\| 24\.25 \|", "| 37.25 |")),
    "a verdict": (BLEU_PAGE, put(r"\| not comparable[^|]*\|", "| reproduced |")),
    "the seeds": (SNLI_PAGE, put(r"^- Seeds: 1, 2", "- Seeds: 1, 2, 3, 4, 5")),
    "the line of the seeds": (SNLI_PAGE, put(r"^- Seeds: .*\n", "")),
    "a deviation taken away": (SNLI_PAGE, put(r"^- Deviation: .*\n", "")),
    "the last deviation": (BLEU_PAGE, put(r"^- Deviation: .*\n\Z", "")),
    "a deviation in better words": (BLEU_PAGE, put("29,000 pairs", "1,000,000 pairs")),
    "other word vectors": (SNLI_PAGE, put("^- word vectors of 100 counted .*", "- GloVe 840B")),
    "Not comparable taken away": (BLEU_PAGE, put(r"^- Not comparable: .*\n", "")),
    "a size": (BLEU_PAGE, put("28,998|28,997", "160,239")),
    "what a table is not": (BLEU_PAGE, put("; its numbers are not comparable with the paper's", "")),
    "what stands for what": (BLEU_PAGE, put("^### DE-EN, Multi30k; stands for IWSLT 2017", "### IWSLT 2017")),
    "the title of a table": (SNLI_PAGE, put(r"^## Peters et al\. 2018:", "## Peters et al. 2018 (full SNLI):")),
    "the profile of a table": (SNLI_PAGE, put(r"^\*profile cpu", "*profile paper")),
    "a sentence below a table": (BLEU_PAGE, put(r"\Z", "- All rows reproduce the paper.\n")),
    "a digit of a sweep": ("docs/results/sweeps/p/table.md", put(r"27\.0 ±3\.8", "37.0 ±3.8")),
    "a sweep's csv": ("docs/results/sweeps/p/table.csv", put(r"(dev/accuracy,)2", r"\g<1>3")),
    "a column of a sweep's csv": ("docs/results/sweeps/p/table.csv", put(r",demo,", ",paper,")),
    "a plot's csv": ("docs/results/sweeps/p/plots/toy_pareto.csv", put(r"0\.84", "0.94")),
    "a plot": ("docs/results/sweeps/p/plots/toy_pareto.svg", put(r"pnormmax", "ourmax")),
    "a point of a plot": ("docs/results/sweeps/p/plots/toy_pareto.svg", put(r"M (\d+)\.(\d)", r"M \g<1>9.\2")),
    "a figure's csv": ("docs/results/figures/martins2020_figure1_line.csv", put(r"0\.24197", "0.24297")),
    "a curve": ("docs/results/figures/martins2020_figure1_line.svg", put(r"L (\d+)\.", r"L 9\1.")),
    "words on figures": ("docs/results/figures/README.md", put("ours: variances 1", "ours: variances 2")),
    "drawn attention": ("docs/results/figures/martins2020_figure2_cpu.json", put(r"0\.950649", "0.450649")),
    "the weight of a structure": ("docs/results/figures/peters2018_figure2_cpu.json", put(r"0\.822719", "0.922719")),
    "the language model's page": ("docs/results/language_model.md", put(r"\| 2\.39 \|", "| 3.39 |")),
    "the language model's json": ("docs/results/language_model.json", put(r'"sparsemax": 3424', '"sparsemax": 9424')),
    "a property": ("docs/results/properties.md", put(r"\| sparsemax \| yes \| yes \| yes \| no", "| sparsemax | yes | yes | yes | yes")),
    "a constant": ("docs/results/properties.md", put(r"1\.8028", "1.8128")),
    "README: times as fast": ("README.md", put(r"trains 2\.4 times", "trains 3.4 times")),
    "README: architectures": ("README.md", put(r"267", "367")),
    "a record raised": (BLEU, in_record(raised("test/bleu"))),
    "an accuracy raised": (SNLI, in_record(raised("test/accuracy"))),
    "a record lowered": (BLEU, in_record(raised("test/bleu", -0.1), 2)),
    "an example left out": (SNLI, in_record(shorter)),
    "a baseline raised": (BLEU, in_record(baseline)),
    "a perplexity": (BLEU, in_record(lambda one: one["trained"]["metrics"].update({"dev/ppl": 4.5}))),
}  # fmt: skip
SUMS = {  # what nothing here computes: a checksum alone
    "a sentence of a page": (BLEU_PAGE, put("says nothing of their order", "tells their order")),
    "a table made by hand": ("docs/results/sweeps/README.md", put(r"0\.84 ± 0\.04", "0.94 ± 0.04")),
    "a trained model's drawing": ("docs/results/figures/peters2018_figure2_cpu.svg", put("sequential", "matching")),
    "a picture": ("docs/results/vqa/attention.png", lambda content: content[:-1] + b"x"),
    "a dev score of a record": (SNLI, in_record(lambda one: one["trained"]["metrics"].update({"dev/accuracy": 79.0}))),
    "a note of a record": (SNLI, in_record(vectors)),
    "a record of a sweep": (
        "docs/results/records/sweep_p.jsonl",
        in_record(lambda one: one["metrics"].update({"test/bleu": 41.0})),
    ),
}


def test_what_is_right_passes(honest):
    root, of = honest
    done = verify.check(root / "docs" / "results", of)
    assert done.wrong == [] and done.sections == 3 and done.files >= 10 and done.sums >= 20
    assert done.text().startswith("3 tables and ") and "Not covered: sentences outside tables" in done.text()
    assert verify.write(root / "docs" / "results") == []


@pytest.mark.parametrize("name", NUMBERS)
def test_a_forgery_is_found_although_its_checksum_was_renewed(honest, name):
    path, edit = NUMBERS[name]
    measured = name == "the language model's json"  # its page, computed anew from it, would differ
    assert found(honest, path, edit, renewed=not measured)


@pytest.mark.parametrize("name", SUMS)
def test_what_nothing_computes_has_a_checksum(honest, name):
    path, edit = SUMS[name]
    assert any("not as checksums.json has it" in one for one in found(honest, path, edit))


def test_files_lost_and_added_are_found(honest):
    root, of = honest
    results = root / "docs" / "results"
    page, new = results / "peters2018_snli_cpu.md", results / "records" / "more.json"
    kept = page.read_bytes()
    page.unlink()
    new.write_text("{}")
    try:
        wrong = verify.check(results, of).wrong
        assert any("no page shows the table" in one for one in wrong)
        assert {one.split(":")[0] for one in wrong} >= {"peters2018_snli_cpu.md", "records/more.json"}
    finally:
        page.write_bytes(kept)
        new.unlink()


def test_writing_mends_pages_and_files(honest):
    """A sweep's csv, a table; and renews the checksum of prose."""
    root, of = honest
    results = root / "docs" / "results"
    kept = {path: (root / path).read_text() for path in (BLEU_PAGE, "docs/results/sweeps/p/table.csv")}
    for path, old, new in (
        (BLEU_PAGE, "38.43", "39.43"), ("docs/results/sweeps/p/table.csv", "demo", "paper"),
    ):  # fmt: skip
        assert old in kept[path]
        (root / path).write_text(kept[path].replace(old, new))
    changed = verify.write(results)
    assert {*kept} <= set(changed)
    assert {path: (root / path).read_text() for path in kept} == kept
    (root / BLEU_PAGE).write_text(kept[BLEU_PAGE].replace("says nothing of", "says little of"))
    assert verify.write(results) == ["checksum of martins2020_nmt_cpu.md"]
    (root / BLEU_PAGE).write_text(kept[BLEU_PAGE])
    assert verify.write(results) and verify.check(results, of).wrong == []


@pytest.mark.parametrize("accept", [(), ("figures/*",)])
def test_writing_refuses_records_that_were_changed(honest, accept, monkeypatch):
    """A score that its examples contradict, and one that they do not determine: nothing is written."""
    root, of = honest
    results = root / "docs" / "results"
    path = root / SNLI
    before = {p: p.read_bytes() for p in results.rglob("*") if p.is_file()}
    try:
        path.write_bytes(SUMS["a dev score of a record"][1](before[path]))
        with pytest.raises(ValueError, match=r"records/peters2018_snli_cpu\.jsonl is not as checksums\.json has it"):
            verify.write(results, accept)
        path.write_bytes(NUMBERS["an accuracy raised"][1](before[path]))
        monkeypatch.setattr(verify, "expected", lambda results: replace(of, wrong=verify.contradictions(results)))
        with pytest.raises(ValueError, match=r"test/accuracy is 73\.2.*, its 9,824 examples give 70\.2"):
            verify.write(results, ["*"])
        now = {p: p.read_bytes() for p in results.rglob("*") if p.is_file()}
        assert {p for p in now if now[p] != before[p]} == {path}
    finally:
        path.write_bytes(before[path])


def test_bleu_without_a_hit_of_four_words_is_sacrebleus():
    from sacrebleu.metrics import BLEU

    rows = [[3.0, 1.0, 0.0, 0.0, 5.0, 4.0, 3.0, 2.0, 5.0, 6.0], [2.0, 1.0, 0.0, 0.0, 4.0, 3.0, 2.0, 1.0, 4.0, 4.0]]
    sums = [int(sum(column)) for column in zip(*rows)]
    theirs = BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9], smooth_method="exp").score
    packed = {"bleu_statistics": base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()}
    record = {"tests": {"test": {"scored": {"metrics": {"test/bleu": theirs}}, "examples": packed}}}
    assert theirs > 0 and archive.contradictions(record) == []
    record["tests"]["test"]["scored"]["metrics"]["test/bleu"] += 0.01
    assert len(archive.contradictions(record)) == 1


@pytest.mark.parametrize(
    "row", ["| softmax | 1.0 | 2.0 |", "| softmax | **1.0** | **2.0** |", "| softmax | 1.0 | **2.0** |"]
)
def test_bold_taken_away_given_and_moved(tmp_path, row):
    of = verify.Expected(sections={("T", "cpu"): "## T\n\n*profile cpu*\n\n| softmax | **1.0** | 2.0 |\n"})
    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    page = results / "page.md"
    page.write_text(f"## T\n\n*profile cpu*\n\n{row}\n")
    (results / recorded.CHECKSUMS).write_text(json.dumps(verify.sums(results, of)))
    assert ["page.md: T, line 5" in one for one in verify.check(results, of).wrong] == [True]


def test_a_curve_has_the_score_of_the_best_epoch():
    record = {
        "trained": {"metrics": {"dev/accuracy": 61.0, "best_epoch": 2.0}},
        "curve": {"metric": "accuracy", "dev": [50.0, 61.0, 60.0]},
    }
    of_sweep = {
        **record["trained"],
        "curve": [50.0, 61.0],
        "config": {"train": {"best_metric": "accuracy"}},
        "tests": {},
    }
    assert archive.contradictions(record) == archive.contradictions(of_sweep) == []
    record["trained"]["metrics"]["dev/accuracy"] = 64.0
    of_sweep["metrics"]["best_epoch"] = 3.0
    for one in (record, of_sweep):
        assert "the curve has another score" in archive.contradictions(one)[0]


def test_a_section_may_be_followed_by_prose_and_only_its_beginning_is_computed(tmp_path):
    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    of = verify.Expected(openings={"Claims": "## Claims\n\n| a | b |\n|---|---|\n| x | 1 |"})
    page = results / "page.md"
    page.write_text("# Page\n\n## Claims\n\n| a | b |\n|---|---|\n| x | 2 |\n\nIn words.\n")
    assert ["page.md: Claims, line 5" in one for one in verify.check(results, of).wrong].count(True) == 1
    assert verify._renewed(page.read_text(), of).endswith("| x | 1 |\n\nIn words.\n")
    longer = page.read_text().replace("| x | 2 |", "| x | 2 |\n| y | 3 |")
    assert verify._renewed(longer, of) == page.read_text().replace("| x | 2 |", "| x | 1 |")
    page.write_text("# Page\n")
    assert any("no page shows the table" in one for one in verify.check(results, of).wrong)


def test_computed_points_leave_the_other_pages_alone(tmp_path, monkeypatch):
    """Sections of a page that the records give beside their table have an end each, and no section is the start of every page."""
    from repro.tables.blocks import Table

    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    made = recorded.Made(Table("t", "T", "profile demo", [], []), "## One\n\nsaid\n\n## Two\n\n| a |\n")
    monkeypatch.setattr(recorded, "files", lambda results: [results / "records" / "t.jsonl"])
    monkeypatch.setattr(recorded, "read", lambda path: made)
    monkeypatch.setattr(verify, "contradictions", lambda results: [])
    of = EXPECTED(results)
    assert of.openings == {"One": "## One\n\nsaid", "Two": "## Two\n\n| a |"} and not of.sections
    (results / "page.md").write_text("# Page\n\nIn words.\n\n## One\n\nsai\n\n## Two\n\n| a |\n\nmore\n")
    assert verify._renewed((results / "page.md").read_text(), of) == (
        "# Page\n\nIn words.\n\n## One\n\nsaid\n\n## Two\n\n| a |\n\nmore\n"
    )


def test_every_recorded_table_stands_on_a_page_under_its_title():
    """Under another title, a page would go on showing the table of before; the slow test below compares the numbers."""
    parts = [part for page in recorded.RESULTS.rglob("*.md") for part in verify.PARTS.split(page.read_text())]
    shown, missing = {verify._key(part)[0] for part in parts}, []
    for path in recorded.files():
        asked, _ = archive.read(path)
        title = asked.get("title") or compose.experiment(asked["experiment"], asked["profile"]).title
        missing += [path.stem] if title not in shown else []
    assert missing == ["laha2018_figure5_demo"]  # its page shows the points of its curves instead


@pytest.mark.slow
def test_the_results_of_this_repository_are_right():
    assert verify.check(of=EXPECTED()).wrong == []
