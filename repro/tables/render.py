"""Render a table as text, Markdown, CSV and LaTeX, with every score; Markdown opens with the screen and folds the rest."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repro.files import csv_text, write_atomic
from repro.launch.display import fitted, width
from repro.statistics import FEWEST
from repro.tables import screen
from repro.tables.blocks import CONVERGENCE, Block, Table, Value
from repro.tables.screen import GAP, Column

KEYS = ("table", "column", "row", "selected", "source", "metric")  # columns of the CSV file
NUMBERS = ("mean", "std", "n", "ci95_half", "ours_minus_published", "verdict")
TEX = str.maketrans({"±": r"$\pm$", "“": "``", "”": "''"})
BEST = "the main score of a row that is shown to be better than every other row that can be ranked."
FOLD = '<details markdown="1"><summary>{}</summary>'


def further(block: Block) -> list[tuple[str, list[Column]]]:
    """The small tables below a block, each with its title: intervals and predictions."""
    values = [v for row in block.own for v in row.values]
    runs, over = {len(v.runs) for v in values if v.runs}, any(v.error for v in values)
    few = " and ".join(["Runs"] * (2 in runs) + ["95 % intervals over test examples"] * over)
    many = f"95 % intervals over seeds{f' (for fewer than {FEWEST} seeds: {few})' if few else ''}"
    spread = few if max(runs, default=0) < FEWEST else many
    new = "95 % prediction intervals for one run with a new seed"
    tables = []
    for text, title in ((Value.spread, spread), (Value.prediction, new)):
        shown = [i for i in range(len(block.headers)) if any(text(row.values[i]) for row in block.own)]
        made = [Column(block.headers[i], [text(row.values[i]) or "-" for row in block.own]) for i in shown]
        tables += [(title, [Column("mapping", [row.name for row in block.own]), *made])] * bool(made)
    return tables


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
    subtitle = table.subtitle.replace("*", "\\*")
    lines = [f"## {table.title}", "", f"*{subtitle}*"]
    for block in table.blocks:
        lines += ["", f"### {block.label}", ""]
        if block.unavailable:
            lines.append(f"not run: {block.unavailable}")
            continue
        lines += [block.finding, ""] * bool(block.finding) + [markdown(screen.columns(block, screen.WHOLE, "**{}**"))]
        lines += [*_items(screen.notes(block)), "", FOLD.format("All scores, intervals, data"), ""]
        lines.append(markdown(screen.columns(block, bold="**{}**", whole=True)))
        lines += [text for title, made in further(block) for text in ("", f"{title}:", "", markdown(made))]
        lines += [*_items(block.footers), "", "</details>"]
    lines += [*_items(screen.legend(table)), "", FOLD.format("Runs, code, claims, deviations from the paper")]
    return "\n".join([*lines, *_items([f"**Bold**: {BEST}"] * bold + _last(table)), "", "</details>\n"])


def _items(texts: Sequence[str]) -> list[str]:
    return ["", *(f"- {text}" for text in texts)] if texts else []


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
                numbers: list[Any] = ["", "", 0, ""]
                if s := v.summary:
                    numbers = [*map(_number, (s.mean, s.std)), s.n, _number(s.half() if s.n >= FEWEST else None)]
                source = "baseline" if row.baseline else "ours"
                said = v.note if v.metric == CONVERGENCE else ""
                yield [table.name, block.label, row.label, row.detail, source, v.metric, *numbers, "", said]
            for c, (name, t, verdict) in enumerate(zip(published, row.theirs, row.verdicts)):
                if t is not None:
                    ends = [row.difference(c, block.against), verdict.text if verdict else ""]
                    yield [table.name, block.label, row.label, "", "published", name, t.value, *[""] * 3, *ends]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def to_latex(table: Table) -> str:
    """The table as LaTeX, with one `table` environment per block; needs the package booktabs."""
    from tabulate import tabulate

    parts = []
    for block in table.blocks:
        made = screen.columns(block, whole=True)
        lines, titles = list(zip(*(column.texts for column in made))), [column.title for column in made]
        aligned = ("left", *["right"] * (len(made) - 1))
        body = tabulate(lines, titles, "latex_booktabs", colalign=aligned, disable_numparse=True).translate(TEX)
        told = f"{table.title}: {block.label} ({table.subtitle})"
        caption = re.sub(r"([&%_#${}])", r"\\\1", told).translate(TEX)
        text = f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n{body}\n\\end{{table}}"
        parts.append(f"% {block.label}: not run: {block.unavailable}" if block.unavailable else text)
    return "\n\n".join(parts) + "\n"


def files(table: Table) -> dict[str, str]:
    """The table as text, Markdown, CSV and LaTeX, by the suffix of the file."""
    return {".txt": to_text(table) + "\n", ".md": to_markdown(table), ".csv": to_csv(table), ".tex": to_latex(table)}


def write(table: Table, stem: Path) -> list[Path]:
    """Write the `files` of a table, and return the paths; `stem` is the path without the suffix."""
    for suffix, text in (made := files(table)).items():
        write_atomic(stem.with_name(stem.name + suffix), text.encode())
    return [stem.with_name(stem.name + suffix) for suffix in made]
