"""Render a table as text, Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repro.files import csv_text, write_atomic
from repro.tables.blocks import CONVERGENCE, MARKS, Block, Row, Table, Value
from repro.tables.statistics import FEWEST, OVER, interval
from repro.tables.verdict import Verdict

WIDEST_LABEL = 48
CSV = (
    "table", "column", "row", "selected", "source", "metric", "mean", "std", "n", "ci95_half", "p_examples", "p_seeds",
    "ours_minus_published", "verdict",
)  # fmt: skip
BEST = "the main score of a row that is shown to be better than every other row that can be ranked."


def grid(block: Block) -> tuple[list[str], list[str], list[list[str]]]:
    """A block as strings: (group line, header line, body). The first column has the row labels."""
    runs = any(row.found for row in block.rows)
    groups = [*[""] * (1 + runs), "ours" if block.published else "", *[""] * (len(block.headers) - 1)]
    headers = ["mapping", *["n"] * runs, *block.headers]
    for name, labels in block.published:
        groups.extend([name, *[""] * (len(labels) - 1)])
        headers.extend(labels)
    verdict = any(block.published)
    if verdict:
        groups.append("")
        headers.append("verdict")
    body = []
    for row in block.rows:
        label = f"{row.label} ({row.detail})" if row.detail else row.label
        line = [label, *[str(len(row.found) or "")] * runs, *(v.text() for v in row.values)]
        line += ["-" if t is None else t.text() for t in row.theirs]
        if verdict:
            line.append(_verdict_text(row))
        body.append(line)
    return groups, headers, body


def further(block: Block) -> list[tuple[str, list[str], list[list[str]]]]:
    """The small tables below a block, as (title, header line, body): intervals, predictions, comparable differences."""
    rows = [row for row in block.rows if not row.baseline]
    runs = {len(v.runs) for row in rows for v in row.values if v.runs}
    over = any(v.error for row in rows for v in row.values)
    few = " and ".join(["the runs"] * (2 in runs) + ["95 % intervals over test examples"] * over)
    title = few if max(runs, default=0) < FEWEST else "95 % intervals over seeds"
    less = f" (of fewer than {FEWEST} seeds: {few})" if few and max(runs) >= FEWEST else ""
    found = differences(block)
    for text, name, more in (
        (Value.spread, title, less),
        (Value.prediction, "95 % prediction intervals for one run with a new seed", ""),
    ):
        shown = [i for i in range(len(block.headers)) if any(text(row.values[i]) for row in rows)]
        body = [[label, *(text(row.values[i]) or "-" for i in shown)] for label, row in zip(block.names, rows)]
        cut = ", cut at the bounds of the score" if any(v.cut(text) for row in rows for v in row.values) else ""
        found += [(f"{name}{cut}{more}", ["mapping", *(block.headers[i] for i in shown)], body)] if _any(body) else []
    if block.comparable:
        columns = block.columns
        body = [
            [row.label, *(row.difference(c, block.against) or "-" for c in range(len(columns)))]
            for row in rows
            if any(v is not None and v.comparable for v in row.verdicts)
        ]
        found.append(("ours minus published, 95 % interval over seeds", ["mapping", *columns], body))
    return found


def differences(block: Block) -> list[tuple[str, list[str], list[list[str]]]]:
    """The small table of the differences from the first row in the main score; nothing if there are none."""
    rows = [(name, row, gain) for name, row in zip(block.names, block.rows) if (gain := row.gain)]
    if block.main is None or not rows:
        return []
    d, over = block.rows[0].values[block.main].decimals, OVER if all(len(g.values) < FEWEST for *_, g in rows) else ""
    told = [f"{g.mean:+.{d}f}{interval(g.printed, len(g.values), d).removesuffix(over)}" for *_, g in rows]
    body = [
        [name, str(len(g.values)), text, "yes" if row.decided else "no"] for (name, row, g), text in zip(rows, told)
    ]
    first = next(name for name, row in zip(block.names, block.rows) if row.values[block.main].summary)
    title = f"{block.headers[block.main]} minus {first}: mean [95 % interval{over}]"
    return [(title, ["mapping", "n", "difference", "shown over seeds"], body)]


def _any(body: Sequence[Sequence[str]]) -> bool:
    return any(text != "-" for line in body for text in line[1:])


def _verdict_text(row: Row) -> str:
    if row.baseline:
        return ""
    said = list(dict.fromkeys(short(v) for v in row.verdicts if v))
    return ", ".join(said) if said else "-"


def short(verdict: Verdict) -> str:
    """The verdict with its first reason; if it is not comparable, without, because a footer has the reasons."""
    more = f", and {len(verdict.why) - 1} more" if len(verdict.why) > 1 else ""
    return f"{verdict.word}: {verdict.why[0]}{more}" if verdict.why and verdict.comparable else verdict.word


def _last(table: Table) -> list[str]:
    return [*table.tested, *table.footers, *(f"Deviation: {text}" for text in table.deviations)]


def to_text(table: Table, widest: int = WIDEST_LABEL) -> str:
    """The table as text for a terminal; row labels longer than `widest` characters are cut."""
    lines = [table.title, f"({table.subtitle})"]
    for block in table.blocks:
        lines += ["", block.label, *([f"  {block.finding}"] if block.finding else [])]
        if block.unavailable:
            lines.append(f"  not run: {block.unavailable}")
            continue
        groups, headers, body = grid(block)
        widths = [max(len(line[i]) for line in (headers, *body)) for i in range(len(headers))]
        widths[0] = min(widths[0], widest)
        if any(groups):
            lines.append("  " + _spans(groups, widths).rstrip())
        lines.append("  " + _aligned(headers, widths))
        lines.append("  " + "-" * (sum(widths) + 2 * len(widths) - 2))
        separated = False
        for line, row in zip(body, block.rows):
            if row.baseline and not separated:
                lines.append("  " + "- " * ((sum(widths) + 2 * len(widths) - 2) // 2))
                separated = True
            lines.append("  " + _aligned(line, widths))
        for title, headers, body in further(block):
            widths = [max(len(line[i]) for line in (headers, *body)) for i in range(len(headers))]
            lines += ["", f"  {title}", "  " + _aligned(headers, widths), *("  " + _aligned(x, widths) for x in body)]
        lines += [*([""] if further(block) else []), *(f"  {footer}" for footer in block.footers)]
    return "\n".join([*lines, "", *_last(table)])


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first = line[0] if len(line[0]) <= widths[0] else line[0][: widths[0] - 1] + "…"
    return "  ".join([first.ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:]))])


def _spans(groups: Sequence[str], widths: Sequence[int]) -> str:
    out, position = "", 0
    for group, width in zip(groups, widths):
        if group:
            out = out.ljust(position) + group + "  "
        position += width + 2
    return out


def to_markdown(table: Table) -> str:
    lines = [f"## {table.title}", "", f"*{table.subtitle}*"]
    for block in table.blocks:
        lines += ["", f"### {block.label}", "", *([block.finding, ""] if block.finding else [])]
        if block.unavailable:
            lines.append(f"not run: {block.unavailable}")
            continue
        runs = any(row.found for row in block.rows)
        _, _, body = grid(block)
        for line, row in zip(body, block.rows):
            first = 2 if runs else 1
            line[first : first + len(row.values)] = [f"**{v.text()}**" if v.best else v.text() for v in row.values]
        ours = "ours " if block.published else ""
        headers = ["mapping", *["n"] * runs, *(f"{ours}{h}" for h in block.headers)]
        headers += [f"{name} {h}" for name, labels in block.published for h in labels]
        headers += ["verdict"] if block.published else []
        lines += _rows(headers, body)
        for title, headers, body in further(block):
            lines += ["", f"{title[0].upper()}{title[1:]}:", "", *_rows(headers, body)]
        lines += _items(block.footers)
    bold = any(v.best for b in table.blocks for r in b.rows for v in r.values)
    last = [*([f"**Bold**: {BEST}"] if bold else []), *_last(table)]
    return "\n".join([*lines, *_items(last)]) + "\n"


def _items(texts: Sequence[str]) -> list[str]:
    return ["", *(f"- {text}" for text in texts)] if texts else []


def _rows(headers: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    cells = ("| " + " | ".join(t.replace("|", "\\|") for t in line) + " |" for line in body)
    return ["| " + " | ".join(headers) + " |", "|---|" + "---:|" * (len(headers) - 1), *cells]


def to_csv(table: Table) -> str:
    """The table as CSV in long format, with one line per number."""
    return csv_text([CSV, *_numbers(table)])


def _numbers(table: Table) -> Iterator[list[Any]]:
    for block in table.blocks:
        published = [f"{name}: {h}" for name, labels in block.published for h in labels]
        for row in block.rows:
            for v in row.values:
                s = v.summary
                numbers = [f"{s.mean:.6g}", _number(s.std), s.n, _number(s.half)] if s else ["", "", 0, ""]
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
    parts = []
    for block in table.blocks:
        if block.unavailable:
            parts.append(f"% {block.label}: not run: {block.unavailable}")
            continue
        _, headers, body = grid(block)
        spans = [("ours", len(block.headers)), *((name, len(labels)) for name, labels in block.published)]
        above = [""] * (len(headers) - sum(n for _, n in spans) - bool(block.published))
        above += [f"\\multicolumn{{{n}}}{{c}}{{{_tex(name)}}}" for name, n in spans]
        above += [""] * bool(block.published)
        caption = f"\\caption{{{_tex(table.title)}: {_tex(block.label)} ({_tex(table.subtitle)})}}"
        columns = f"\\begin{{tabular}}{{l{'r' * (len(headers) - 1)}}}"
        lines = ["\\begin{table}", "\\centering", caption, columns, "\\toprule", " & ".join(above) + " \\\\"]
        lines += [" & ".join(_tex(h) for h in headers) + " \\\\", "\\midrule"]
        lines += [" & ".join(_tex(t) for t in line) + " \\\\" for line in body]
        parts.append("\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]))
    return "\n\n".join(parts) + "\n"


_TEX = str.maketrans(
    {c: f"\\{c}" for c in "&%_#${}"} | {"±": r"$\pm$", "“": "``", "”": "''", "†": r"\dag{}"}
)  # fmt: skip


def _tex(text: str) -> str:
    return text.translate(_TEX)


def write(table: Table, stem: Path) -> list[Path]:
    """Write the table as text, Markdown, CSV and LaTeX, and return the paths; `stem` is the path without the suffix."""
    made = {".txt": to_text(table) + "\n", ".md": to_markdown(table), ".csv": to_csv(table), ".tex": to_latex(table)}
    for suffix, text in made.items():
        write_atomic(stem.with_name(stem.name + suffix), text.encode())
    return [stem.with_name(stem.name + suffix) for suffix in made]
