"""Draws the attention of trained models to texts as heat maps, with their numbers as JSON.

Sentences follow Figure 4 of Niculae & Blondel 2017 and Figure 2 of Martins et al. 2020: source words run across, output
words down, the rows of a table side by side. Pairs of texts follow Figure 2 of Peters et al. 2018: the words of the
first text run down, those of the second across; each row of the table has a line, with its alignment on the left and
the structures with nonzero weight to its right, from the largest weight to the smallest.

As in Niculae & Blondel's figures, grey means exactly zero, and neighbours of equal weight are not separated by a
border; other words of equal weight share a letter (theirs: a dot). For continuous attention, the density's mass per
word is drawn, so that words outside its support are grey.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.files import write_atomic
from repro.report import draw
from repro.report.draw import Heat

SENTENCE = 11  # source tokens; stored sentences of about this length are drawn
WIDEST = 8.0  # inches of a line of panels: labels stay legible where a page shows 700 pixels
STRUCTURES = 4  # maximum number of structures drawn for an alignment
Row = tuple[str, str, Mapping[int, Mapping[str, Any]], Mapping[str, np.ndarray]]  # label, mapping, records, attention


@dataclass
class Example:
    """A sentence or a pair of texts.

    Attributes:
        about: its description in the file of numbers.
        rows: for each row of the table, its entry in the file of numbers.
        lines: the heat maps, line by line.
    """

    about: dict[str, Any]
    rows: list[dict[str, Any]]
    lines: list[list[Heat]]


@dataclass
class Panel:
    """One table row's output for a sentence.

    Attributes:
        mapping: its name; T names if each output token is from a different row of the table.
        output: T tokens.
        attention: "weights" [T, S] and, for a density, also "density" [T, S], "mu" [T] and "sigma" [T] (sigma^2).
    """

    label: str
    mapping: str | Sequence[str]
    output: Sequence[str]
    attention: Mapping[str, np.ndarray]


def sentence(name: str, source: Sequence[str], reference: str, panels: Sequence[Panel]) -> Example:
    """The example of a sentence with S source tokens and a reference ("" if there is none): a heat map for each panel."""
    maps = [Heat(p.label, p.attention.get("density", p.attention["weights"]), p.output, source) for p in panels]
    wide = max(1, int(WIDEST // draw.heat_width(len(source))))
    rows = []
    for p in panels:
        numbers = {what: _rounded(values) for what, values in p.attention.items()}
        rows.append({"label": p.label, "mapping": p.mapping, "output": list(p.output)} | numbers)
    about = {"sentence": name, "source": list(source), "reference": reference}
    return Example(about, rows, [maps[i : i + wide] for i in range(0, len(maps), wide)])


def stored(rows: Sequence[Row], index: int) -> Example:
    """The example of a stored test sentence."""
    record, panels = rows[0][2][index], []
    for label, mapping, records, attention in rows:
        kept = {"weights": attention[f"test/{index}"]}
        kept |= {k: attention[f"{k}/{index}"] for k in ("density", "mu", "sigma") if f"{k}/{index}" in attention}
        panels.append(Panel(label, mapping, records[index]["output_tokens"], kept))
    return sentence(f"test sentence {index}", record["source_tokens"], " / ".join(record["references"]), panels)


def pair(first: Sequence[str], second: Sequence[str], label: str) -> Example:
    """The example of two texts of class `label`, as yet without rows (`align`)."""
    return Example({"first": list(first), "second": list(second), "class": label}, [], [])


def align(
    example: Example, label: str, output: str, alignment: np.ndarray, weights: np.ndarray, structures: np.ndarray
) -> None:
    """Add a row of the table to a pair of n and m words.

    Args:
        label, output: the row and the class that its model gives.
        alignment: [n, m].
        weights: [K], of the structures; empty if the mapping aligns words separately.
        structures: [K, n], for each word of the first text the index of the aligned word of the second, or -1 for none.
    """
    first, second = example.about["first"], example.about["second"]
    line = [Heat(f"{label}: {output} ({example.about['class']})", alignment, first, second)]
    for k, (weight, structure) in enumerate(zip(weights[:STRUCTURES], structures), 1):
        more = f", {len(weights) - k} more" if k == STRUCTURES and len(weights) > k else ""
        line.append(Heat(f"{weight:.2f}{more}", one_hot(structure, len(second)), (), second))
    listed = [{"weight": _rounded(w), "words": s.tolist()} for w, s in zip(weights, structures)]
    row = {"label": label, "output": output, "alignment": _rounded(alignment), "structures": listed}
    example.rows.append(row)
    example.lines.append(line)


def one_hot(structure: np.ndarray, width: int) -> np.ndarray:
    """One-hot matrix [n, width] of the choices [n]; a choice of -1 (none) gives a zero row."""
    return (structure[:, None] == np.arange(width)).astype(float)


def _rounded(values: np.ndarray) -> Any:
    return np.round(values.astype(float), 6).tolist()


def write(examples: Sequence[Example], stem: Path, endings: Sequence[str], caption: str) -> Path:
    """Draw examples as stem.svg, .png or .pdf, and write all their numbers, drawn or not, as stem.json."""
    lines = [line for example in examples for line in example.lines]
    draw.heat_maps(lines, [stem.with_suffix(e) for e in endings], caption)
    told = {"about": caption, "examples": [example.about | {"rows": example.rows} for example in examples]}
    file = stem.with_suffix(".json")
    write_atomic(file, (json.dumps(told, ensure_ascii=False, indent=1) + "\n").encode())
    return file


def choose_sentences(rows: Sequence[Row], count: int) -> list[int]:
    """`count` test sentences whose attention is stored for every row; lengths close to SENTENCE come first."""
    common = set.intersection(*({int(k[5:]) for k in kept if k.startswith("test/")} for *_, kept in rows))
    records = rows[0][2]
    return sorted(common, key=lambda i: (abs(len(records[i]["source_tokens"]) - SENTENCE), i))[:count]
