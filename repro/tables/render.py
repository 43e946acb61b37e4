"""Render a table as text, Markdown, CSV and LaTeX."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repro.files import csv_text, templates, write_atomic
from repro.tables.blocks import CONVERGENCE, MARKS, Block, Table, Value
from repro.tables.statistics import FEWEST, OVER, interval
from repro.tables.verdict import Verdict

WIDEST_LABEL = 48
KEYS = ("table", "column", "row", "selected", "source", "metric")  # columns of the CSV file
NUMBERS = ("mean", "std", "n", "ci95_half", "p_examples", "p_seeds", "ours_minus_published", "verdict")
TEX = str.maketrans({"±": r"$\pm$", "“": "``", "”": "''", "†": r"\dag{}"})
BEST = "the main score of a row that is shown to be better than every other row that can be ranked."
Small = tuple[str, list[str], list[list[str]]]  # a small table below a block: title, header line, body


def grid(block: Block, bold: str = "{}") -> tuple[list[tuple[str, str]], list[list[str]]]:
    """A block as strings: (group, header) of each column, and the body. The first column has the row labels.

    Args:
        bold: how the best score is printed.
    """
    runs = any(row.results for row in block.rows)
    headers = [("", "mapping"), *[("", "n")] * runs, *(("ours" if block.published else "", h) for h in block.headers)]
    headers += [(name, h) for name, labels in block.published for h in labels]
    headers += [("", "verdict")] * bool(block.published)
    body = []
    for row in block.rows:
        label = f"{row.label} ({row.detail})" if row.detail else row.label
        values = [bold.format(v.text()) if v.best else v.text() for v in row.values]
        theirs = ["-" if t is None else t.text() for t in row.theirs]
        words = ", ".join(dict.fromkeys(short(v) for v in row.verdicts if v)) or "-"
        verdict = ["" if row.baseline else words] * bool(block.published)
        body.append([label, *[str(len(row.results) or "")] * runs, *values, *theirs, *verdict])
    return headers, body


def _tabulated(headers: Sequence[str], body: Sequence[Any], form: str) -> str:
    from tabulate import tabulate

    aligned = ("left", *["right"] * (len(headers) - 1))
    return tabulate(body, headers, form, colalign=aligned, disable_numparse=True)


def further(block: Block) -> list[Small]:
    """The small tables below a block: differences, intervals, predictions, comparable differences."""
    rows = block.own
    runs = {len(v.runs) for row in rows for v in row.values if v.runs}
    over = any(v.error for row in rows for v in row.values)
    few = " and ".join(["the runs"] * (2 in runs) + ["95 % intervals over test examples"] * over)
    title = few if max(runs, default=0) < FEWEST else "95 % intervals over seeds"
    less = f" (for fewer than {FEWEST} seeds: {few})" if few and max(runs) >= FEWEST else ""
    tables = differences(block)
    for text, name, more in (
        (Value.spread, title, less),
        (Value.prediction, "95 % prediction intervals for one run with a new seed", ""),
    ):
        shown = [i for i in range(len(block.headers)) if any(text(row.values[i]) for row in rows)]
        body = [[row.name, *(text(row.values[i]) or "-" for i in shown)] for row in rows]
        cut = ", cut at the bounds of the score" if any(v.cut(text) for row in rows for v in row.values) else ""
        tables += [(f"{name}{cut}{more}", ["mapping", *(block.headers[i] for i in shown)], body)] * _any(body)
    return [*tables, *(minus_published(block) if block.comparable else [])]


def minus_published(block: Block) -> list[Small]:
    """The small table of our numbers minus the published ones; in a comparable block, only the comparable rows."""
    rows = [row for row in block.rows if any(v and (v.comparable or not block.comparable) for v in row.verdicts)]
    body = [[row.label, *(row.difference(c, block.against) or "-" for c in range(len(block.columns)))] for row in rows]
    why = "" if block.comparable else " (not comparable: other data, sizes or settings)"
    title = f"ours minus published, 95 % interval over seeds{why}"
    return [(title, ["mapping", *block.columns], body)] if block.comparable or _any(body) else []


def differences(block: Block) -> list[Small]:
    """The small table of the differences from the first row in the main score; nothing if there are none."""
    rows = [(row, gain) for row in block.rows if (gain := row.gain)]
    if block.main is None or not rows:
        return []
    d, over = block.rows[0].values[block.main].decimals, OVER if all(len(g.values) < FEWEST for _, g in rows) else ""
    body = []
    for row, gain in rows:
        difference = f"{gain.mean:+.{d}f}{interval(gain.printed, len(gain.values), d).removesuffix(over)}"
        body.append([row.name, str(len(gain.values)), difference, "yes" if row.decided else "no"])
    first = next(row.name for row in block.rows if row.values[block.main].summary)
    title = f"{block.headers[block.main]}: difference from {first} [95 % interval{over}]"
    return [(title, ["mapping", "n", "difference", "shown over seeds"], body)]


def _any(body: Sequence[Sequence[str]]) -> bool:
    return any(text != "-" for line in body for text in line[1:])


def short(verdict: Verdict) -> str:
    """The verdict with its first reason; without a reason if not comparable, because a footer lists the reasons."""
    more = f", and {len(verdict.why) - 1} more" if len(verdict.why) > 1 else ""
    return f"{verdict.word}: {verdict.why[0]}{more}" if verdict.why and verdict.comparable else verdict.word


def _made(table: Table, form: str, **values: Any) -> str:
    last = [*table.tested, *table.footers, *(f"Deviation: {text}" for text in table.deviations)]
    known = {"grid": grid, "further": further, "markdown": markdown, "tabulated": _tabulated}
    template = templates(Path(__file__).parent / "templates").get_template(f"table.{form}.jinja")
    return template.render(known, table=table, last=last, **values)


def to_text(table: Table, widest: int = WIDEST_LABEL) -> str:
    """The table as text for a terminal; row labels longer than `widest` characters are cut."""
    from tabulate import SEPARATING_LINE

    def plain(block: Block) -> str:
        headers, cells = grid(block)
        body: list[Any] = [
            [label if len(label) <= widest else label[: widest - 1] + "…", *texts] for label, *texts in cells
        ]
        if (baselines := sum(row.baseline for row in block.rows)) < len(body) and baselines:
            body.insert(len(body) - baselines, SEPARATING_LINE)
        said = [g if i == 0 or headers[i - 1][0] != g else "" for i, (g, _) in enumerate(headers)]
        shown = [f"{group}\n{header}" if any(said) else header for group, (_, header) in zip(said, headers)]
        return _tabulated(shown, body, "simple")

    return _made(table, "txt", plain=plain)[:-1]


def to_markdown(table: Table) -> str:
    """The table as Markdown; the best score is bold."""
    bold = any(v.best for block in table.blocks for row in block.rows for v in row.values)
    return _made(table, "md", bold=[f"**Bold**: {BEST}"] * bold)


def markdown(headers: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown; the first column is aligned on the left."""
    cells = ("| " + " | ".join(t.replace("|", "\\|") for t in line) + " |" for line in body)
    return ["| " + " | ".join(headers) + " |", "|---|" + "---:|" * (len(headers) - 1), *cells]


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
                p = [_number(v.p_values.get(kind), 4) for kind in MARKS]
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
