"""Small records of a table's cells, for printing the table again without the cells.

Each table has one file of JSON lines. The first line has the request (experiment, profile, arguments; or the sweep), the
configurations of all its cells by the hash of their overrides or, of a sweep, by their keys (`packed_configs`), and a
checksum of the file. Every other line is a cell: the hash of its configuration and scoring (`key`), its ids in the store, the results of the
training and the evaluations, the versions used, the dev scores of all epochs (`curve`, missing in older records), and
the packed scores of the individual test examples, which the significance tests need. Weights and texts are not
included.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from repro import convergence
from repro.errors import StoreError
from repro.files import SEAL, write_atomic
from repro.identity import Cell, Results, computed_from, digest, scoring
from repro.plan import Plan, filled, origin
from repro.protocol import Family, Prepared, TestSet
from repro.results import records
from repro.store import Entry, Evaluation, Level, Store

VERSION = 1
MADE_WITH = ("code", "kernels", "locked", "machine", "attempt")
PLACES = ("mirror", "fallback")  # keys of the data node that only say where the data are
Archived = Mapping[str, Any]  # the record of a cell
OWN = "test"  # name of the data set's own test set
NOWHERE = Store("records")  # a store without cells, for those of records


def key(config: Mapping[str, Any], family: Family) -> str:
    """A hash that identifies a slot of a table by its configuration only, without the location of the data."""
    node = {k: v for k, v in config["data"].items() if k not in PLACES and v is not None}
    data = {k: Path(v).name if k == "path" else v for k, v in node.items()}
    return digest(*computed_from(config, family), data, scoring(config, family))


def collect(
    cells: Sequence[Cell], store: Store, earlier: Iterable[dict[str, Any]] = ()
) -> tuple[list[dict[str, Any]], list[Cell]]:
    """Make a record for each finished cell of the slots; also returns the slots without a finished cell.

    Args:
        earlier: records to use for the slots without a finished cell; a record of another configuration is ignored.

    Raises:
        Damaged: the files of a cell have changed since they were written.
    """
    folders = {(cell.task, cell.mapping) for cell in cells}
    stored: dict[str, Results] = {}
    for one in records.read(store, lambda task, mapping, _: (task, mapping) in folders, check=False).records:
        named = key(one.config, one.family)
        if named not in stored or _written(one) > _written(stored[named]):
            stored[named] = one
    asked: dict[str, tuple[Cell, set[str]]] = {}
    for cell in cells:
        asked.setdefault(key(cell.config, cell.family), (cell, set()))[1].update(cell.further)
    by_key = {record["key"]: record for record in earlier}
    kept, lost = [], []
    for named, (cell, tests) in asked.items():
        made = record(stored[named], tests, named) if named in stored else None
        if made is None and named in by_key and tests <= by_key[named]["tests"].keys():
            made = by_key[named]
        if made is None:
            lost.append(cell)
        else:
            kept.append(made)
    return kept, lost


def _written(one: Results) -> float:
    return (one.folder / "manifest.json").stat().st_mtime


def record(stored: Results, asked: Collection[str], named: str = "") -> dict[str, Any] | None:
    """The record of a cell, or None if the training or an evaluation on one of the test sets `asked` is missing.

    Its key is `named`, by default that of its configuration.
    """
    config, levels = stored.config, {k: v for k, v in stored.evaluations.items() if k in {*asked, OWN}}
    trained = stored.levels[0].read()
    if trained is None or not {*asked} <= levels.keys() or not levels:
        return None
    tests = {}
    for name, level in levels.items():
        test = {"evaluation": level.folder.name, "scored": without_texts(level.read() or {}), "made": _made(level)}
        tests[name] = test | {"examples": packed(level.predictions())}
    columns = convergence.judged(stored.curves, stored.best_metric)
    curve = {"curve": columns} if f"dev/{stored.best_metric}" in columns else {}
    made = curve | {"key": named or key(config, stored.family), "task": config["task"]["name"]}
    made |= {"mapping": config["mapping"]["name"], "seed": stored.seed, "training": stored.cell_id}
    return made | {"trained": trained, "made": _made(stored.levels[0]), "tests": tests}


def results(made: Archived, module: str, config: Mapping[str, Any], wanted: Collection[str] | None = None) -> Results:
    """The results in a record of a cell with this configuration and this family's `module`; `wanted`: only these test sets."""
    names = [name for name in (made["tests"] if wanted is None else wanted) if name in made["tests"]]
    tests = {name: (Tested(made["tests"][name]), made["tests"][name]["scored"]) for name in names}
    return Results.of(Trained(made), made["trained"], tests, module, config)


def without_texts(scored: Mapping[str, Any]) -> dict[str, Any]:
    """The results of an evaluation without texts.

    A baseline's constant output is a sentence from the data set, so it is replaced by its number of words.
    """
    systems = {name: dict(values) for name, values in (scored.get("baselines") or {}).items()}
    for name in [k for k in systems.get("constant", {}) if k.endswith("/text")]:
        text = systems["constant"].pop(name)
        systems["constant"][name.removesuffix("text") + "words"] = len(text.split())
    return {**scored, "baselines": systems} if "baselines" in scored else dict(scored)


def _made(level: Level) -> dict[str, Any]:
    provenance = level.provenance()
    kept = {k: provenance[k] for k in MADE_WITH if k in provenance}
    return kept | {"packages": {"torch": (provenance.get("packages") or {}).get("torch")}}


def packed(predictions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Pack the per-example scores: score -> compressed values for all test examples, in order."""
    columns: dict[str, list[Any]] = {}
    for record in predictions:
        for name, value in record.get("sentence", {}).items():
            columns.setdefault(name, []).append(value)
    return {n: base64.b64encode(zlib.compress(json.dumps(v).encode(), 9)).decode() for n, v in columns.items()}


@lru_cache(maxsize=256)
def _column(text: str) -> list[Any]:
    return json.loads(zlib.decompress(base64.b64decode(text)))  # type: ignore[no-any-return]


def write(path: Path, asked: Mapping[str, Any], archived: Sequence[Mapping[str, Any]]) -> None:
    """Write the records of a table; `asked` has the experiment, profile and arguments."""
    head, cells = {"version": VERSION, **asked}, "".join(map(_line, archived))
    write_atomic(path, (_line(head | {SEAL: _checksum(head, cells)}) + cells).encode())


def packed_configs(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Configurations for the first line of a file: `nodes` has the different values of each node, `configs` their numbers.

    Args:
        configs: name -> configuration; all have the same nodes.
    """
    nodes: dict[str, dict[str, int]] = {}  # node -> its different values, as text -> their numbers
    rows = {}
    for name, config in sorted(configs.items()):
        texts = {node: json.dumps(value, sort_keys=True) for node, value in sorted(config.items())}
        rows[name] = [(ids := nodes.setdefault(node, {})).setdefault(t, len(ids)) for node, t in texts.items()]
    return {"nodes": {node: [*map(json.loads, ids)] for node, ids in nodes.items()}, "configs": rows}


def configs(asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The configurations in the first line of a file, by name; none in a file of an earlier version."""
    nodes, rows = asked.get("nodes", {}), asked.get("configs", {})
    return {name: {node: nodes[node][i] for node, i in zip(nodes, row, strict=True)} for name, row in rows.items()}


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n"


def _checksum(head: Mapping[str, Any], cells: str) -> str:
    """The sha256 of the file's content without the checksum entry."""
    return hashlib.sha256((_line({k: v for k, v in head.items() if k != SEAL}) + cells).encode()).hexdigest()


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the request and the cells.

    Raises:
        StoreError: the file does not exist, is invalid, or has changed since it was written.
    """
    try:
        first, _, cells = path.read_text(encoding="utf-8").partition("\n")
        asked, found = json.loads(first), [*map(json.loads, cells.split("\n")[:-1])]
        if asked.pop(SEAL, None) != _checksum(asked, cells):
            raise ValueError("its checksum is wrong: the file has changed since it was written")
        if any(re.match(r"[+~]*plugins\b", argument) for argument in asked.get("arguments", ())):
            raise ValueError("it names plugins, which only a command may do")
        if asked["version"] != VERSION or any(not {"key", "trained"} <= one.keys() for one in found):
            raise ValueError(f"it has version {asked['version']}, but this code reads {VERSION}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        step = "write it again: python scripts/results.py EXPERIMENT"
        raise StoreError(f"{path} holds no records of a table ({error}); {step}") from error
    return asked, found


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells recorded in a file; none if it does not exist or is damaged, so that it can be written again."""
    try:
        return read(path)[1]
    except StoreError:
        return []


class Trained(Entry):
    """The training of a record: what a table reads of a finished one, without files."""

    def __init__(self, record: Archived) -> None:
        super().__init__(Path(record["training"]))
        self.made = record["made"]
        if curve := record.get("curve"):
            # records of earlier versions have the dev score alone
            scores = {f"dev/{curve['metric']}": curve["dev"]} if "metric" in curve else curve
            self.curve = {k: [*map(float, v)] for k, v in scores.items()}
            self.curve = {"epoch": [i + 1.0 for i in range(max(map(len, self.curve.values())))], **self.curve}

    def provenance(self) -> dict[str, Any]:
        return dict(self.made)


class Tested(Evaluation):
    """An evaluation of a record."""

    def __init__(self, test: Archived) -> None:
        super().__init__(Path(test["evaluation"]))
        self.test = test

    def provenance(self) -> dict[str, Any]:
        return dict(self.test["made"])

    def values(self, name: str) -> dict[int, Any]:
        return dict(enumerate(_column(packed))) if (packed := self.test["examples"].get(name)) else {}


def restore(outlined: Plan, archived: Iterable[Archived]) -> Plan:
    """The plan with its recorded cells, whose results are known; cells without a record are missing (from `NOWHERE`)."""
    by_key = {record["key"]: record for record in archived}

    def restored(cell: Cell) -> Cell:
        named = key(cell.config, cell.family)
        record, cell = by_key.get(named), replace(cell, origin=origin(outlined.experiment, cell))
        if record is None:
            test = TestSet(OWN, named, "")
            return replace(cell, prepared=Prepared(named, ""), tests=(test,), further={}, known_id=named)
        found = results(record, cell.module, cell.config, (OWN, *cell.further))
        tests = tuple(TestSet(name, found.scored[name].sha256, "", facts) for name, facts in found.tests.items())
        prepared = Prepared(found.data_sha256, "", found.facts, found.shortfalls["train"])
        return replace(cell, prepared=prepared, tests=tests, known_id=found.cell_id, known=found)

    return filled(outlined, restored)


def from_records(plan: Plan, where: str) -> Plan:
    """The same plan with an added footer that says that nothing was run for the table."""
    one = plan.experiment
    note = f"From records ({where}): nothing was run for this table."
    return replace(plan, experiment=replace(one, footers=(note, *one.footers)))
