"""Attention heat maps as inline SVG: one drawing per test example, the rows of the table side by side.

Source tokens run down, output steps run across, so that every panel of an example shares its source labels. An exact zero
is a dot, a weight however small is a filled square: sparsity is visible where a colour scale alone would hide it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from sparse_attention.repro.report.data import Line, Missing, scores

EXAMPLES = 3
MOST_SOURCE, MOST_TARGET = 48, 36  # tokens drawn; longer examples are cut, and say so
CELL, LEVELS = 15, 12
LABEL_WIDTH, GAP, TITLE = 118, 26, 34
DRAWING_WIDTH = 1180
LONGEST_LABEL = 15
NARROWEST = 118  # room for a panel's caption


def heat_maps(
    lines: Sequence[Line], records: Sequence[dict[int, dict[str, Any]] | None], split: str
) -> list[dict[str, Any]]:
    """Drawings of up to three examples of medium length that every row has attention for. Raises `Missing` when there are none."""
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
    panels: dict[int, list[tuple[Line, Any, Mapping[str, Any]]]] = {index: [] for index in chosen}
    for line, by_index in rows:
        with safe_open(_file(line, split), framework="numpy") as file:
            for index in chosen:
                panels[index].append((line, file.get_tensor(f"{split}/{index}"), by_index[index]))
    return [_example(index, panels[index], split) for index in chosen]


def _file(line: Line, split: str):
    return line.found[0].evaluations[split].path("attention.safetensors")


def choose(indices: set[int], records: Sequence[Mapping[int, Mapping[str, Any]]]) -> list[int]:
    """The examples whose length is nearest the median over all rows; the length is source plus mean output tokens."""

    def length(index: int) -> float:
        outputs = [len(r[index].get("output_tokens") or ()) for r in records]
        return len(records[0][index]["source_tokens"]) + sum(outputs) / len(outputs)

    ordered = sorted(indices, key=lambda i: (length(i), i))
    if not ordered:
        return []
    median = length(ordered[len(ordered) // 2])
    return sorted(sorted(ordered, key=lambda i: (abs(length(i) - median), i))[:EXAMPLES])


def _example(index: int, panels: Sequence[tuple[Line, Any, Mapping[str, Any]]], split: str) -> dict[str, Any]:
    first = panels[0][2]
    source = [str(t) for t in first["source_tokens"]]
    longest = max(weights.shape[-1] for _, weights, _ in panels)
    cut = longest > MOST_SOURCE or any(w.ndim > 1 and w.shape[0] > MOST_TARGET for _, w, _ in panels)
    note = f"Cut to the first {MOST_SOURCE} source and {MOST_TARGET} output tokens." if cut else ""
    references = [str(r) for r in first.get("references", ())]
    return {"index": index, "references": references, "svg": draw(source, panels, split), "note": note}


def draw(source: Sequence[str], panels: Sequence[tuple[Line, Any, Mapping[str, Any]]], split: str) -> Markup:
    """The SVG of one example.

    Args:
        source: source tokens, [S].
        panels: (row, weights [T, S] or [S] with rows summing to one, record with `output_tokens` [T]).
        split: the test set, whose own scores stand above each panel: those of the table, not of this example.
    """
    cropped = []
    for line, weights, record in panels:
        weights = weights.reshape(-1, weights.shape[-1])  # [T, S]; a classifier's single row becomes T = 1
        outputs = [str(t) for t in record.get("output_tokens") or [""] * len(weights)]
        cropped.append((line, weights[:MOST_TARGET, :MOST_SOURCE], outputs))
    tokens = max(shown.shape[1] for _, shown, _ in cropped)
    # Output labels lean at 60 degrees: their height follows from the longest one, about 5.8 units a letter.
    longest = max((len(t) for _, shown, outputs in cropped for t in outputs[: len(shown)]), default=0)
    head = TITLE + 12 + round(5 * min(longest, LONGEST_LABEL))
    block = head + tokens * CELL + GAP
    x, y, width, parts = LABEL_WIDTH, 0, 0, [_source_labels(source[:tokens], head)]
    for line, shown, outputs in cropped:
        panel = max(len(shown) * CELL, NARROWEST, 8 * len(line.label))
        if x > LABEL_WIDTH and x + panel > DRAWING_WIDTH:
            x, y = LABEL_WIDTH, y + block
            parts.append(_source_labels(source[:tokens], y + head))
        parts.append(_panel(line, split, shown, outputs, x, y, y + head))
        x += panel + GAP
        width = max(width, x)
    # The last output label leans out to the right of its panel.
    width, height = width + 30, y + block - GAP + 4
    opening = f'<svg class="heat" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    return Markup(opening + "".join(parts) + "</svg>")


def _source_labels(source: Sequence[str], top: int) -> str:
    middle = CELL * 0.72
    place = f'<text x="{LABEL_WIDTH - 6}" y='
    labels = (f'{place}"{top + i * CELL + middle:.0f}">{_label(t)}</text>' for i, t in enumerate(source))
    return f'<g class="source">{"".join(labels)}</g>'


def _panel(line: Line, split: str, shown: Any, outputs: Sequence[str], x: int, y: int, top: int) -> str:
    steps, tokens = shown.shape
    zeros, support = (scores(line, f"{split}/attention_{name}")[:1] for name in ("zeros", "support"))
    facts = ", ".join([*(f"{v:.0%} zeros" for v in zeros), *(f"support {v:.1f}" for v in support)])
    parts = [
        f'<text class="name" x="{x}" y="{y + 12}" style="fill:var(--c{line.style % 8})">{escape(line.label)}</text>',
        f'<text class="facts" x="{x}" y="{y + 26}">{facts and f"test set: {facts}"}</text>',
    ]
    for step, token in enumerate(outputs[:steps]):
        at = f"{x + step * CELL + CELL * 0.7:.1f} {top - 4}"
        parts.append(f'<text class="step" transform="translate({at}) rotate(-60)">{_label(token)}</text>')
    parts.append(f'<g transform="translate({x} {top})"><title>{escape(line.label)}</title>')
    parts.append(f'<rect class="zero" width="{steps * CELL}" height="{tokens * CELL}"/>')
    squares: dict[int, list[str]] = {}
    for across in range(steps):
        for down in range(tokens):
            weight = float(shown[across, down])
            if weight != 0:  # also NaN: a broken weight must not look like a zero
                squares.setdefault(level(weight), []).append(f"M{across * CELL} {down * CELL}h{CELL}v{CELL}h-{CELL}z")
    if squares:
        parts.append(f'<path class="paper" d="{"".join(s for group in squares.values() for s in group)}"/>')
    parts += [f'<path class="w{k}" d="{"".join(group)}"/>' for k, group in sorted(squares.items())]
    parts.append(f'<rect class="frame" width="{steps * CELL}" height="{tokens * CELL}"/></g>')
    return "".join(parts)


def level(weight: float) -> int:
    """Which of the colour steps a non-zero weight gets: 0 for the smallest, `LEVELS` for one."""
    if math.isnan(weight):
        return LEVELS
    return min(LEVELS, max(0, int(weight * LEVELS + 0.5)))


def _label(token: str) -> str:
    return str(escape(token if len(token) <= LONGEST_LABEL else token[: LONGEST_LABEL - 1] + "…"))
