"""The store looked after: damage is named, leftovers go, finished cells never; cells travel whole or not at all."""

from __future__ import annotations

import os
import tarfile
import zipfile

import pytest

from repro import cell as cells
from repro.files import StoreError
from repro.store import Store, maintenance


@pytest.fixture
def made(cell, store):
    """Two finished cells, the second with two evaluations."""
    both = [cell(seed=1), cell(seed=2, tests=["further"])]
    assert [cells.run(c, store).state for c in both] == ["done", "done"]
    return both


def content(store) -> dict[str, bytes]:
    return {str(p.relative_to(store.root)): p.read_bytes() for p in store.root.rglob("*") if p.is_file()}


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def wrong(store) -> list[str]:
    return [f"{s.place.rpartition('/')[2]}: {s.why}" for s in maintenance.verify(store) if s.state == "damaged"]


def test_every_flipped_file_is_named(made, store):
    assert wrong(store) == [] and {s.state for s in maintenance.verify(store)} == {"done"}
    assert len(list(maintenance.verify(store))) == 5  # two trainings, three evaluations
    first, level = made[0].entry(store), made[1].evaluation(store, made[1].tests[1])
    flip(first.path("encoding/dict.txt"))
    flip(level.path("predictions.jsonl.gz"))
    with zipfile.ZipFile(made[1].entry(store).path("checkpoints/last.pt"), "w") as archive:
        archive.writestr("tensor", b"\0" * 1000)
    flip(made[1].entry(store).path("checkpoints/last.pt"))
    said = sorted(wrong(store))
    assert len(said) == 3 and any("encoding/dict.txt is not what was written" in s for s in said)
    assert any("predictions.jsonl.gz is not" in s for s in said) and any(s.startswith("last.pt: ") for s in said)


def test_cleaning_takes_leftovers_and_nothing_else(made, store):
    before, entry = content(store), made[0].entry(store)
    left = [
        "checkpoints/saving.77.pt", "checkpoints/saving.77.pt.tmp", "checkpoints/best.77.pt", ".metrics.json.0123abcd",
        ".weights.safetensors.4321", "evaluations/.clock.89abcdef", "checkpoints/crash.pt",
        "claim.stale.0123abcd.0", ".claim.0123abcd",
    ]  # fmt: skip
    for name in left:
        entry.path(name).write_bytes(b"left")
    entry.path("checkpoints/best.pt").write_bytes(b"kept")
    busy = made[1].entry(store)
    busy.path("checkpoints/saving.88.pt").write_bytes(b"being written")
    with busy.locked():
        assert sorted(maintenance.clean(store)) == sorted(str(entry.path(n).relative_to(store.root)) for n in left)
        assert busy.path("checkpoints/saving.88.pt").exists()
    assert len(maintenance.clean(store)) == 1
    assert entry.path("checkpoints/best.pt").read_bytes() == b"kept"
    assert {k: v for k, v in content(store).items() if not k.endswith("best.pt")} == before


def test_cells_travel_whole(made, store, tmp_path):
    file, there = tmp_path / "cells.tar", Store(tmp_path / "there")
    assert [s.state for s in maintenance.export(store, file)] == ["exported"] * 2
    assert [s.state for s in maintenance.take_in(there, file)] == [
        "imported",
        "imported",
        "imported",
        "imported",
        "imported",
    ]
    assert all(c.found(there).metrics == c.found(store).metrics for c in made)
    assert {s.state for s in maintenance.take_in(there, file)} == {"was here"}
    assert not list(there.root.rglob(".*")) and not list(tmp_path.glob(".*"))


def test_a_cell_that_is_here_gets_the_evaluations_it_lacks(cell, store, tmp_path):
    file, there = tmp_path / "cells.tar", Store(tmp_path / "there")
    more = cell(tests=["further"])
    cells.run(more, store)
    cells.run(cell(), there)
    maintenance.export(store, file, ["fake/softmax"])
    assert [s.state for s in maintenance.take_in(there, file)] == ["was here", "imported"]
    assert more.done(there)


def test_damaged_and_unfinished_cells_do_not_travel(made, cell, store, tmp_path):
    file, there = tmp_path / "cells.tar", Store(tmp_path / "there")
    cells.run(cell(seed=3, task__behaviour="raise"), store)
    flip(made[0].entry(store).path("weights.safetensors"))
    flip(made[1].evaluation(store, made[1].tests[0]).path("metrics.json"))
    said = sorted((s.state, s.why) for s in maintenance.export(store, file))
    assert [s for s, _ in said] == ["exported", "left out", "left out", "left out"]
    assert {w for _, w in said} == {
        "",
        "not finished",
        "weights.safetensors is not what was written",
        "metrics.json is not what was written",
    }
    assert [s.state for s in maintenance.take_in(there, file)] == ["imported", "imported"]
    assert cells.run(made[1], there).state == "done" and made[1].done(there)


def test_a_tar_that_was_damaged_on_the_way_leaves_the_store_as_it_was(made, store, tmp_path):
    file, there = tmp_path / "cells.tar", Store(tmp_path / "there")
    maintenance.export(store, file)
    whole = file.read_bytes()
    at = whole.index(b"word 1")
    file.write_bytes(whole[:at] + b"wore" + whole[at + 4 :])
    said = {s.place.rpartition("/")[2]: s for s in maintenance.take_in(there, file)}
    assert sorted(s.state for s in said.values()) == ["damaged", "imported", "imported", "imported"] or (
        sorted(s.state for s in said.values()) == ["damaged", "imported", "imported"]
    )
    assert sum(c.done(there) for c in made) == 1
    for broken in (whole[: len(whole) // 2], b"no tar at all", b""):
        file.write_bytes(broken)
        there = Store(tmp_path / f"there{len(broken)}")
        with pytest.raises(StoreError, match="damaged or not a tar") if not broken.startswith(whole[:10]) else _any():
            maintenance.take_in(there, file)
        assert all(s.state == "done" for s in maintenance.verify(there)) and not list(there.root.glob("cells/.*"))


class _any:  # a tar that is cut may end between two members
    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        return kind is None or issubclass(kind, StoreError)


def test_a_tar_that_reaches_out_of_the_store_is_refused(store, tmp_path):
    file, there = tmp_path / "evil.tar", Store(tmp_path / "deep" / "there")
    (tmp_path / "x").write_text("x")
    with tarfile.open(file, "w") as tar:
        tar.add(tmp_path / "x", "../../../out")
    with pytest.raises(StoreError):
        maintenance.take_in(there, file)
    assert not list(tmp_path.rglob("out"))


def test_sizes_count_everything_once(made, store):
    found = maintenance.sizes(store)
    assert found["fake/softmax"] == (2, sum(len(v) for k, v in content(store).items() if k.startswith("cells")))
    assert found["of these, checkpoints of finished cells"][0] == 2


def test_the_command(made, store, script):
    where = f"paths.outputs={store.root}"
    assert "5 done" in script("store.py", "verify", where).stdout
    flip(made[0].entry(store).path("weights.safetensors"))
    done = script("store.py", "verify", where)
    assert done.returncode == 1 and made[0].training_id in done.stdout and "4 done" in done.stdout, done.stderr
    assert script("store.py", "export", where).returncode == script("store.py", "delete", where).returncode == 2
    assert os.listdir(store.root) == ["cells"]


def test_the_command_says_how_it_ended(made, store, command, capsys, tmp_path):
    where = f"paths.outputs={store.root}"
    assert command("store", "du", where) == 0 and "fake/softmax" in capsys.readouterr().out
    (store.root / "cells" / ".half").write_text("x")
    assert command("store", "clean", where) == 0 and capsys.readouterr().out.endswith("leftovers removed\n")
    assert command("store", "list", where) == 0 and capsys.readouterr().out.splitlines()[-1] == "5 done"
    assert command("store", "export", str(tmp_path / "all.tar"), where) == 0 and (tmp_path / "all.tar").is_file()
    there = f"paths.outputs={tmp_path / 'there'}"
    assert command("store", "import", str(tmp_path / "all.tar"), there) == 0 and "5 imported" in capsys.readouterr().out
    assert command("store", "import", str(tmp_path / "none.tar"), there) == 1 and "error: " in capsys.readouterr().err
    assert (
        command("store", "list", f"paths.outputs={tmp_path / 'none'}") == 2
        and "there is no store" in capsys.readouterr().err
    )
    assert command("store", "--help") == command("store", "-h") == 0 and command("store") == 2
    assert command("store", "wipe") == command("store", "export") == command("store", "du", "what") == 2
