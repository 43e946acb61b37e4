"""Compare finished cells in files: a table (text, Markdown, CSV), drawings (SVG, CSV) and a page with filters."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.files import write_atomic
from repro.identity import Results
from repro.report import page, sweeps
from repro.report.data import Part, part
from repro.tables import compare, render, runs, screen
from repro.tables.blocks import Block, Table
from repro.tables.compare import Lost

DRAWN = "plots"  # subfolder for the drawings
DASHBOARD = "dashboard.html"
RUNS = "runs.csv"
MOST_LINES = 24  # maximum number of settings that are drawn as lines
Printed = Callable[[Results], Mapping[str, str]]  # a cell -> metric -> the number that a paper prints for it


def write(
    groups: Sequence[Block],
    folder: Path,
    title: str,
    notes: Sequence[str] = (),
    printed: Printed = lambda record: {},
    lost: Sequence[Lost] = (),
) -> tuple[Table, list[Path]]:
    """Compare finished cells; write table.{txt,md,csv,tex}, runs.csv, plots/*.{svg,csv} and dashboard.html in `folder`.

    Args:
        groups: of `compare.groups`.
        notes: sentences to print below the table.
        printed: the papers' numbers, for the page.
        lost: the cells without a result.

    Returns:
        The table, and the paths of the files.
    """
    table, files = contents(groups, title, notes, lost)
    files[RUNS] = runs.to_csv(groups, lost)
    made = part(dashboard, groups, table, printed)
    if made.note:
        logging.getLogger(__name__).warning("no %s: %s", DASHBOARD, made.note)
    else:
        files[DASHBOARD] = made.content
    for name, content in files.items():
        write_atomic(folder / name, content.encode())
    return table, [folder / name for name in files]


def contents(
    groups: Sequence[Block], title: str, notes: Sequence[str] = (), lost: Sequence[Lost] = ()
) -> tuple[Table, dict[str, str]]:
    """The table, and the content of the files that `write` writes (path -> text)."""
    table = compare.table(groups, "table", title, notes, lost)
    files = {f"table{suffix}": text for suffix, text in render.files(table).items()}
    for block in table.blocks:
        drawings = part(sweeps.pictures, block)
        if drawings.note:
            logging.getLogger(__name__).warning("%s: %s", block.label, drawings.note)
        for drawn in drawings.content or ():
            files |= {f"{DRAWN}/{drawn.name}.svg": drawn.svg, f"{DRAWN}/{drawn.name}.csv": drawn.data}
    return table, files


def dashboard(groups: Sequence[Block], table: Table, printed: Printed = lambda record: {}) -> str:
    """A page of all cells of a table with selects that filter by task, data, mapping and seed.

    Each task has a view of all seeds, and one of each seed if there are several, so that every mean and interval is
    computed here; the selects only show and hide.
    """
    records = [r for group in groups for row in group.rows for r in row.results]
    seeds = sorted({r.seed for r in records})
    views = [
        {
            "anchor": f"v{seed}g{i}",
            "seed": str(seed),
            "task": group.label,
            **_view(compare.measured(group, seed), printed),
        }
        for seed in ("", *(seeds if len(seeds) > 1 else ()))
        for i, group in enumerate(groups)
        if any(seed in ("", r.seed) for row in group.rows for r in row.results)
    ]
    filters = {
        name: list(dict.fromkeys(r.config[name]["name"] for r in records)) for name in ("task", "data", "mapping")
    }
    template = page.environment().get_template("dashboard.html.jinja")
    written = time.strftime("%Y-%m-%d %H:%M %Z")
    filters |= {"seed": seeds}
    return template.render(table=table, legend=screen.legend(table), views=views, filters=filters, written=written)


def _view(block: Block, printed: Printed) -> dict[str, Any]:
    """The template's values for a task. With more than `MOST_LINES` settings, only the sweeps are drawn."""
    for row in block.own:
        numbers = printed(row.results[0])
        for value in row.values:
            value.printed = numbers.get(value.metric, "")
    scores = [value.metric for value in block.rows[0].values if value.better]
    figures, main = part(sweeps.pictures, block), "" if block.main is None else block.rows[0].values[block.main].metric
    if len(block.own) <= MOST_LINES:
        selects = next((m for m in scores if m.startswith("dev/")), "")
        return page.view(block, selects, [main, *scores], (main or "test/").partition("/")[0]) | {"figures": figures}
    note = (
        f"{len(block.own)} settings are too many for one drawing; run the command with mapping=NAME or another filter."
    )
    drawn = dict.fromkeys(("main", "curves", "heat", "samples"), Part(note=note))
    return page.of_screen(block) | drawn | {"figures": figures}
