"""Attention heat maps as inline SVG, with one panel for each row of the table.

Source tokens run across and output tokens run down, as in alignment figures. Exact zeros are grey; any other weight is
drawn on white. Neighbours of equal weight form one rectangle without inner borders, which shows the segments of a
mapping that fuses them. Equal weights that are not all neighbours share a letter, which shows groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from repro.report.data import Line, Missing, scores
from repro.report.samples import Records

EXAMPLES = 3
MOST_SOURCE, MOST_TARGET = 48, 36  # maximum number of tokens drawn; longer examples are cut, and a note says so
CELL, LEVELS = 15, 12
LONGEST_LABEL = 15
EQUAL = 1e-6  # relative difference up to which weights count as equal (float32 noise)
TOKENS = ("source_tokens", "output_tokens")  # of a record
LETTERS = "abcdefghijklmnopqrstuvwxyz"
Panel = tuple[Line, Any, Sequence[str], Sequence[str], Mapping[str, Any]]  # row, weights [T, S], S and T tokens, record


def heat_maps(lines: Sequence[Line], records: Records, split: str) -> list[dict[str, Any]]:
    """Drawings of the `examples`. Raises `Missing` if there are none."""
    return [_example(index, panels, split) for index, panels in examples(lines, records, split).items()]


def examples(lines: Sequence[Line], records: Records, split: str) -> dict[int, list[Panel]]:
    """Up to three examples of medium length for which every row has stored attention weights: index -> panels.

    Raises `Missing` if there is no such example.
    """
    from safetensors import safe_open

    rows = [(line, by_index) for line, by_index in zip(lines, records) if by_index and _file(line, split).is_file()]
    if not rows:
        raise Missing("No attention weights are stored for this column.")
    stored: list[set[int]] = []
    for line, by_index in rows:
        with safe_open(_file(line, split), framework="numpy") as file:
            held = {int(n.rpartition("/")[2]) for n in file.keys() if n.startswith(f"{split}/")}  # noqa: SIM118 (no mapping)
        stored.append({i for i in held if i in by_index and by_index[i].get("source_tokens")})
    chosen = choose(set.intersection(*stored), [by_index for _, by_index in rows])
    if not chosen:
        raise Missing("The rows of this column have stored attention weights for no test example in common.")
    panels: dict[int, list[Panel]] = {index: [] for index in chosen}
    for line, by_index in rows:
        with safe_open(_file(line, split), framework="numpy") as file:
            for index in chosen:
                weights, record = file.get_tensor(f"{split}/{index}"), by_index[index]
                source, outputs = ([str(t) for t in record.get(key) or [""]] for key in TOKENS)
                weights = weights.reshape(-1, weights.shape[-1])  # [T, S]; a classifier's single row becomes T = 1
                if "image" in record:  # for an image, the source tokens are the rows of the image
                    weights, source, outputs = weights.T, outputs, source
                panels[index].append((line, weights, source, outputs, record))
    return panels


def _file(line: Line, split: str):
    return line.found[0].evaluations[split].path("attention.safetensors")


def choose(indices: set[int], records: Sequence[Mapping[int, Mapping[str, Any]]]) -> list[int]:
    """The examples whose length is closest to the median length.

    The length is the number of source tokens plus the mean number of output tokens over the rows.
    """

    def length(index: int) -> float:
        outputs = [len(r[index].get("output_tokens") or ()) for r in records]
        return len(records[0][index]["source_tokens"]) + sum(outputs) / len(outputs)

    ordered = sorted(indices, key=lambda i: (length(i), i))
    if not ordered:
        return []
    median = length(ordered[len(ordered) // 2])
    return sorted(sorted(ordered, key=lambda i: (abs(length(i) - median), i))[:EXAMPLES])


def _example(index: int, panels: Sequence[Panel], split: str) -> dict[str, Any]:
    drawn, cut = [], False
    for line, weights, source, outputs, _ in panels:
        cut = cut or weights.shape[1] > MOST_SOURCE or weights.shape[0] > MOST_TARGET
        zeros, support = (scores(line, f"{split}/attention_{name}")[:1] for name in ("zeros", "support"))
        facts = ", ".join([*(f"{v:.0%} zeros" for v in zeros), *(f"support {v:.1f}" for v in support)])
        svg = draw(source, outputs, weights[:MOST_TARGET, :MOST_SOURCE], line.label)
        drawn.append({"label": line.label, "style": line.style, "facts": facts, "svg": svg})
    first = panels[0][-1]
    references = [str(r) for r in first.get("references", ())]
    question = str(first.get("source", "")) if "image" in first else ""
    note = f"Cut to the first {MOST_SOURCE} source and {MOST_TARGET} output tokens." if cut else ""
    found = {"index": index, "references": references, "panels": drawn, "note": note, "source": question}
    return found | {"key": first.get("image")}


def draw(source: Sequence[str], outputs: Sequence[str], weights: Any, label: str) -> Markup:
    """The SVG of a panel with the title `label`: source tokens [S], output tokens [T], attention weights [T, S]."""
    steps, tokens = weights.shape
    left = 10 + round(6.6 * max((len(_cut(t)) for t in outputs[:steps]), default=0))
    top = 10 + round(5.1 * max((len(_cut(t)) for t in source[:tokens]), default=0))  # labels lean at 60 degrees
    lean = 4 + 4 * len(_cut(source[tokens - 1]))  # how far the last label leans out of the panel
    width, height = left + tokens * CELL + lean, top + steps * CELL + 2
    parts = [f'<svg class="heat" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">']
    for i, token in enumerate(source[:tokens]):
        at = f"{left + i * CELL + CELL * 0.7:.1f} {top - 4}"
        parts.append(f'<text class="step" transform="translate({at}) rotate(-60)">{escape(_cut(token))}</text>')
    for j, token in enumerate(outputs[:steps]):
        parts.append(
            f'<text class="out" x="{left - 5}" y="{top + j * CELL + CELL * 0.72:.0f}">{escape(_cut(token))}</text>'
        )
    parts.append(f'<g transform="translate({left} {top})"><title>{escape(label)}</title>')
    parts.append(f'<rect class="zero" width="{tokens * CELL}" height="{steps * CELL}"/>')
    squares: dict[int, list[str]] = {}
    marks: list[str] = []
    for down in range(steps):
        row = [float(v) for v in weights[down]]
        for start, end in runs(row):
            if row[start] != 0:  # this includes NaN, which must not look like a zero
                across = (end - start) * CELL
                squares.setdefault(level(row[start]), []).append(
                    f"M{start * CELL} {down * CELL}h{across}v{CELL}h-{across}z"
                )
        for letter, members in zip(LETTERS, groups(row)):
            side = "dark" if level(row[members[0]]) > LEVELS // 2 else "light"
            for i in members:
                place = f'x="{i * CELL + CELL / 2:g}" y="{down * CELL + CELL * 0.72:.0f}"'
                marks.append(f'<text class="group {side}" {place}>{letter}</text>')
    if squares:
        parts.append(f'<path class="paper" d="{"".join(s for group in squares.values() for s in group)}"/>')
    parts += [f'<path class="w{k}" d="{"".join(group)}"/>' for k, group in sorted(squares.items())]
    lines = "".join(f"M0 {down * CELL}h{tokens * CELL}" for down in range(1, steps))
    parts.append(f'<path class="rows" d="{lines}"/>{"".join(marks)}')
    parts.append(f'<rect class="frame" width="{tokens * CELL}" height="{steps * CELL}"/></g></svg>')
    return Markup("".join(parts))


def _same(a: float, b: float) -> bool:
    return (a == 0) == (b == 0) and abs(a - b) <= EQUAL * max(abs(a), abs(b))


def runs(row: Sequence[float]) -> list[tuple[int, int]]:
    """The half-open interval [start, end) of each run of equal neighbouring weights."""
    starts = [i for i in range(len(row)) if not i or not _same(row[i - 1], row[i])]
    return list(zip(starts, [*starts[1:], len(row)]))


def groups(row: Sequence[float]) -> list[list[int]]:
    """Groups of positions that share a non-zero weight and are not all neighbours; the largest weight comes first."""
    order = sorted((i for i, v in enumerate(row) if v and not math.isnan(v)), key=lambda i: -row[i])
    found: list[list[int]] = []
    for i in order:
        if found and _same(row[found[-1][0]], row[i]):
            found[-1].append(i)
        else:
            found.append([i])
    return [sorted(g) for g in found if max(g) - min(g) >= len(g)]


def level(weight: float) -> int:
    """The colour step of a non-zero weight, from 0 for the smallest weights to `LEVELS` for weight one."""
    if math.isnan(weight):
        return LEVELS
    return min(LEVELS, max(0, int(weight * LEVELS + 0.5)))


def _cut(token: str) -> str:
    return token if len(token) <= LONGEST_LABEL else token[: LONGEST_LABEL - 1] + "…"
