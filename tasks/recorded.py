"""Tables from the small records of their cells (`sparse_attention.repro.archive`): written, printed again, checked.

`docs/results/records/<experiment>_<profile>.jsonl` holds the records of a table; the pages of docs/results and README print it.
`check` builds each table from its records and holds every number of the pages against it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparse_attention.repro import archive, compare, records, render, table
from sparse_attention.repro.blocks import Table
from sparse_attention.repro.identity import family
from sparse_attention.repro.plan import Plan
from sparse_attention.repro.store import Store
from tasks import comparing, compose, reproduce
from tasks.multilabel import figures

RESULTS = compose.ROOT / "docs" / "results"
FOLDER = "records"
HERE = ("paths", "runtime", "launcher", "logger")  # arguments that say where and how; so do these two of data:
OF_SWEEP = ("module", "metrics", "seconds", "data_sha256", "recipe")
MIRRORS = ("data.mirror=", "data.path=")


def file_of(name: str, profile: str, results: Path = RESULTS) -> Path:
    """Where the records of a table lie."""
    return results / FOLDER / f"{name}_{profile}.jsonl"


def record(name: str, overrides: Sequence[str], results: Path = RESULTS) -> tuple[Path, int, list[str]]:
    """Write the records of an experiment's table from the store `paths.outputs`; reads no data.

    Args:
        overrides: those of scripts/reproduce.py.
    Returns:
        the file, how many cells it has, and a sentence for each cell that the store lacks.
    Raises:
        ValueError: wrong names or configurations. StoreError: a damaged cell.
    """
    (one,), rest = reproduce.asked([name], overrides)
    (wanted,) = reproduce.outline([one], rest)
    found, lost = archive.collect(wanted, Store(wanted[0].config["paths"]["outputs"]))
    kept = [o for o in overrides if o.split("=")[0].split(".")[0] not in HERE and not o.startswith(MIRRORS)]
    path = file_of(name, one.profile, results)
    if found:
        archive.write(path, {"experiment": name, "profile": one.profile, "arguments": kept}, found)
    return path, len(found), lost


def record_sweep(name: str, outputs: Path, results: Path = RESULTS) -> tuple[Path, int]:
    """Write the records of a sweep's table from a store; the file and how many cells it has. Raises ValueError: no such sweep."""
    store = Store(outputs)
    cells, _ = comparing.select(store, {"sweep": name})
    title = (store.root / "sweeps" / name / "table.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("## ")
    found = [
        {"key": one.cell_id, **{k: getattr(one, k) for k in OF_SWEEP}, "tests": {k: vars(v) for k, v in one.tests.items()},
         "config": {k: v for k, v in one.config.items() if k not in HERE}} for one in cells
    ]  # fmt: skip
    path = results / FOLDER / f"sweep_{name}.jsonl"
    archive.write(path, {"sweep": name, "title": title}, found)
    return path, len(found)


def _of_sweep(title: str, found: Sequence[Mapping[str, Any]]) -> Table:
    """The table of a sweep's records."""
    cells = [
        records.Record(Path(one["key"]), config=one["config"], tests={k: records.Scored(**v) for k, v in one["tests"].items()},
                       **{k: one[k] for k in OF_SWEEP}) for one in found
    ]  # fmt: skip
    return compare.table(compare.groups(cells), "table", title)


def build(name: str, overrides: Sequence[str], path: Path, say: bool = True) -> Table:
    """The table of an experiment from the records of a file; what they lack is missing in it.

    Args:
        say: a line below the table that it comes from records.
    """
    with _restored(name, overrides, path) as (plan, store):
        return _table(archive.from_records(plan, f"{FOLDER}/{path.name}") if say else plan, store)


@contextmanager
def _restored(name: str, overrides: Sequence[str], path: Path) -> Iterator[tuple[Plan, Store]]:
    """The plan of an experiment and a store, for as long as the block runs, with what the records of a file hold of it."""
    _, found = archive.read(path)
    (one,), rest = reproduce.asked([name], overrides)
    (wanted,) = reproduce.outline([one], rest)
    with tempfile.TemporaryDirectory() as work:
        store = Store(work)
        yield archive.restore(one, wanted, found, store, rest), store


def _table(plan: Plan, store: Store) -> Table:
    one = plan.experiment
    return table.build(
        plan, store, compose.published(one.published), docs=reproduce.DOCS, claims=compose.claims(one.paper)
    )


def of_file(path: Path) -> Table:
    """The table that a file of records was written for."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Table, str]:
    """The table of a file of records, and what else pages print of its cells: the points of Laha et al. 2018's generated documents."""
    asked, found = archive.read(path)
    if "sweep" in asked:
        return _of_sweep(asked["title"], found), ""
    arguments = [f"profile={asked['profile']}", *asked["arguments"]]
    with _restored(asked["experiment"], arguments, path) as (plan, store):
        cells = [(plan.experiment.rows[s.row].label, s.cell.config, s.cell.found(store)) for s in plan.slots]
        points = figures.collect((row, config, one.metrics) for row, config, one in cells if one is not None)
        return _table(plan, store), figures.page(points) if points else ""


def show(names: Sequence[str], overrides: Sequence[str], results: Path) -> int:
    """Print tables from their records and write them to <outputs>/tables/..._from_records; nothing is run.

    Args:
        overrides: those of scripts/reproduce.py; without any that say what to run, the table as it was recorded.
        results: the folder with the records.
    Returns:
        exit status: 0, 1 when records of cells are missing.
    Raises:
        ValueError: wrong names or configurations. StoreError: no records.
    """
    status = 0
    for name in names:
        profile = next((o[8:] for o in reversed(overrides) if o.startswith("profile=")), "demo")
        path = file_of(name, profile, results)
        told, found = archive.read(path)
        asks = any(o.split("=")[0].split(".")[0] not in (*HERE, "profile") for o in overrides)
        given = [*overrides, *([] if asks else told["arguments"])]
        (one,), rest = reproduce.asked([name], given)
        (wanted,) = reproduce.outline([one], rest)
        lost = len({archive.key(w.config, family(w.module)) for w in wanted} - {record["key"] for record in found})
        made = build(name, given, path)
        print(render.to_text(made))
        if lost:
            total = len({archive.key(w.config, family(w.module)) for w in wanted})
            print(f"{lost} of {total} cells have no records; without records={results} they are run")
        stem = Path(wanted[0].config["paths"]["outputs"]) / "tables" / f"{name}_{profile}_from_records"
        print(f"table: {stem} ({', '.join(p.suffix for p in render.write(made, stem))})")
        status |= bool(lost)
    return status


# ---- pages


@dataclass
class Printed:
    """A block as a page prints it: `rows`: (line above the table, label) -> header -> text; `lines`: what stands below."""

    page: str
    title: str
    profile: str
    label: str
    rows: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, str, str]:
        return self.title, self.profile, self.label


_CELLS = re.compile(r"(?<!\\)\|")
_NUMBER = re.compile(r"\d[\d,]*\.?\d*|\.\d+")


def blocks(text: str, page: str = "") -> Iterator[Printed]:
    """The blocks of all tables that stand in a page as `render.to_markdown` writes them, and other tables with numbers."""
    title, profile, block, headers, above = "", "", None, [], ""
    for line in [*text.splitlines(), "## "]:
        if line.startswith(("## ", "### ")) and block is not None:
            if any(numbers(text) for cells in block.rows.values() for text in cells.values()):
                yield block
            block = None
        if line.startswith("## "):
            title, profile = line[3:], ""
            block, headers, above = Printed(page, title, "", ""), [], ""
        elif line.startswith("*profile ") and title:
            profile = re.split(r"[;*]", line[9:])[0].strip()
        elif line.startswith("### "):
            block, headers, above = Printed(page, title, profile, line[4:]), [], ""
        elif block is not None and line.startswith("|"):
            cells = [c.strip().replace("**", "") for c in _CELLS.split(line)[1:-1]]
            if headers and not line.startswith("|-"):
                block.rows[above, cells[0]] = dict(zip(headers[1:], cells[1:]))
            headers = headers or [c.removeprefix("ours ") for c in cells]
        elif block is not None and line.strip():
            headers = []
            if line.startswith("- "):
                block.lines.append(line)
            else:
                above = line


def numbers(text: str) -> int:
    """How many there are."""
    return len(_NUMBER.findall(text))


def differences(printed: Printed, computed: Printed) -> list[str]:
    """Everything on the page that is not what its records give."""
    found = []
    for (above, label), cells in printed.rows.items():
        ours = computed.rows.get((above, label))
        if ours is None:
            found.append(f"row {label!r} {above} is not in the records' table")
            continue
        for header, text in cells.items():
            if header not in ours:
                found.append(f"{label}, {header}: the records' table has no such column")
            elif ours[header] != text:
                found.append(f"{label}, {header}: the page has {text!r}, the records give {ours[header]!r}")
    tables = {above for above, _ in printed.rows}
    lost = [label for above, label in computed.rows if above in tables and (above, label) not in printed.rows]
    found += [f"row {label!r} is missing on the page" for label in lost]
    same_words = {_NUMBER.sub("#", line): line for line in computed.lines}
    for line in printed.lines:
        other = same_words.get(_NUMBER.sub("#", line))
        if line not in computed.lines and other is not None:
            found.append(f"the page has {line!r}, the records give {other!r}")
    return found


def excerpt(printed: Printed, computed: Iterable[Printed]) -> list[str] | None:
    """What differs where a table of a page has some rows and columns of a computed one, marks of significance and spreads left out at will;
    None: of none of them."""
    wanted = {label: cells for (_, label), cells in printed.rows.items()}
    for one in computed:
        ours = {
            label: cells for (_, label), cells in reversed(one.rows.items()) if label in wanted
        }  # the main table comes first
        if wanted.keys() <= ours.keys() and all(cells.keys() <= ours[label].keys() for label, cells in wanted.items()):
            return [
                f"{label}, {header}: the page has {text!r}, the records give {ours[label][header]!r}"
                for label, cells in wanted.items() for header, text in cells.items()
                if text and f"{ours[label][header].rstrip('*†')} ".find(f"{text} ") != 0
            ]  # fmt: skip
    return None


@dataclass
class Checked:
    """What became of the pages: wrong numbers, blocks without records, numbers compared and numbers in prose."""

    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    compared: int = 0
    prose: int = 0

    def text(self) -> str:
        lines = [f"WRONG {one}" for one in self.wrong] + [f"no records: {one}" for one in self.unknown]
        return "\n".join(
            [
                *lines,
                f"{self.compared:,} numbers of tables recomputed from their cells' records, {len(self.wrong)} differences; "
                f"{len(self.unknown)} blocks have no records; {self.prose:,} numbers in prose are not checked",
            ]
        )


def pages(results: Path = RESULTS) -> list[Path]:
    """README and every page below `results`."""
    return [path for path in (results.parents[1] / "README.md",) if path.is_file()] + sorted(results.rglob("*.md"))


def files(results: Path = RESULTS) -> list[Path]:
    """Every file of records below `results`."""
    return sorted((results / FOLDER).glob("*.jsonl"))


def check(results: Path = RESULTS) -> Checked:
    """Hold every page against the tables that its records give."""
    computed: dict[tuple[str, str, str], Printed] = {}
    for path in files(results):
        made, more = _read(path)
        computed |= {one.place: one for text in (render.to_markdown(made), more) for one in blocks(text)}
    done = Checked()
    for path in pages(results):
        text, page, inside = path.read_text(encoding="utf-8"), str(path.relative_to(results.parents[1])), 0
        for one in blocks(text, page):
            of_rows = sum(numbers(t) for cells in one.rows.values() for t in cells.values())
            inside += of_rows + sum(map(numbers, one.lines))
            part = excerpt(one, computed.values()) if one.place not in computed else None
            if part is not None:
                done.compared += of_rows
                done.wrong += [f"{page}: {one.title}: {what}" for what in part]
            elif one.place not in computed:
                where = [one.title, f"profile {one.profile}" if one.profile else "", one.label]
                done.unknown.append(f"{page}: {', '.join(filter(None, where))}")
            else:
                done.compared += of_rows
                done.wrong += [f"{page}: {one.label}: {what}" for what in differences(one, computed[one.place])]
        done.prose += numbers(text) - inside
    return done


def write_pages(results: Path = RESULTS) -> list[str]:
    """Put the records' tables in the place of those that the pages have; the pages that changed."""
    made = {
        (t.title, t.subtitle.split(";")[0].removeprefix("profile ")): render.to_markdown(t)
        for t in map(of_file, files(results))
    }
    changed = []
    for path in pages(results):
        old = path.read_text(encoding="utf-8")
        new = "".join(_section(part, made) for part in re.split(r"(?m)^(?=## )", old))
        if new != old:
            path.write_text(new, encoding="utf-8")
            changed.append(str(path.relative_to(results.parents[1])))
    return changed


def _section(part: str, made: Mapping[tuple[str, str], str]) -> str:
    title, profile = re.match(r"## (.*)", part), re.search(r"(?m)^\*profile (\w+)", part)
    new = made.get((title[1], profile[1])) if title and profile else None
    return part if new is None else new + ("\n" if part.endswith("\n\n") else "")
