"""Draws alignments of two texts, each with the structures that it averages (after Figure 2 of Peters et al. 2018).

The words of the first text run down, those of the second across. In each row of drawings, the alignment is on the left;
to its right are the structures with nonzero weight, from the largest weight to the smallest. Grey means exactly zero.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TYPICAL = 8  # words; stored pairs whose first text is closest to this length are drawn first
GREY, COLOUR = "#dddddd", (8 / 255, 81 / 255, 156 / 255)


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
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": caption}
    )  # keep text as text; the same numbers give the same file
    lines = [(example, panel) for example in examples for panel in example.panels]
    words = [max(len(example.texts[k]) for example in examples) for k in (0, 1)]
    figure, axes = plt.subplots(
        len(lines), 1 + most, figsize=((1 + most) * (0.2 * words[1] + 1.0), len(lines) * (0.2 * words[0] + 1.2) + 0.4),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for line, (example, panel) in zip(axes, lines):
        _grid(line[0], panel.alignment, *example.texts)
        line[0].set_title(f"{panel.label}: {panel.output} ({example.label})", fontsize=8)
        for k, axis in enumerate(line[1:]):
            if k >= len(panel.weights):
                axis.axis("off")
                continue
            _grid(axis, one_hot(panel.structures[k], len(example.texts[1])), example.texts[0], example.texts[1])
            axis.set_yticks([])
            rest = len(panel.weights) - most
            more = f", {rest} more" if k == most - 1 and rest > 0 else ""
            axis.set_title(f"{panel.weights[k]:.2f}{more}", fontsize=8)
    figure.supxlabel(textwrap.fill(caption, int(figure.get_figwidth() * 17)), fontsize=7)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)


def one_hot(structure: np.ndarray, width: int) -> np.ndarray:
    """One-hot matrix [n, width] of the choices [n]; a choice of -1 (none) gives a zero row."""
    return (structure[:, None] == np.arange(width)).astype(float)


def _grid(axis: Any, weights: np.ndarray, down: Sequence[str], across: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    for i, j in np.ndindex(*weights.shape):
        value = float(weights[i, j])
        fill: Any = GREY if value == 0 else (*COLOUR, 0.08 + 0.92 * min(1.0, value))
        axis.add_patch(Rectangle((j, i), 1, 1, facecolor=fill, edgecolor="white", linewidth=0.6))
    axis.set(xlim=(0, len(across)), ylim=(len(down), 0), aspect="equal")
    axis.set_xticks(
        [j + 0.5 for j in range(len(across))], across, rotation=60, ha="left", rotation_mode="anchor", fontsize=7
    )
    axis.set_yticks([i + 0.5 for i in range(len(down))], down, fontsize=7)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)


def write_data(examples: Sequence[Example], file: Path, caption: str) -> None:
    """Write the plotted data as JSON, including the structures that are not drawn."""
    told = [
        {"first": list(e.texts[0]), "second": list(e.texts[1]), "class": e.label, "rows": [
            {
                "label": p.label, "output": p.output, "alignment": np.round(p.alignment.astype(float), 6).tolist(),
                "structures": [
                    {"weight": round(float(w), 6), "words": s.tolist()} for w, s in zip(p.weights, p.structures)
                ],
            } for p in e.panels
        ]} for e in examples
    ]  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({"about": caption, "examples": told}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
