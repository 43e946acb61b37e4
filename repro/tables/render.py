"""Render a table as text, Markdown, CSV and LaTeX, with every score; Markdown opens with the screen and folds the rest."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repro.files import csv_text, templates, write_atomic
from repro.launch.display import fitted, width
from repro.tables import screen
from repro.tables.blocks import CONVERGENCE, TESTS, Block, Table, Value
from repro.tables.screen import GAP, Column
from repro.tables.statistics import FEWEST

KEYS = ("table", "column", "row", "selected", "source", "metric")  # columns of the CSV file
NUMBERS = ("mean", "std", "n", "ci95_half", "p_examples", "p_seeds", "ours_minus_published", "verdict")
TEX = str.maketrans({"±": r"$\pm$", "“": "``", "”": "''"})
BEST = "the main score of a row that is shown to be better than every other row that can be ranked"
Small = tuple[str, list[Column]]  # a small table below a block, with its title


def _tabulated(made: Sequence[Column]) -> str:
    from tabulate import tabulate

    aligned, body = ("left", *["right"] * (len(made) - 1)), list(zip(*(column.texts for column in made)))
    titles = [column.title for column in made]
    return tabulate(body, titles, "latex_booktabs", colalign=aligned, disable_numparse=True)


def further(block: Block) -> list[Small]:
    """The small tables below a block: intervals and predictions."""
    rows = block.own
    runs = {len(v.runs) for row in rows for v in row.values if v.runs}
    over = any(v.error for row in rows for v in row.values)
    few = " and ".join(["the runs"] * (2 in runs) + ["95 % intervals over test examples"] * over)
    title = few if max(runs, default=0) < FEWEST else "95 % intervals over seeds"
    less = f" (for fewer than {FEWEST} seeds: {few})" if few and max(runs) >= FEWEST else ""
    tables = []
    for text, name, more in (
        (Value.spread, title, less),
        (Value.prediction, "95 % prediction intervals for one run with a new seed", ""),
    ):
        shown = [i for i in range(len(block.headers)) if any(text(row.values[i]) for row in rows)]
        made = [Column(block.headers[i], [text(row.values[i]) or "-" for row in rows]) for i in shown]
        cut = ", cut at the bounds of the score" if any(v.cut(text) for row in rows for v in row.values) else ""
        told = f"{name}{cut}{more}"
        tables += [(f"{told[:1].upper()}{told[1:]}", [Column("mapping", [r.name for r in rows]), *made])] * bool(made)
    return tables


def _made(table: Table, form: str, **values: Any) -> str:
    known = {"further": further, "markdown": markdown, "tabulated": _tabulated, "screen": screen, "last": _last(table)}
    template = templates(Path(__file__).parent / "templates").get_template(f"table.{form}.jinja")
    return template.render(known, table=table, **values)


def _last(table: Table) -> list[str]:
    """What stands below all columns."""
    return [*table.tested, *table.footers, *(f"Deviation: {text}" for text in table.deviations)]


def to_screen(table: Table) -> str:
    """The screen, as wide as the terminal."""
    limit, lines = width(), [fitted(table.title), fitted(table.subtitle)]
    for block in table.blocks:
        lines += ["", fitted(block.label)]
        if block.unavailable:
            lines.append(fitted(f"not run: {block.unavailable}", GAP))
            continue
        lines += [GAP + line for line in screen.lines(screen.columns(block, limit - len(GAP)), limit - len(GAP))]
        lines += [fitted(note, GAP) for note in (*screen.notes(block), screen.finding(block)) if note]
    return "\n".join([*lines, *map(fitted, screen.legend(table))])


def to_text(table: Table) -> str:
    """The table as text with all columns, for a file."""
    lines = [table.title, f"({table.subtitle})"]
    for block in table.blocks:
        tables = [("", screen.columns(block, whole=True)), *further(block)]
        shown = [line for title, made in tables for line in ("", title, *screen.lines(made))][2:]
        shown = [f"not run: {block.unavailable}"] if block.unavailable else [block.finding, *shown, ""]
        lines += ["", block.label, *(GAP + x for x in (*shown, *screen.notes(block), *block.footers))]
    return "\n".join(line.rstrip() for line in [*lines, "", *screen.legend(table), *_last(table)])


def to_markdown(table: Table) -> str:
    """The table as Markdown: the screen, and everything else folded; the best score is bold."""
    bold = any(v.best for block in table.blocks for row in block.rows for v in row.values)
    return _made(table, "md", bold=[f"**Bold**: {BEST}."] * bold)


def markdown(made: Sequence[Column]) -> str:
    """Columns as a table in Markdown; the first one is aligned on the left."""
    lines = [[column.title for column in made], *zip(*(column.texts for column in made))]
    head, *cells = ("| " + " | ".join(t.replace("|", "\\|") for t in line) + " |" for line in lines)
    return "\n".join([head, "|---|" + "---:|" * (len(made) - 1), *cells])


def to_csv(table: Table) -> str:
    """The table as CSV in long format, with one line per number."""
    return csv_text([(*KEYS, *NUMBERS), *_numbers(table)])


def _numbers(table: Table) -> Iterator[list[Any]]:
    for block in table.blocks:
        published = [f"{name}: {h}" for name, labels in block.published for h in labels]
        for row in block.rows:
            for v in row.values:
                s = v.summary
                numbers = (
                    [f"{s.mean:.6g}", _number(s.std), s.n, _number(s.half() if s.n >= FEWEST else None)]
                    if s
                    else ["", "", 0, ""]
                )
                p = [_number(v.p_values.get(kind), 4) for kind in TESTS]
                source = "baseline" if row.baseline else "ours"
                said = v.note if v.metric == CONVERGENCE else ""
                yield [table.name, block.label, row.label, row.detail, source, v.metric, *numbers, *p, "", said]
            for c, (name, t, verdict) in enumerate(zip(published, row.theirs, row.verdicts)):
                if t is not None:
                    ends = [row.difference(c, block.against), verdict.text if verdict else ""]
                    yield [table.name, block.label, row.label, "", "published", name, t.value, *[""] * 5, *ends]


def _number(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def to_latex(table: Table) -> str:
    """The table as LaTeX, with one `table` environment per block; needs the package booktabs."""

    def escaped(title: str) -> str:
        return re.sub(r"([&%_#${}])", r"\\\1", title).translate(TEX)

    return _made(table, "tex", escaped=escaped, tex=TEX)


def write(table: Table, stem: Path) -> list[Path]:
    """Write the table as text, Markdown, CSV and LaTeX, and return the paths; `stem` is the path without the suffix."""
    made = {".txt": to_text(table) + "\n", ".md": to_markdown(table), ".csv": to_csv(table), ".tex": to_latex(table)}
    for suffix, text in made.items():
        write_atomic(stem.with_name(stem.name + suffix), text.encode())
    return [stem.with_name(stem.name + suffix) for suffix in made]
