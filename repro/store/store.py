"""The folders of trainings and evaluations, and their state: finished, damaged, busy and so on."""

import gzip
import json
import os
import re
import shlex
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

from repro.errors import StoreError
from repro.files import archive_damage, read_json, sha256_of, write_atomic, write_json
from repro.store import locks

# Files and folders that the manifest leaves out, because they change after the training or are not part of it.
LOOSE = ("checkpoints", "evaluations", "logs", "log.txt", "status.json", "manifest.json", locks.NAME)
ASIDE = ".damaged-"
CHECKPOINTS = ("checkpoints/last.pt", "checkpoints/previous.pt")


def outputs_folder() -> str:
    """The default folder of the store, as in configs/main.yaml."""
    return os.environ.get("SPARSE_ATTENTION_OUTPUTS", "outputs")


def elsewhere(root: str | Path) -> str:
    """What a printed command adds for a store in another folder: " paths.outputs=FOLDER", or nothing for the default one."""
    return "" if str(root) == outputs_folder() else f" paths.outputs={shlex.quote(str(root))}"


def check_names(*names: str) -> None:
    """Check folder names for the store. Raises StoreError for an invalid name, such as a path out of the store."""
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]{0,99}", name):
            raise StoreError(f"{name!r} cannot name a folder of the store; use letters, digits, '_', '-', '+' and '.'")


class Damaged(StoreError):
    """The files in a finished folder have changed since they were written."""


class Level:
    """The folder of a training or an evaluation; it is finished once its manifest exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    def finished(self) -> bool:
        """Whether the manifest exists; the files are not checked (`damage` does that)."""
        return self.path("manifest.json").is_file()

    def finish(self, **facts: Any) -> None:
        """Write a manifest of the current files."""
        tops = [top for top in sorted(self.folder.iterdir()) if top.name not in LOOSE and not top.name.startswith(".")]
        paths = [path for top in tops for path in (top, *sorted(top.rglob("*"))) if path.is_file()]
        files = {str(path.relative_to(self.folder)): sha256_of(path) for path in paths}
        write_json(self.path("manifest.json"), {**facts, "files": files})

    def files(self) -> dict[str, str]:
        """File name -> sha256 from the manifest; empty if there is no valid manifest."""
        files = (read_json(self.path("manifest.json")) or {}).get("files")
        return files if isinstance(files, dict) and "metrics.json" in files else {}

    def damage(self) -> str | None:
        """Check a finished level; returns the problem, or None if the level is intact or unfinished."""
        if not self.finished():
            return None
        if not (files := self.files()):
            return "manifest.json is not a manifest"
        if outside := [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]:
            return f"manifest.json names {outside[0]!r}, which is not in the folder"
        for name, wanted in files.items():
            try:
                if sha256_of(self.path(name)) != wanted:
                    return f"{name} is not what was written"
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
        measured = (read_json(self.path("metrics.json")) or {}).get("metrics")
        return None if measured and isinstance(measured, dict) else "metrics.json holds no metrics"

    def read(self, check: bool = True) -> dict[str, Any] | None:
        """The content of metrics.json, or None if unfinished. Raises `Damaged`, with the file's name, unless `check` is false."""
        if not self.finished():
            return None
        if check and (why := self.damage()):
            raise Damaged(f"{self.folder} is damaged: {why}; run its command again: it is moved aside and made again")
        return read_json(self.path("metrics.json"))

    def provenance(self) -> dict[str, Any]:
        """The content of provenance.json; empty if there is none."""
        return read_json(self.path("provenance.json")) or {}

    def move_aside(self) -> Path:
        """Rename the folder to the first free name `<folder>.damaged-<n>`."""
        number = 1
        while (target := self.folder.with_name(f"{self.folder.name}{ASIDE}{number}")).exists():
            number += 1
        self.folder.rename(target)
        return target


class Evaluation(Level):
    """The folder of one evaluation."""

    def clear(self) -> None:
        """Make room for a new evaluation: move a finished (damaged) one aside, delete an unfinished one."""
        if self.finished():
            self.move_aside()
        elif self.folder.exists():
            shutil.rmtree(self.folder)

    def predictions(self) -> list[dict[str, Any]]:
        """The predictions, one record per test example; empty if none are stored. Raises `Damaged`."""
        path = self.path("predictions.jsonl.gz")
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                return [json.loads(line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise Damaged(f"{path} is damaged: {error}") from error

    def attention(self) -> dict[str, Any]:
        """The stored attention weights of test examples, name -> array; empty if none are stored."""
        from safetensors.numpy import load_file

        return load_file(path) if (path := self.path("attention.safetensors")).is_file() else {}

    def values(self, name: str) -> dict[int, Any]:
        """Index of a test example -> its score `name`; without examples that lack it. Raises `Damaged`."""
        path = self.path("manifest.json")
        records = _predictions(self.folder, path.stat().st_mtime_ns if path.is_file() else 0)
        return {int(r["index"]): r["sentence"][name] for r in records if name in r.get("sentence", {})}

    def write_predictions(self, records: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        write_atomic(self.path("predictions.jsonl.gz"), gzip.compress(text.encode(), mtime=0))


@lru_cache(maxsize=64)
def _predictions(folder: Path, written: int) -> list[dict[str, Any]]:
    return Evaluation(folder).predictions()


class Entry(Level):
    """The folder of one training, which contains the folders of its evaluations.

    Attributes:
        curve: the columns of curves.csv, if they are known without the file.
    """

    curve: Mapping[str, list[float]] | None = None

    def evaluation(self, evaluation_id: str) -> Evaluation:
        return Evaluation(self.path("evaluations") / evaluation_id)

    def evaluations(self) -> list[Evaluation]:
        """The folders of its evaluations, without those that were moved aside."""
        folders = sorted(self.path("evaluations").glob("*"))
        return [Evaluation(folder) for folder in folders if folder.is_dir() and ASIDE not in folder.name]

    def locked(self) -> AbstractContextManager[None]:
        """Lock the cell and its evaluations while the block runs. Raises `Busy` if another process holds the lock."""
        return locks.hold(self.folder)

    def busy(self) -> bool:
        """Whether a process holds the cell's lock."""
        return locks.held(self.folder)

    def set_aside(self) -> Path | None:
        """Move a damaged training aside, together with its evaluations.

        Returns the new folder, or None if the training is not damaged. Raises `Busy`.
        """
        if self.damage() is None:
            return None
        with self.locked():
            return self.move_aside() if self.damage() else None

    def state(self) -> str:
        """The state of the training or of its last run.

        One of "queued", "running", "done", "failed" and "lost" (the process died).
        """
        state = (read_json(self.path("status.json")) or {}).get("state")
        if state == "running":
            return "running" if self.busy() else "lost"
        return state if state in ("failed", "lost") else "done" if self.finished() else "queued"

    def status(self) -> dict[str, Any]:
        return (read_json(self.path("status.json")) or {}) | {"state": self.state()}

    def set_status(self, state: str, **facts: Any) -> None:
        """Replace the status; the attempt number and the scheduler's job id are kept unless `facts` has new ones."""
        before = read_json(self.path("status.json")) or {}
        kept = {key: before[key] for key in ("attempt", "job") if key in before}
        write_json(self.path("status.json"), {"state": state, "time": time.time(), **kept, **facts})


class Store:
    """All cells below `root`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def entry(self, task: str, mapping: str, cell_id: str) -> Entry:
        """The folder of a training. Raises StoreError if a name is invalid or would lead out of the store."""
        check_names(task, mapping, cell_id)
        return Entry(self.root / "cells" / task / mapping / cell_id)

    def __iter__(self) -> Iterator[Entry]:
        for path in sorted((self.root / "cells").glob("*/*/*/config.yaml")):
            if ASIDE not in path.parent.name:
                yield Entry(path.parent)

    def verify(self) -> Iterator[tuple[str, str, str]]:
        """Check the store: place, state and problem, if any, of each training, evaluation, damaged checkpoint and folder moved aside."""
        for entry in self:
            for level in (entry, *entry.evaluations()):
                why = level.damage()
                state = "damaged" if why else "done" if level.finished() else "unfinished"
                unfinished = level is entry and state == "unfinished"
                yield self._place(level.folder), entry.state() if unfinished else state, why or ""
            for path in () if entry.busy() else map(entry.path, CHECKPOINTS):
                if path.is_file() and (why := archive_damage(path)):
                    yield self._place(path), "damaged", why
        for folder in sorted((self.root / "cells").rglob(f"*{ASIDE}*")):
            yield self._place(folder), "aside", "moved aside as damaged; delete it if you do not need it"

    def _place(self, path: Path) -> str:
        return str(path.relative_to(self.root))
