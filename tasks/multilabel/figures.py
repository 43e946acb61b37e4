"""Draws Figures 4 and 5 and the JSD curves of Laha et al. 2018 from finished cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.files import write_atomic
from tasks.data.files import publish_file

AXES = {
    "mean_labels": "mean number of labels",
    "label_range": "range of the number of labels",
    "length": "document length",
}
SETTINGS = tuple(AXES)  # of data=synthetic
SCORES = {"f1": "micro-F1", "labels": "predicted labels per document", "jsd": "Jensen-Shannon divergence"}
# Okabe & Ito's colours, which colour-blind readers can distinguish; markers and dashes differ too.
STYLES = [("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":")]
STYLES += [("#E69F00", "v", (0, (5, 1))), ("#56B4E9", "P", (0, (3, 1, 1, 1)))]
FIGURES = {"figure4": ("labels", ("mean_labels",)), "figure5": ("f1", SETTINGS), "jsd": ("jsd", SETTINGS)}


@dataclass(frozen=True)
class Point:
    """The scores of one table row at one value of a setting: score -> seed -> number."""

    setting: str
    value: int
    row: str
    scores: Mapping[str, Mapping[int, float]]


def collect(finished: Iterable[tuple[str, Mapping[str, Any], Mapping[str, float]]]) -> list[Point]:
    """Collect plot points from the finished cells on generated documents, ordered by row, setting and value.

    Args:
        finished: (label of the row, configuration, metrics) of each cell, in the order of the rows.
    """
    found: dict[tuple[str, int, int], dict[str, dict[int, float]]] = {}
    rows: dict[str, int] = {}
    for row, config, metrics in finished:
        data = config["data"]
        if data["name"] != "synthetic":
            continue
        rows.setdefault(row, len(rows))
        scores = found.setdefault((row, SETTINGS.index(data["setting"]), data["value"]), {})
        for name, value in metrics.items():
            if name.startswith("test/"):
                scores.setdefault(name[5:], {})[config["seed"]] = value
    order = sorted(found, key=lambda key: (rows[key[0]], *key[1:]))
    return [Point(SETTINGS[s], value, row, found[row, s, value]) for row, s, value in order]


def write(points: Sequence[Point], name: str, folder: Path) -> list[Path]:
    """Write every figure that has cells as PNG and SVG, with its numbers as CSV.

    Args:
        name: prefix of the file names, e.g. "laha2018".

    Returns:
        the paths of the files.
    """
    made: list[Path] = []
    for figure, (score, settings) in FIGURES.items():
        shown = [p for p in points if p.setting in settings]
        if shown:
            there = [s for s in settings if any(p.setting == s for p in shown)]
            made += draw(shown, score, there, folder / f"{name}_{figure}")
    if points:
        made.append(folder / f"{name}_figure5_numbers.csv")
        write_atomic(made[-1], numbers(points).encode())
    return made


def draw(points: Sequence[Point], score: str, settings: Sequence[str], stem: Path) -> list[Path]:
    """Draw one panel per setting, with means over seeds and error bars of one standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = stem.name  # the same numbers give the same file
    figure, panels = pyplot.subplots(
        1, len(settings), figsize=(4.2 * len(settings) + 0.4, 3.9), squeeze=False, layout="constrained"
    )
    rows = list(dict.fromkeys(p.row for p in points))
    seeds = sorted({seed for p in points for seed in p.scores[score]})
    for panel, setting in zip(panels[0], settings):
        if score == "labels":
            true = {p.value: np.mean(list(p.scores["true_labels"].values())) for p in points if p.setting == setting}
            panel.plot(true.keys(), true.values(), color="0.45", lw=1, label="true number")
        for row, (colour, marker, dash) in zip(rows, STYLES):
            here = [p for p in points if p.setting == setting and p.row == row]
            values = [np.array(list(p.scores[score].values())) for p in here]
            at, means = [p.value for p in here], [v.mean() for v in values]
            deviations = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]
            style = {"color": colour, "marker": marker, "ls": dash, "ms": 4.5, "lw": 1.6}
            panel.errorbar(at, means, deviations, capsize=2.5, elinewidth=0.9, label=row, **style)
        panel.set_xlabel(AXES[setting])
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel(SCORES[score])
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=4 if len(settings) > 1 else 2, frameon=False, fontsize=9
    )
    spread = f"mean and standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    figure.supxlabel(spread, fontsize=8, color="0.35")
    files = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for file, options in zip(files, ({"dpi": 160}, {"metadata": {"Date": None}})):
        with publish_file(file) as temporary:
            figure.savefig(temporary, format=file.suffix[1:], **options)
    pyplot.close(figure)
    return files


def numbers(points: Sequence[Point]) -> str:
    """The numbers as CSV in long format: one line per table row, setting, value, score and seed."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["setting", "value", "row", "score", "seed", "number"])
    for p in points:
        measured = [(score, *one) for score, seeds in sorted(p.scores.items()) for one in sorted(seeds.items())]
        out.writerows([p.setting, p.value, p.row, score, seed, f"{number:.6g}"] for score, seed, number in measured)
    return text.getvalue()


def page(points: Sequence[Point]) -> str:
    """The scores of all points in the format of docs/results/multilabel/figure5.md, for `make results`."""
    rows = list(dict.fromkeys(p.row for p in points))
    head = ["setting", *(f"F1 {row}" for row in rows), *(f"labels {row}" for row in rows)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    found = {(p.setting, p.value, p.row): p.scores for p in points}
    for setting, value in dict.fromkeys((p.setting, p.value) for p in points):
        told = [f"{AXES[setting]} {value}"]
        for score, decimals in (("f1", 3), ("labels", 2)):
            for row in rows:
                of = np.array(list(found.get((setting, value, row), {}).get(score, {}).values()))
                spread = f" ±{of.std(ddof=1):.{decimals}f}" if len(of) > 1 else ""
                told.append(f"{of.mean():.{decimals}f}{spread}" if len(of) else "-")
        lines.append("| " + " | ".join(told) + " |")
    scores = "\n".join(lines)
    return f"## F1 and number of predicted labels\n\n{scores}\n"
