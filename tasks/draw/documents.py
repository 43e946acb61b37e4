"""Draws Figures 4 and 5 and the JSD curves of Laha et al. 2018 from finished cells on generated documents."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from repro.files import write_atomic
from repro.report import draw as canvas
from repro.statistics import mean_of
from repro.tables.render import markdown
from repro.tables.screen import Column

AXES = {"mean_labels": "mean number of labels", "label_range": "range of the number of labels"}
AXES |= {"length": "document length"}
SETTINGS = tuple(AXES)  # of data=synthetic
SCORES = {"f1": "micro-F1", "labels": "predicted labels per document", "jsd": "Jensen-Shannon divergence"}
FIGURES = {"figure4": ("labels", ("mean_labels",)), "figure5": ("f1", SETTINGS), "jsd": ("jsd", SETTINGS)}
COLUMNS = ["setting", "value", "row", "score", "seed", "number"]


def collect(finished: Iterable[tuple[str, Mapping[str, Any], Mapping[str, float]]]) -> pd.DataFrame:
    """The test scores of the finished cells on generated documents, one per line, ordered by row, setting and value.

    Args:
        finished: (label of the row, configuration, metrics) of each cell, in the order of the rows.

    Returns: a table with COLUMNS.
    """
    lines = [
        (config["data"]["setting"], config["data"]["value"], row, name[5:], config["seed"], number)
        for row, config, metrics in finished
        if config["data"]["name"] == "synthetic"
        for name, number in metrics.items()
        if name.startswith("test/")
    ]
    table = pd.DataFrame(lines, columns=COLUMNS).drop_duplicates(COLUMNS[:-1])
    table["setting"] = pd.Categorical(table["setting"], SETTINGS)
    table["row"] = pd.Categorical(table["row"], table["row"].unique())
    return table.sort_values(["row", "setting", "value", "score", "seed"])


def write(points: pd.DataFrame, name: str, folder: Path) -> list[Path]:
    """Write every figure that has cells as PNG and SVG, with its numbers as CSV, a line for each row of the table, setting, value, score and seed.

    Args:
        points: the scores, as of `collect`.
        name: prefix of the file names, e.g. "laha2018".

    Returns:
        the paths of the files.
    """
    made: list[Path] = []
    for figure, (score, settings) in FIGURES.items():
        there = [s for s in settings if (points["setting"] == s).any()]
        if there:
            made += draw(points, score, there, folder / f"{name}_{figure}")
    if len(points):
        made.append(folder / f"{name}_figure5_numbers.csv")
        write_atomic(made[-1], points.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode())
    return made


def draw(points: pd.DataFrame, score: str, settings: Sequence[str], stem: Path) -> list[Path]:
    """Draw one panel per setting, with means over seeds and error bars of one standard deviation."""
    seeds = points["seed"].nunique()
    spread = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    files = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    with canvas.captioned((4.2 * len(settings) + 0.4, 3.9), spread, files) as figure:
        panels = figure.subplots(1, len(settings), squeeze=False)[0]
        for panel, setting in zip(panels, settings):
            here = points[points["setting"] == setting]
            if score == "labels":
                true = here[here["score"] == "true_labels"].groupby("value")["number"].mean()
                panel.plot(true.index, true, color="0.45", lw=1, marker="", label="true number")
            here = here[here["score"] == score]
            for style, row in enumerate(points["row"].cat.categories):
                of = here[here["row"] == row].groupby("value")["number"].agg(["mean", "std"]).fillna(0.0)
                if len(of):
                    canvas.curve(panel, row, style, list(of.itertuples()))
            panel.set_xlabel(AXES[setting])
            panel.xaxis.get_major_locator().set_params(integer=True)
            panel.grid(alpha=0.25)
        panels[0].set_ylabel(SCORES[score])
        named = panels[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside upper center", ncols=4 if len(settings) > 1 else 2, frameon=False)
    return files


def page(points: pd.DataFrame) -> str:
    """The scores of all points in the format of docs/results/multilabel/figure5.md, for `make results`."""
    of_f1 = points[points["score"] == "f1"].groupby(["setting", "value", "row"], observed=True)["number"]
    table = of_f1.agg(lambda seeds: mean_of([*seeds]).text(3)).unstack().fillna("-").sort_index()
    runs = of_f1.size().unstack(fill_value=0).sort_index()
    many = [", ".join(map(str, n if len({*n}) > 1 else n[:1])) for n in runs.itertuples(index=False)]
    labels = [f"{AXES[setting]} {value}" for setting, value in table.index]
    columns = [Column(row, [*table[row]]) for row in table]
    scores = markdown([Column("setting", labels), *columns, Column("runs", many)])
    told = "Runs (seeds): one number if all rows have as many, or one for each row, in the order of the columns."
    return f"## F1\n\n{told}\n\n{scores}\n"
