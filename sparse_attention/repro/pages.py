"""config.yaml of a folder: all that a worker needs to run the cell, or to evaluate a finished training again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparse_attention.repro.files import write_atomic
from sparse_attention.repro.identity import Cell, prepare
from sparse_attention.repro.protocol import Prepared, TestSet
from sparse_attention.repro.store import Entry, Store, StoreError

ASKED = ("module", "overrides", "further", "test")  # what stands in a page besides the configuration


def to_yaml(config: Mapping[str, Any], **more: Any) -> bytes:
    """A configuration as a page that `from_folder` reads back."""
    import yaml

    plain = json.loads(json.dumps({**more, **config}, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120).encode()


def read_page(folder: Path) -> dict[str, Any]:
    import yaml

    path = folder / "config.yaml"
    try:
        page = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}); name the folder of a cell, outputs/cells/TASK/MAPPING/ID"
        ) from error
    if not isinstance(page, dict) or "module" not in page:
        raise StoreError(f"{path} is not the page of a cell: it has no `module`")
    return page


def from_folder(folder: str | Path, progress: Any = None) -> Cell:
    """The cell of a folder, from its config.yaml alone: a training with the evaluations asked first, or one evaluation.

    Raises:
        StoreError: no such page, or the data or recipes are no longer those that gave the folder its name.
    """
    folder = Path(folder).resolve()
    config = read_page(folder)
    module, overrides, further, test = (config.pop(key, None) for key in ASKED)
    if test is None:
        asked = [{**config, "data": node} for node in further.values()]
        cell = prepare(config, module, asked, progress, overrides)
        same = cell.training_id == folder.name
    else:  # the training's page has the data, this one says how to score
        data = read_page(folder.parents[1])["data"]
        cell = prepare({**config, "data": data}, module, [config] if test in further else [], progress, overrides)
        cell = replace(cell, tests=tuple(t for t in cell.tests if t.name == test))
        same = bool(cell.tests) and cell.evaluation_id(cell.tests[0]) == folder.name
    if not same:
        raise StoreError(f"{folder}: its data or its recipe have changed since it was named; plan the experiment again")
    return cell


def finished(folder: str | Path) -> Cell:
    """The cell of a finished training, without test sets and without its training data: enough to evaluate it.

    Its encoding is that of the folder. Raises StoreError: not finished, or damaged.
    """
    folder = Path(folder).resolve()
    config = read_page(folder)
    stored = Entry(folder).read()
    if stored is None:
        raise StoreError(f"{folder} holds no finished training (no manifest.json); run its command again")
    module, *_ = (config.pop(key, None) for key in ASKED)
    shortfalls = tuple(stored.get("shortfalls") or ())
    prepared = Prepared(stored["data_sha256"], str(folder / "encoding"), stored.get("facts") or {}, shortfalls)
    return Cell(config, module, prepared, known_id=folder.name)


def enter(cell: Cell, store: Store) -> list[Path]:
    """Write the pages of a cell that is to be run later; returns the folders for `run_folder`."""
    entry, folders = cell.entry(store), []
    if not entry.finished():
        write_atomic(entry.path("config.yaml"), page(cell))
        return [entry.folder]
    for test in cell.tests:
        level = cell.evaluation(store, test)
        if not level.finished():
            write_atomic(level.path("config.yaml"), page(cell, test))
            folders.append(level.folder)
    return folders


def page(cell: Cell, test: TestSet | None = None) -> bytes:
    """config.yaml: what is asked on top, the configuration below."""
    more: dict[str, Any] = {"module": cell.module, "overrides": list(cell.overrides), "further": cell.further}
    return to_yaml(cell.config, **more) if test is None else to_yaml(cell.config_of(test), **more, test=test.name)
