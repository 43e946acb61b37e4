"""Records and the pages that are written from them: what was edited comes back, and a wrong record is refused."""

import csv
import re
import shutil

import pytest

from repro.results import archive
from repro.results.records import read as stored
from repro.store import Store
from repro.tables import compare, render
from tasks.commands import compare as commands
from tasks.commands import records, results
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request

PAGE = "# Results\n\nSeven of 10 words of prose.\n\n"
SHOW = [{"metric": "test/bleu", "label": "BLEU"}, {"metric": "dev/accuracy", "label": "acc."}]
EXPERIMENT = {"title": "A toy: two mappings", "profiles": {"demo": {"columns": ["toy"], "seeds": [1]}}}
EXPERIMENT["rows"] = [{"label": mapping, "mapping": mapping} for mapping in ("softmax", "sparsemax")]


def planned(patch, learning) -> None:
    """`pair` is the experiment of this file."""
    from repro.plan import experiment

    page = EXPERIMENT | {"columns": {"toy": {"label": "generated", "show": SHOW, "overrides": list(learning)}}}
    patch.setattr(compose, "experiment", lambda name, profile: experiment.read(page, name, profile))


def asked(arguments: list[str]) -> Request:
    return Request.read(arguments, REPRODUCE, ["pair"])


def copied(learned, outputs) -> Store:
    """A store of two trained cells."""
    for mapping in ("softmax", "sparsemax"):
        cell, entry = learned(mapping)
        shutil.copytree(entry.folder, cell.entry(Store(outputs)).folder)
    return Store(outputs)


@pytest.fixture(scope="module")
def folder(learned, learning, tmp_path_factory):
    """A folder like docs/results of a repository: records of a table of two trained cells, and a page that prints it."""
    root = tmp_path_factory.mktemp("repository")
    outputs, at = root / "outputs", root / "docs" / "results"
    with pytest.MonkeyPatch.context() as patch:
        planned(patch, learning)
        copied(learned, outputs)
        for _ in range(2):  # the same again
            told = records.record(asked([f"paths.outputs={outputs}"]), at)
            assert told == (at / "records" / "pair_demo.jsonl", 2, 0, [])
        written = told[0].read_bytes()
        assert records.record(asked([f"paths.outputs={root / 'none'}"]), at)[1:] == (2, 2, [])
        assert told[0].read_bytes() == written
        told[0].write_text("damaged")
        assert records.record(asked([f"paths.outputs={outputs}"]), at)[1:] == (2, 0, [])
        lost = records.record(asked([f"paths.outputs={root / 'none'}"]), root / "other")[3]
        assert lost == ["softmax, generated, seed 1", "sparsemax, generated, seed 1"]
        (at / "pair.md").write_text(PAGE + "## A toy: two mappings\n\n*profile demo*\n")
        results.write(at, {})
        yield at


@pytest.fixture
def written(folder, tmp_path):
    """A copy of it, in which a test changes something."""
    return shutil.copytree(folder, tmp_path / "docs" / "results")


def test_what_was_edited_is_written_again(written, folder):
    """Numbers and words of a table and of its drawing."""
    edits = {"pair.md": [("200 train", "201 train"), ("| softmax |", "| sofmax |"), ("1.", "7.")]}
    edits["figures/tables/pair_demo.svg"] = [("softmax", "ourmax"), ("M ", "M 9")]
    for name, changes in edits.items():
        text = (folder / name).read_text()
        head, sign, made = text.partition(PAGE if name == "pair.md" else " ")
        for old, new in changes:
            assert old in made
            made = made.replace(old, new)
        (written / name).write_text(head + sign + made)
    assert results.write(written, {}) == 0
    assert all((written / name).read_text() == (folder / name).read_text() for name in edits)
    rounded = re.sub(r"M (\d+\.\d\d)\d*", r"M \1", (written / name).read_text())  # rounding changes no drawing
    (written / name).write_text(rounded)
    assert results.write(written, {}) == 0 and (written / name).read_text() == rounded
    (written / "pair.md").unlink()  # a table that no page shows, and a measurement, get a page
    (written / "language_model.json").write_text("[7]")
    assert results.write(written, {"language_model": str}) == 0
    assert (written / "language_model.md").read_text() == "[7]"
    (written / "length.json").write_text("8")  # a page with a picture
    with_picture = {"language_model": str, "length": lambda made: (f"of {made}", f"<svg>{made}</svg>")}
    assert results.write(written, with_picture) == 0
    assert (written / "length.md").read_text() == "of 8"
    assert (written / "figures" / "length.svg").read_text() == "<svg>8</svg>"
    assert (written / "pair_demo.md").read_text() == (folder / "pair.md").read_text().removeprefix(PAGE)


def test_records_of_another_machine_are_added_and_none_is_dropped(
    written, folder, learning, tmp_path, monkeypatch, capsys
):
    """Seed 2 comes from there, seed 1 stays; the next command may name one of them."""
    planned(monkeypatch, learning)
    none, there = f"paths.outputs={tmp_path / 'none'}", tmp_path / "lease"
    path, keys = written / "records" / "pair_demo.jsonl", []
    asked_there, first = archive.read(path)
    (plan,) = records.reproduce.outlined(asked(["seeds=2", none]))
    for cell, record in zip(plan.slots, first):
        keys.append(archive.key(cell.config, cell.family))
        record |= {"key": keys[-1], "seed": 2}
    archive.write(there / "records" / "pair_demo.jsonl", {**asked_there, "arguments": ["seeds=2"]}, first)
    assert records.record(asked([none]), written, there)[1:3] == (4, 2)
    told, found = archive.read(path)
    assert told["arguments"] == ["seeds=1,2"] and {*keys} < {one["key"] for one in found}
    for words in (["seeds=2"], ["rows=softmax", "columns=toy"], ["seeds=3"]):
        before = path.read_bytes()
        missing = records.record(asked([*words, none]), written)
        assert missing[1:3] == (4, 4) and path.read_bytes() == before and len(missing[3]) == 2 * (words == ["seeds=3"])


def test_a_record_whose_checksum_is_wrong_is_refused(written, command, capsys):
    """The file is named, and nothing is written."""
    path = written / "records" / "pair_demo.jsonl"
    asked, (first, *more) = archive.read(path)
    asked.pop("version")
    first["tests"]["test"]["scored"]["metrics"]["test/bleu"] += 3
    (written / "pair.md").write_text(PAGE)
    before = path.read_text()
    archive.write(path, asked, [first, *more])
    path.write_text(before.partition("\n")[0] + "\n" + path.read_text().partition("\n")[2])
    assert command("results", f"to={written}") == 1
    assert f"{path} holds no records of a table (its checksum is wrong" in capsys.readouterr().err
    assert (written / "pair.md").read_text() == PAGE


def test_a_table_without_records_and_a_file_without_a_source_are_refused(written, command, capsys):
    page = written / "pair_demo.md"
    page.write_text((written / "pair.md").read_text().replace("## A toy:", "## An old title:"))
    (written / "pair.md").write_text(PAGE)
    (written / "stray.csv").write_text("1")
    (written / "multilabel").mkdir()
    (written / "multilabel" / "attention.png").write_bytes(b"made by hand")
    assert command("results", f"to={written}") == 2
    said = [line.removeprefix(f"{written}/") for line in capsys.readouterr().err.splitlines()[1:]]
    wanted = [
        "pair_demo.md: no records give the table '## An old title: two mappings', profile demo",
        "pair_demo.md: '## A toy: two mappings' is on no page;",
        *(f"{name}: nothing writes this file;" for name in ("pair.md", "stray.csv")),
    ]
    assert len(said) == len(wanted) and all(map(str.startswith, said, wanted)), said
    assert "An old title" in page.read_text()


def test_a_fresh_clone_prints_the_table_from_records(folder, tmp_path, capsys):
    assert records.show(asked([f"paths.outputs={tmp_path}"]), folder) == 0
    out = capsys.readouterr().out
    assert "nothing was run\nreport: " in out and "softmax" in out
    assert (tmp_path / "tables" / "pair_demo_from_records.md").is_file() and not (tmp_path / "cells").exists()
    lines = list(csv.DictReader((tmp_path / "tables" / "runs_pair_demo_from_records.csv").open()))
    assert {line["state"] for line in lines} == {"done"} and {line["folder"] for line in lines} == {""}
    page = (tmp_path / "report" / "pair_demo_from_records.html").read_text()
    assert "No predictions are stored for this column" in page and "empty output" not in page
    assert '<a href="..' not in page, "the folders of its cells are gone"
    assert records.show(asked([f"paths.outputs={tmp_path}", "seeds=1,7"]), folder) == 1
    assert "2 of 4 cells have no records" in capsys.readouterr().out


def test_a_sweep_has_records_of_its_own(learned, tmp_path):
    """The table of two cells, as the sweep printed it, from their records."""
    store = copied(learned, tmp_path / "outputs")
    folder = store.root / "sweeps" / "two"
    cells = [f"toy/{e.folder.parent.name}/{e.folder.name}" for e in store]
    commands.write_manifest(folder, ["seed=1,2"], [{"cell": c} for c in cells])
    read = stored(store).records
    printed = render.to_markdown(compare.table(compare.groups(read), "table", "Two"))
    (folder / "table.md").write_text(printed)
    at = tmp_path / "docs" / "results"
    path, count = records.record_sweep("two", store.root, at)
    assert count == len(read) >= 2 and str(tmp_path) not in path.read_text()
    assert results.write(at, {}) == 0
    whole = (at / "sweep_two.md").read_text().partition("<details")[2]
    tables = [[line for line in text.splitlines() if line[:2] == "| "] for text in (whole, printed)]
    rows, before = ([line.split("|")[:9] for line in table] for table in tables)
    assert len(rows) >= 3 and all(row in before for row in rows), "without differences, which need the examples"
    with pytest.raises(ValueError, match="sweep=too"):
        records.record_sweep("too", store.root, at)


def test_the_command_says_what_it_recorded_and_what_is_missing(command, monkeypatch, capsys, tmp_path):
    asked, told = [], {"empty": (0, 0, []), "grown": (2, 1, []), "short": (2, 0, ["a cell"])}

    def record(request, to, other):
        (name,) = request.names
        asked.append((name, request.typed, to))
        return (tmp_path / name, *told.get(name, (2, 0, [])))

    monkeypatch.setattr(records, "record", record)
    monkeypatch.setattr(records, "record_sweep", lambda name, outputs, to: (to / name, 3))
    monkeypatch.setattr(results, "write", lambda to, _: 0)
    assert command("results", "whole", "profile=cpu", f"to={tmp_path}") == 0
    assert asked == [("whole", ("profile=cpu",), tmp_path.resolve())]
    assert capsys.readouterr().out == f"{tmp_path / 'whole'}: 2 cells\n"
    for names, status, said in (
        (["whole", "empty"], 0, "empty: the store has none of its cells"),
        (["grown"], 0, "2 cells, 1 of them not in the store"),
        (["short", "whole"], 1, "  missing: a cell\n"),
        (["sweep=mine"], 0, f"{records.RESULTS / 'mine'}: 3 cells"),
    ):
        assert command("results", *names) == status and said in capsys.readouterr().out
    assert asked[-1][2] == records.RESULTS.resolve()
    assert command("results", "profile=cpu") == 2 and "name an experiment" in capsys.readouterr().err
