"""Pages held against records: an altered digit is caught, wherever it stands."""

from __future__ import annotations

import json
import shutil

import pytest

from repro.store import Store, archive, records
from repro.tables import compare, render
from tasks.commands import recorded, rerun, verify
from tasks.config import compose

PAGE = """# Results

Seven of 10 words of prose.

"""
EXPERIMENT = {
    "title": "A toy: two mappings", "rows": [{"label": "softmax", "mapping": "softmax"}, {"label": "sparsemax", "mapping": "sparsemax"}],
    "columns": {"toy": {"label": "generated", "show": [{"metric": "test/bleu", "label": "BLEU"}, {"metric": "dev/accuracy", "label": "acc."}]}},
    "profiles": {"demo": {"columns": ["toy"], "seeds": [1]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(learned, learning, tmp_path_factory):
    """A folder like docs/results of a repository: records of a table of two trained cells, and a page that prints it."""
    from repro.plan import experiment

    root = tmp_path_factory.mktemp("repository")
    outputs, results = root / "outputs", root / "docs" / "results"
    page = dict(EXPERIMENT, columns={"toy": EXPERIMENT["columns"]["toy"] | {"overrides": list(learning)}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "experiment", lambda name, profile: experiment.read(page, name, profile))
        for mapping in ("softmax", "sparsemax"):
            cell, entry = learned(mapping)
            shutil.copytree(entry.folder, cell.entry(Store(outputs)).folder)
        for _ in range(2):  # the same again
            told = recorded.record("pair", [f"paths.outputs={outputs}"], results)
            assert told == (results / "records" / "pair_demo.jsonl", 2, 0, [])
        written = told[0].read_bytes()
        assert recorded.record("pair", [f"paths.outputs={root / 'none'}"], results)[1:] == (2, 2, [])
        assert told[0].read_bytes() == written
        told[0].write_text("damaged")
        assert recorded.record("pair", [f"paths.outputs={outputs}"], results)[1:] == (2, 0, [])
        lost = recorded.record("pair", [f"paths.outputs={root / 'none'}"], root / "other")[3]
        assert lost == ["softmax, generated, seed 1", "sparsemax, generated, seed 1"]
        (results / "pair.md").write_text(PAGE + render.to_markdown(recorded.read(told[0]).table))
        verify.write(results)  # the record's checksum is there since it was written
        yield results


def test_a_page_is_what_its_records_give(folder):
    done = verify.check(folder)
    assert (done.wrong, done.sections) == ([], 1) and done.sums >= 2
    assert verify.write(folder) == []


def test_writing_says_which_table_it_could_not_write(folder, command, capsys):
    page = folder / "pair.md"
    right = page.read_text()
    try:
        page.write_text(right.replace("## A toy:", "## An old title:"))
        assert (
            command("verify", "--write", f"in={folder}") == 1 and "no page shows the table" in capsys.readouterr().out
        )
    finally:
        page.write_text(right)
        verify.write(folder)


def test_every_altered_digit_is_caught(folder):
    """Each digit of each row of the table, one after the other."""
    of = verify.expected(folder)
    page = folder / "pair.md"
    text = page.read_text()
    begin = text.index("| softmax")
    row = text[begin : text.index("\n", begin)]
    digits = [begin + i for i, sign in enumerate(row) if sign.isdigit()]
    assert len(digits) >= 4
    try:
        for at in digits:
            changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
            page.write_text(changed)
            assert verify.check(folder, of).wrong, changed[at - 20 : at + 20]
    finally:
        page.write_text(text)


@pytest.mark.parametrize(
    "old, new, said", [("500 train", "501 train", "501 train"), ("| softmax |", "| sofmax |", "sofmax")]
)
def test_the_command_names_what_differs(folder, script, old, new, said):
    """In footers and labels too; `--write` mends the page."""
    page = folder / "pair.md"
    right = page.read_text()
    assert old in right
    page.write_text(right.replace(old, new))
    done = verify.check(folder)
    assert len(done.wrong) >= 1 and said in done.text() and "docs/results/pair.md" in done.text()
    assert verify.write(folder) == ["docs/results/pair.md"] and page.read_text() == right


def test_a_table_without_records_is_told(folder):
    page = folder / "other.md"
    page.write_text(
        "## Another table\n\n*profile cpu*\n\n### words\n\n| mapping | a |\n|---|---:|\n| softmax | 1.0 |\n"
    )
    try:
        (said, _) = verify.check(folder).wrong
        assert said == "docs/results/other.md: Another table, profile cpu: there are no records of this table"
    finally:
        page.unlink()


def test_a_fresh_clone_prints_the_table_from_records(folder, tmp_path, capsys):
    assert recorded.show(["pair"], [f"paths.outputs={tmp_path}"], folder) == 0
    out = capsys.readouterr().out
    assert "From records" in out and "softmax" in out
    assert (tmp_path / "tables" / "pair_demo_from_records.md").is_file() and not (tmp_path / "cells").exists()
    page = (tmp_path / "report" / "pair_demo_from_records.html").read_text()
    assert "No predictions are stored for this column" in page and "empty output" not in page
    assert '<a href="..' not in page, "the folders of its cells are gone"
    assert recorded.show(["pair"], [f"paths.outputs={tmp_path}", "seeds=1,7"], folder) == 1
    assert "2 of 4 cells have no records" in capsys.readouterr().out


def test_record_again_gives_the_same_bytes(folder):
    path = folder / "records" / "pair_demo.jsonl"
    asked, found = archive.read(path)
    before = path.read_bytes()
    archive.write(path, {k: v for k, v in asked.items() if k != "version"}, found)
    assert path.read_bytes() == before


def test_a_sweep_has_records_of_its_own(learned, tmp_path):
    """The table of two cells, as the sweep printed it, from their records."""
    store = Store(tmp_path / "outputs")
    for mapping in ("softmax", "sparsemax"):
        cell, entry = learned(mapping)
        shutil.copytree(entry.folder, cell.entry(store).folder)
    folder = store.root / "sweeps" / "two"
    folder.mkdir(parents=True)
    cells = [f"toy/{e.folder.parent.name}/{e.folder.name}" for e in store]
    (folder / "manifest.json").write_text(json.dumps({"cells": [{"cell": c} for c in cells]}))
    read = records.read(store).records
    printed = render.to_markdown(compare.table(compare.groups(read), "table", "Two"))
    (folder / "table.md").write_text(printed)
    results = tmp_path / "docs" / "results"
    path, count = recorded.record_sweep("two", store.root, results)
    assert count == len(read) >= 2 and str(tmp_path) not in path.read_text()
    (results / "two.md").write_text(printed)
    verify.write(results)
    assert verify.check(results).wrong == []
    with pytest.raises(ValueError, match="sweep=too"):
        recorded.record_sweep("too", store.root, results)


def test_records_of_no_such_name_are_not_trained_anew(folder):
    with pytest.raises(ValueError, match=r"of=sweep_\* is no table of .*; name one"):
        rerun.differences(folder, "1", print, "sweep_*")


def test_a_record_may_lack_a_baseline_but_not_contradict_it():
    def told(**systems):
        scored = {"scoring": {}, "data_sha256": "d", "facts": {}, "baselines": systems}
        one = {"training": "t", "tests": {"test": {"evaluation": "e", "scored": scored}}}
        return {(thing, key): said for thing, key, said in verify._shared(one) if thing.startswith("test set")}

    old, new, wrong = told(majority=1.0), told(majority=1.0, regression=2.0), told(majority=1.5)
    assert old.items() < new.items() and len(new) == 3 and old.keys() == wrong.keys() and old != wrong


def test_the_command_says_what_it_recorded_and_what_is_missing(command, monkeypatch, capsys, tmp_path):
    asked = []

    def record(name, overrides, to):
        asked.append((name, overrides, to))
        return (
            tmp_path / name,
            0 if name == "empty" else 2,
            1 if name == "grown" else 0,
            ["a cell"] if name == "short" else [],
        )

    monkeypatch.setattr(recorded, "record", record)
    assert command("records", "whole", "profile=cpu", f"to={tmp_path}") == 0
    assert asked == [("whole", ["profile=cpu"], tmp_path.resolve())]
    assert capsys.readouterr().out == f"{tmp_path / 'whole'}: 2 cells\n"
    assert (
        command("records", "whole", "empty") == 0
        and "empty: the store has none of its cells" in capsys.readouterr().out
    )
    assert asked[-1][2] == recorded.RESULTS.resolve()
    assert command("records", "grown") == 0 and "2 cells, 1 of them not in the store" in capsys.readouterr().out
    assert command("records", "short", "whole") == 1 and "  missing: a cell\n" in capsys.readouterr().out
    assert command("records", "--help") == 0 and command("records") == 2
    monkeypatch.setattr(recorded, "record_sweep", lambda name, outputs, to: (to / name, 3))
    assert (
        command("records", "sweep=mine", f"to={tmp_path}") == 0
        and f"{tmp_path.resolve() / 'mine'}: 3 cells" in capsys.readouterr().out
    )
    for error, status in ((ValueError("wrong"), 2), (OSError("wrong"), 1)):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(recorded, "record", fail)
        assert command("records", "whole") == status and capsys.readouterr().err == "error: wrong\n"
