"""Draws alignments of two texts, each with the structures that it averages (after Figure 2 of Peters et al. 2018).

The words of the first text run down, those of the second across. In each row of drawings, the alignment is on the left;
to its right are the structures with nonzero weight, from the largest weight to the smallest. Grey means exactly zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.report import draw as canvas
from repro.report.placed import write_numbers

TYPICAL = 8  # words; stored pairs whose first text is closest to this length are drawn first


@dataclass
class Panel:
    """One model's alignment [n, m] of a pair of texts, and its K structures.

    Each structure has a weight (array [K]) and, for each of the n words of the first text, the index of the aligned
    word of the second text, or -1 for none (array [K, n]). Both arrays are empty if the mapping aligns words
    separately.
    """

    label: str
    output: str
    alignment: np.ndarray
    weights: np.ndarray
    structures: np.ndarray

    def numbers(self) -> dict[str, Any]:
        """What the file of the figure's numbers has of this panel."""
        structures = zip(self.weights, self.structures)
        return {
            "label": self.label,
            "output": self.output,
            "alignment": np.round(self.alignment.astype(float), 6).tolist(),
            "structures": [{"weight": round(float(w), 6), "words": s.tolist()} for w, s in structures],
        }


@dataclass
class Example:
    """A pair of texts, its class, and one panel per row of the table."""

    texts: tuple[Sequence[str], Sequence[str]]
    label: str
    panels: Sequence[Panel]


def choose(rows: Sequence[Mapping[int, Mapping[str, Any]]], count: int) -> list[int]:
    """Choose `count` test pairs from those whose texts are stored for every row of the table.

    Pairs that every row classifies correctly come first, and among these the pairs of about TYPICAL words; the classes
    take turns.

    Args:
        rows: for each row of the table, its test records by index.
    """
    common = [i for i in rows[0] if all("texts" in records.get(i, {}) for records in rows)]
    right = {i: all(records[i]["output"] == records[i]["label"] for records in rows) for i in common}
    order = sorted(common, key=lambda i: (not right[i], abs(len(rows[0][i]["source_tokens"]) - TYPICAL), i))
    seen: dict[str, int] = {}
    turn = {}
    for i in order:
        label = rows[0][i]["label"]
        turn[i] = seen[label] = seen.get(label, -1) + 1
    return sorted(order, key=lambda i: (not right[i], turn[i], order.index(i)))[:count]


def draw(examples: Sequence[Example], files: Sequence[Path], caption: str, most: int = 4) -> None:
    """Draw one line per pair and table row, with at most `most` structures, and save .svg, .png or .pdf files."""
    lines = [(example, panel) for example in examples for panel in example.panels]
    words = [max(len(example.texts[k]) for example in examples) for k in (0, 1)]
    size = (1 + most) * (0.2 * words[1] + 1.0), len(lines) * (0.2 * words[0] + 1.2) + 0.4
    with canvas.captioned(size, caption, files) as figure:
        axes = figure.subplots(len(lines), 1 + most, squeeze=False)
        for line, (example, panel) in zip(axes, lines):
            canvas.heat(line[0], panel.alignment, *example.texts)
            line[0].set_title(f"{panel.label}: {panel.output} ({example.label})", fontsize=8)
            for k, axis in enumerate(line[1:]):
                if k >= len(panel.weights):
                    axis.axis("off")
                    continue
                canvas.heat(axis, one_hot(panel.structures[k], len(example.texts[1])), *example.texts)
                axis.set_yticks([])
                rest = len(panel.weights) - most
                more = f", {rest} more" if k == most - 1 and rest > 0 else ""
                axis.set_title(f"{panel.weights[k]:.2f}{more}", fontsize=8)


def one_hot(structure: np.ndarray, width: int) -> np.ndarray:
    """One-hot matrix [n, width] of the choices [n]; a choice of -1 (none) gives a zero row."""
    return (structure[:, None] == np.arange(width)).astype(float)


def write_data(examples: Sequence[Example], file: Path, caption: str) -> None:
    """Write the plotted data as JSON, including the structures that are not drawn."""
    told = [{"first": list(e.texts[0]), "second": list(e.texts[1]), "class": e.label} for e in examples]
    rows = [{"rows": [panel.numbers() for panel in e.panels]} for e in examples]
    write_numbers(file, caption, [one | panels for one, panels in zip(told, rows)])
