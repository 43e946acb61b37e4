"""Single runs as a CSV file, for pandas, R or a spreadsheet: one line per cell and test set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.files import csv_text, write_atomic
from repro.identity import Results
from repro.plan import Plan, text
from repro.store import Store
from repro.tables.blocks import Block
from repro.tables.compare import Lost, groups

Places = Mapping[int, Sequence[tuple[str, str]]]  # id() of a record -> its places in a table: (column, row)


def to_csv(grouped: Sequence[Block], lost: Sequence[Lost] = (), places: Places | None = None) -> str:
    """CSV text with one line per cell and test set, and one per cell without a result.

    The columns are the keys in which settings differ, the seed, the test set, the state of the cell and the reason if it
    is not done; the scores in full precision, those on the test set under the names of the metrics and the others with
    their split (`dev/bleu`); the seconds of training and evaluation together, and the folder of the cell, if it is in a store. With
    `places`, each place of a cell in the table has lines of its own.
    """
    lines: list[dict[str, Any]] = []
    scores: dict[str, None] = {}
    every = [(group, row, r) for group in grouped for row in group.rows for r in row.results]
    keys = dict.fromkeys(key for _, row, _ in every for key in row.point)
    for group, row, r in every:
        first = {"task": group.label, "mapping": row.label, **row.point, "profile": r.config["profile"]["name"]}
        folder = r.folder if r.folder.parts[1:] else ""
        last = {"state": "done", "seconds": r.seconds, "folder": folder, "cell": r.cell_id}
        for column, label in places[id(r)] if places else [("", "")]:
            for name in r.scored or [""]:
                measured = _measured(r, name)
                scores |= dict.fromkeys(measured)
                at = {"column": column, "row": label, "seed": r.seed, "set": name}
                lines.append({**first, **last, **at, **measured})
    for one in lost:
        keys |= dict.fromkeys(one.point)
        at = dict(zip(("column", "row"), one.place))
        told = {"seed": one.seed, "state": one.state, "reason": one.why, "cell": one.cell_id}
        lines.append({"task": one.task, "mapping": one.mapping, **one.point, **at, **told})
    of_sets = [name for name in scores if "/" not in name]
    others = [name for name in scores if "/" in name]
    head = ["column", "row"] * (places is not None) + ["task", "mapping", *keys, "profile", "seed", "set", "state"]
    head += ["reason", *of_sets, *others, "seconds", "folder", "cell"]
    return csv_text([head, *([text(line.get(name, "")) for name in head] for line in lines)])


def _measured(record: Results, name: str) -> dict[str, float]:
    """The scores of a record on one of its test sets, by metric, and those on no test set, as `split/metric`."""
    others = {k: v for k, v in record.metrics.items() if k.rpartition("/")[0] not in record.scored}
    own = {k.rpartition("/")[2]: v for k, v in record.metrics.items() if name and k.rpartition("/")[0] == name}
    return {**own, **others}


def write(plan: Plan, store: Store, path: Path) -> None:
    """Write the cells of an experiment's table, with all grid points, as `to_csv` does."""
    one = plan.experiment
    found: dict[str, Results] = {}
    places: dict[int, list[tuple[str, str]]] = {}
    lost = []
    for slot in plan.slots:
        place = (one.columns[slot.column].key, one.rows[slot.row].label)
        state, record, why = slot.found(store)
        if record is not None:
            places.setdefault(id(found.setdefault(slot.cell_id, record)), []).append(place)
        else:
            at = (slot.training_id, slot.task, slot.mapping, dict(slot.point), slot.seed)
            state = "not run" if state == "queued" else state
            lost.append(Lost(*at, state, why.partition("\n")[0], place))
    write_atomic(path, to_csv(groups(list(found.values())), lost, places).encode())
