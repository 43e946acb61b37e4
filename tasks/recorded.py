"""Tables from the small records of their cells (`sparse_attention.repro.archive`): written, printed again, checked.

`docs/results/records/<experiment>_<profile>.jsonl` holds the records of a table; the pages of docs/results and README print it.
`check` builds each table from its records and holds every number of the pages against it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparse_attention.repro import archive, render, table
from sparse_attention.repro.blocks import Table
from sparse_attention.repro.identity import family
from sparse_attention.repro.store import Store
from tasks import compose, reproduce

RESULTS = compose.ROOT / "docs" / "results"
FOLDER = "records"
HERE = ("paths", "runtime", "launcher", "logger")  # arguments that say where and how; so do these two of data:
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


def build(name: str, overrides: Sequence[str], path: Path, say: bool = True) -> Table:
    """The table of an experiment from the records of a file; what they lack is missing in it.

    Args:
        say: a line below the table that it comes from records.
    """
    _, found = archive.read(path)
    (one,), rest = reproduce.asked([name], overrides)
    (wanted,) = reproduce.outline([one], rest)
    with tempfile.TemporaryDirectory() as work:
        store = Store(work)
        plan = archive.restore(one, wanted, found, store, rest)
        plan = archive.from_records(plan, f"{FOLDER}/{path.name}") if say else plan
        printed = compose.published(one.published) if one.published else []
        return table.build(plan, store, printed, docs=reproduce.DOCS)


def of_file(path: Path) -> Table:
    """The table that a file of records was written for."""
    asked, _ = archive.read(path)
    return build(asked["experiment"], [f"profile={asked['profile']}", *asked["arguments"]], path, say=False)


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


def tables(results: Path = RESULTS) -> dict[Path, Table]:
    """Every file of records below `results` -> its table."""
    return {path: of_file(path) for path in sorted((results / FOLDER).glob("*.jsonl"))}


def check(results: Path = RESULTS) -> Checked:
    """Hold every page against the tables that its records give."""
    computed: dict[tuple[str, str, str], Printed] = {}
    for made in tables(results).values():
        computed |= {one.place: one for one in blocks(render.to_markdown(made))}
    done = Checked()
    for path in pages(results):
        text, page, inside = path.read_text(encoding="utf-8"), str(path.relative_to(results.parents[1])), 0
        for one in blocks(text, page):
            of_rows = sum(numbers(t) for cells in one.rows.values() for t in cells.values())
            inside += of_rows + sum(map(numbers, one.lines))
            if one.place not in computed:
                where = [one.title, f"profile {one.profile}" if one.profile else "", one.label]
                done.unknown.append(f"{page}: {', '.join(filter(None, where))}")
                continue
            done.compared += of_rows
            done.wrong += [f"{page}: {one.label}: {what}" for what in differences(one, computed[one.place])]
        done.prose += numbers(text) - inside
    return done


def write_pages(results: Path = RESULTS) -> list[str]:
    """Put the records' tables in the place of those that the pages have; the pages that changed."""
    made = {
        (t.title, t.subtitle.split(";")[0].removeprefix("profile ")): render.to_markdown(t)
        for t in tables(results).values()
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
