"""Draws the attention of translations, with the rows of a table side by side.

The figures follow Figure 4 of Niculae & Blondel 2017 and Figure 2 of Martins et al. 2020. Source words run across,
output words down. As in Niculae & Blondel's figures, grey means exactly zero, and neighbours of equal weight are not
separated by a border; other words of equal weight share a letter (theirs: a dot). For continuous attention, the
density's mass per word is drawn, so that words outside its support are grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.report import draw as canvas
from repro.report.placed import write_numbers

TYPICAL = 11  # source tokens; stored sentences closest to this length are drawn first
WIDEST = 8.0  # inches of a line of panels: labels stay legible where a page shows 700 pixels


@dataclass
class Panel:
    """One table row's output for a sentence: the name of the mapping, the T output tokens, and the attention.

    There may also be T mapping names, if each output token comes from a different row. The attention is a dictionary
    with "weights" [T, S] and, for a density, also "density" [T, S], "mu" [T] and "sigma" [T] (sigma^2).
    """

    label: str
    mapping: str | Sequence[str]
    output: Sequence[str]
    attention: Mapping[str, np.ndarray]

    @property
    def drawn(self) -> np.ndarray:
        """The weights to draw, [T, S]: the density's mass per word if there is one, otherwise the weights."""
        return self.attention.get("density", self.attention["weights"])

    def numbers(self) -> dict[str, Any]:
        """What the file of the figure's numbers has of this panel."""
        attention = {what: np.round(values.astype(float), 6).tolist() for what, values in self.attention.items()}
        return {"label": self.label, "mapping": self.mapping, "output": list(self.output)} | attention


@dataclass
class Example:
    """A sentence: its name, S source tokens, the reference ("" if there is none), and one panel per table row."""

    name: str
    source: Sequence[str]
    reference: str
    panels: Sequence[Panel]


Row = tuple[str, str, Mapping[int, Mapping[str, Any]], Mapping[str, np.ndarray]]  # label, mapping, records, attention


def choose(rows: Sequence[Row], count: int) -> list[int]:
    """`count` test sentences whose attention is stored for every row; lengths close to TYPICAL come first."""
    stored = [{int(k.partition("/")[2]) for k in attention if k.startswith("test/")} for *_, attention in rows]
    records = rows[0][2]
    common = set.intersection(*stored)
    return sorted(common, key=lambda i: (abs(len(records[i]["source_tokens"]) - TYPICAL), i))[:count]


def example(rows: Sequence[Row], index: int) -> Example:
    """Build the example for a stored test sentence."""
    record, panels = rows[0][2][index], []
    for label, mapping, records, attention in rows:
        kept = {"weights": attention[f"test/{index}"]}
        kept |= {
            what: attention[f"{what}/{index}"] for what in ("density", "mu", "sigma") if f"{what}/{index}" in attention
        }
        panels.append(Panel(label, mapping, records[index]["output_tokens"], kept))
    return Example(f"test sentence {index}", record["source_tokens"], " / ".join(record["references"]), panels)


def draw(examples: Sequence[Example], files: Sequence[Path], caption: str) -> None:
    """Draw the panels of each sentence, as many per line as fit into WIDEST, and save .svg, .png or .pdf files."""
    longest = max(len(e.source) for e in examples)
    across = max(1, int(WIDEST // (0.24 * longest + 1.3)))
    lines = [(e.source, e.panels[i : i + across]) for e in examples for i in range(0, len(e.panels), across)]
    columns = max(len(panels) for _, panels in lines)
    heights = [0.24 * max(len(p.output) for p in panels) + 1.0 for _, panels in lines]
    size = columns * (0.24 * longest + 1.3), sum(heights) + 0.4
    with canvas.captioned(size, caption, files) as figure:
        axes = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights)
        for line, (source, panels) in zip(axes, lines):
            for axis, panel in zip(line, panels):
                canvas.heat(axis, panel.drawn, panel.output, source)
                axis.set_title(panel.label, fontsize=8)
            for axis in line[len(panels) :]:
                axis.axis("off")


def write_data(examples: Sequence[Example], file: Path, caption: str) -> None:
    """Write the plotted data as JSON, including the attention behind each panel."""
    told = [{"sentence": e.name, "source": list(e.source), "reference": e.reference} for e in examples]
    rows = [{"rows": [panel.numbers() for panel in e.panels]} for e in examples]
    write_numbers(file, caption, [one | panels for one, panels in zip(told, rows)])
