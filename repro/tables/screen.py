"""The columns of a table: all, or those of its screen, which a command prints and its report and page open with.

A screen has few scores, and fewer in a narrow terminal; the others are in the table's files.
"""

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from repro.launch.display import WIDEST, cut
from repro.statistics import FEWEST, brackets
from repro.tables.blocks import CONVERGENCE, Block, Row, Table
from repro.tables.findings import UNRANKED
from repro.tables.verdict import Verdict

MOST_SCORES, MOST_ROWS = 3, 30
NARROWEST, WIDE_ENOUGH = 16, 30  # characters of a line of a row's label
WHOLE = 10_000  # a limit that no table reaches
GAP = "  "
LEARNS = "~ training may not have converged: later epochs could change this row"
EXAMPLES = "[95 %] covers the choice of test examples; other runs can differ more"


@dataclass
class Column:
    """A column: its header, the rows' texts, the header of its group; the highest rank is left out first, 0 never."""

    header: str
    texts: list[str]
    rank: int = 0
    group: str = ""

    @property
    def title(self) -> str:
        return f"{self.group} {self.header}".strip()


def rows(block: Block) -> list[Row]:
    """The rows to show: of more than `MOST_ROWS`, the first and those with the best main scores; then the baselines."""
    own, at = block.own, block.main
    if at is not None and len(own) > MOST_ROWS:

        def place(row: Row) -> float:
            known = (summary := row.values[at].summary) and math.isfinite(summary.mean)
            return -row.values[at].better * summary.mean if summary and known else math.inf

        best = {id(row) for row in [own[0], *sorted(own[1:], key=place)[: MOST_ROWS - 1]]}
        own = [row for row in own if id(row) in best]
    return [*own, *(row for row in block.rows if row.baseline)]


def columns(block: Block, limit: int = WIDEST, bold: str = "{}", whole: bool = False) -> list[Column]:
    """The columns of `rows` that fit into `limit` characters, labels first, or with `whole` all; `bold`: of the best score."""
    shown, main = block.rows if whole else rows(block), block.main
    values = block.rows[0].values if block.rows else []
    chosen = [i for i, v in enumerate(values) if v.metric != CONVERGENCE] if whole else _scores(block)
    made = [Column("mapping", [_label(row, whole) for row in shown])]
    if len(runs := {len(row.results) for row in block.own if row.results}) > (not whole):
        made.append(Column("runs", [str(len(row.results) or "") for row in shown]))
    for place, i in enumerate(chosen):
        of_rows = [row.values[i] for row in shown]
        texts = [v.text() if whole else v.mean if v.summary or i == main else "-" for v in of_rows]
        texts = [bold.format(text) if v.best else text for v, text in zip(of_rows, texts)]
        made.append(Column(block.headers[i], texts, 0 if i in (main, chosen[0]) else 5 + 3 * (place > 1)))
        if i == main and not whole and max(runs, default=0) > 1:
            made.append(Column("±", [v.sd.removeprefix("±") for v in of_rows], 6))
    for zeros in [i for i, v in enumerate(values) if v.metric.endswith("zeros") and i not in chosen][:1]:
        texts = [v.mean if (v := row.values[zeros]).summary else "-" for row in shown]
        made.append(Column(block.headers[zeros], texts, 1))
    if main is not None and any(row.gain for row in shown):
        texts = [_gain(row, values[main].decimals, _over_examples([block])) for row in shown]
        header = "first row" + " [95 %]" * any("[" in text for text in texts)
        made.append(Column(header, texts, 2, f"{block.headers[main]}, minus"))
    theirs = [(name, label) for name, labels in block.published for label in labels]
    beside = [c for c, metric in enumerate(block.against) if metric in [values[i].metric for i in chosen]]
    for place, c in enumerate(beside if whole else beside[:MOST_SCORES]):
        texts = ["" if row.baseline else "-" if (t := row.theirs[c]) is None else t.text() for row in shown]
        made.append(Column(theirs[c][1], texts, (3, 7, 9)[min(place, 2)], theirs[c][0]))
    if block.published if whole else block.comparable:
        words = [", ".join(dict.fromkeys(short(v) if whole else v.word for v in row.verdicts if v)) for row in shown]
        made.append(Column("verdict", words, 1))
    if whole and len(values) > len(chosen):
        made.append(Column(block.headers[-1], [row.values[-1].text() for row in shown]))
    while not whole and (worst := max(made, key=lambda c: c.rank)).rank:
        label, widths, _ = _widths(made)
        if min(label, WIDE_ENOUGH) + sum(len(GAP) + width for width in widths) <= limit:
            break
        made.remove(worst)
    return made


def short(verdict: Verdict) -> str:
    """The verdict with its first reason; without a reason if not comparable, because a footer lists the reasons."""
    more = f", and {len(verdict.why) - 1} more" if len(verdict.why) > 1 else ""
    return f"{verdict.word}: {verdict.why[0]}{more}" if verdict.why and verdict.comparable else verdict.word


def _over_examples(blocks: Sequence[Block]) -> bool:
    """Whether no difference is of `FEWEST` runs, so that intervals cover the choice of test examples alone."""
    return all(len(row.gain.values) < FEWEST for block in blocks for row in block.rows if row.gain)


def _gain(row: Row, decimals: int, few: bool) -> str:
    """The difference from the first row with its interval; a star if it is significant."""
    ends = row.gain.printed if row.gain and (few or len(row.gain.values) >= FEWEST) else None
    told = f" {brackets(ends, decimals, '+')}" if ends else ""
    return f"{row.gain.mean:+.{decimals}f}{told}{'*' * row.decided}" if row.gain else ""


def _label(row: Row, whole: bool) -> str:
    detail = f"({row.detail})" if row.detail and (whole or not row.baseline) else ""
    label = f"baseline: {row.label.removesuffix(' baseline')}" if row.baseline else row.label
    return " ".join(filter(None, (label, row.mark, detail)))


def _widths(made: Sequence[Column]) -> tuple[int, list[int], list[str]]:
    """The width of the labels, that of each further column, and the headers of the groups, each as wide as its columns."""
    label, *widths = [max(map(len, (column.header, *column.texts))) for column in made]
    groups = []
    for name, run in itertools.groupby(range(len(widths)), key=lambda i: made[i + 1].group):
        places = list(run)
        widths[places[-1]] += max(0, len(name) - sum(len(GAP) + widths[i] for i in places) + len(GAP))
        groups.append(name.rjust(sum(len(GAP) + widths[i] for i in places) - len(GAP)))
    return label, widths, groups


def _scores(block: Block) -> list[int]:
    """The positions of the scores to show: the first of every test set, then others, `MOST_SCORES` if there are no more sets."""
    values = block.rows[0].values if block.rows else []
    scores = [i for i, v in enumerate(values) if v.better]
    scores.sort(key=lambda i: values[i].metric.startswith("dev/"))
    firsts = {values[i].metric.partition("/")[0]: i for i in reversed(scores)}
    sets = [i for i in scores if i in firsts.values() and not values[i].metric.startswith("dev/")]
    return sorted((sets + [i for i in scores if i not in sets])[: max(MOST_SCORES, len(sets))])


def lines(made: Sequence[Column], limit: int = WHOLE) -> list[str]:
    """The columns as lines of text; labels are broken to fit into `limit` characters."""
    most, widths, groups = _widths(made)
    room = min(most, max(NARROWEST, limit - sum(len(GAP) + width for width in widths)))
    found = [GAP.join([" " * room, *groups]).rstrip()] * any(column.group for column in made)
    for first, *texts in zip(*((column.header, *column.texts) for column in made)):
        parts = [cut(first, room)] if first.startswith("baseline: ") else textwrap.wrap(first, room)
        found.append(GAP.join([parts[0].ljust(room), *(t.rjust(w) for t, w in zip(texts, widths))]).rstrip())
        found += [f"{GAP}{more}" for more in parts[1:]]
    return found


def legend(table: Table) -> list[str]:
    """The meaning of the marks, and what the reader must know of the whole table."""
    marks = {row.mark for block in table.blocks for row in block.own}
    gains = [row.gain.printed for block in table.blocks for row in block.rows if row.gain]
    return [*table.alerts, *[LEARNS] * ("~" in marks), *[EXAMPLES] * (any(gains) and _over_examples(table.blocks))]


def notes(block: Block) -> list[str]:
    """Sentences below a block's table: cells without a result, rows that are left out."""
    left = len(block.rows) - len(rows(block))
    return [*block.alerts, *[f"{left} rows with lower scores are in the table's files."] * bool(left)]


def finding(block: Block) -> str:
    """Which row is the best, or why none is, unless the table's subtitle says it."""
    return "" if UNRANKED in block.finding else block.finding
