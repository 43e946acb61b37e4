"""Find a cell by its folder, by its id, or by a filter that matches exactly one cell."""

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.cell import Cell, read_config
from repro.errors import ConfigError, StoreError, near, nearest
from repro.files import read_json
from repro.identity import pair
from repro.protocol import flatten
from repro.store import Entry, Store, elsewhere, outputs_folder, sources
from repro.tables.compare import conditions, text
from tasks.config.files import names_in

LISTED = 12  # maximum number of matching cells in an error message
SHOWN, REMOVED = 3, 50  # maximum number of files or cells that are named, and of cells in a command
_TOLD: set[Path] = set()
# Keys that may differ between cells but do not distinguish them.
ASIDE = ("runtime", "paths", "logger", "launcher", "origin", "overrides")


def find_cell(outputs: str | Path | None, what: str) -> Path:
    """The folder of the cell that `what` names.

    Args:
        outputs: folder of the store; None for the one that this machine uses.
        what: the folder itself (in the store, or written by `tasks.use.export`); an id or its beginning; or a filter
            `TASK/MAPPING[,KEY=VALUE ...]` that matches exactly one finished cell, e.g. `translation/sparsemax,seed=2`.

    Raises:
        ConfigError: no cell matches, or several do; the message lists the candidates and the keys in which they differ.
    """
    if (Path(what) / "config.yaml").is_file():
        return Path(what).resolve()
    outputs = outputs or outputs_folder()
    entries = list(Store(outputs))
    fitting = [e.folder for e in entries if e.folder.name.startswith(what)]
    if "/" in what or not fitting:
        return _filtered(outputs, what, entries)
    if len(fitting) > 1:
        listed = ", ".join(str(f.relative_to(Path(outputs))) for f in fitting[:LISTED])
        raise ConfigError(f"{what!r} must name one cell in {outputs}, but it matches {listed}")
    return fitting[0]


def _filtered(outputs: str | Path, what: str, entries: list[Entry]) -> Path:
    place, *wanted = what.split(",")
    places = {e: "/".join(e.folder.parts[-3:-1]) for e in entries}
    done = [e for e in entries if places[e] == place.rstrip("/") and e.finished()]
    if not done:
        kinds = {places[e] for e in entries if e.finished()}
        train = "" if near(place, kinds) else f"; {_train(place, outputs)}"
        known = f"finished cells: {', '.join(sorted(kinds)) or 'none'}{train}"
        folder = f"{what} is a folder, but has no config.yaml; " if Path(what).is_dir() else ""
        if place.rstrip("/") in places.values():
            raise ConfigError(f"{folder}no cell of {place!r} in {outputs} is finished; run its training again; {known}")
        raise ConfigError(f"{folder}no finished cell of {place!r} in {outputs}{near(place, kinds)}; {known}")
    if len(done) == 1 and not wanted:
        return done[0].folder
    told = {e.folder: _told(e) for e in done}
    tests = conditions(dict(map(pair, wanted)))
    known = {key for values in told.values() for key in values}
    for key in tests:
        if key not in known:
            raise ConfigError(f"{what!r}: {key!r} is not a key of these cells' configurations{near(key, known)}")
    fitting = {f: v for f, v in told.items() if all(k in v and fits(v[k]) for k, fits in tests.items())}
    if len(fitting) == 1:
        return next(iter(fitting))
    among = fitting or told
    keys = sorted(key for key in known if len({str(values.get(key)) for values in among.values()}) > 1)
    parts = {f: ",".join(f"{k}={text(v[k])}" for k in keys if k in v) for f, v in list(among.items())[:LISTED]}
    lines = [f"  {folder.name}  {part}" for folder, part in parts.items()]
    more = f"\n  ... and {len(among) - LISTED} more" if len(among) > LISTED else ""
    said = f"matches {len(fitting)} cells; name an id, or add a KEY=VALUE" if fitting else "matches none of these"
    raise ConfigError(f"{what!r} {said}:\n" + "\n".join(lines) + more)


def _train(place: str, outputs: str | Path) -> str:
    """The next step if there is no cell of `place`, TASK/MAPPING."""
    typed = zip(place.partition("/")[::2], (names_in("task"), names_in("mapping")))
    task, mapping = (nearest(word, known) for word, known in typed)
    if not task or not mapping:
        return f"to train one: python scripts/train.py task=toy mapping=softmax{elsewhere(outputs)}"
    meant = "" if place == f"{task}/{mapping}" else f"did you mean '{task}/{mapping}'? "
    return f"{meant}to train it: python scripts/train.py task={task} mapping={mapping}{elsewhere(outputs)}"


def _told(entry: Entry) -> dict[str, Any]:
    """A cell's configuration as dotted key -> value."""
    try:
        page = read_config(entry.folder)
    except StoreError:  # an unreadable cell matches no filter
        return {}
    return flatten({k: v for k, v in page.items() if k not in ASIDE})


def of_other_code(cells: Sequence[Cell], store: Store) -> str:
    """A sentence on the finished cells whose code has changed since, with the files and what to do to train them again; or ""."""
    found: dict[Path, list[str]] = {}
    commits: set[str] = set()
    today: dict[str, str] = {}
    for cell in cells:
        for level in (cell.entry(store), *(cell.evaluation(store, test) for test in cell.tests)):
            made = read_json(level.path("provenance.json")) or {}
            if files := sources.changed(made, cell.module, cell.config, today):
                found.setdefault(cell.entry(store).folder, []).extend(files)
                code = made.get("code") or {}
                commits.add(f"{code.get('commit', 'unknown')}{'+changes' if code.get('dirty') else ''}")
    if not found:
        return ""
    files = list(dict.fromkeys(one for each in found.values() for one in each))
    differs = f"{', '.join(files[:SHOWN])}{f' and {len(files) - SHOWN} more' if len(files) > SHOWN else ''}"
    named = [place.relative_to(store.root).as_posix() for place in found]
    which = f"{', '.join(named[:SHOWN])}{f' and {len(named) - SHOWN} more' if len(named) > SHOWN else ''}"
    step = f"rm -r {shlex.join(map(str, [*found][:REMOVED]))}"
    return (
        f"WARNING: {len(found)} of {len(cells)} finished cells were trained or evaluated by other code "
        f"(commit {', '.join(sorted(commits))}) than today's; changed: {differs}. Their results are those of that code: {which}. "
        f"To train {'these' if len(found) <= REMOVED else f'the first {REMOVED}'} again, run this and then the command that trained them: {step}"
    )


def tell_other_code(folder: Path, cell: Cell) -> None:
    """Log once, as a warning, that a cell of a store was trained by other code."""
    if folder in _TOLD or folder.parts[-4:-3] != ("cells",):
        return
    _TOLD.add(folder)
    if told := of_other_code([cell], Store(folder.parents[3])):
        logging.getLogger(__name__).warning("%s", told)
