"""The pictures of a report and of a page of claims: learning curves, main score, attention, claims, runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from repro.claims.claim import UNIFORM
from repro.claims.outcome import Outcome
from repro.errors import Refused
from repro.report import draw
from repro.report.data import Picture, scores
from repro.report.draw import GRID, INK, PAPER, Dot
from repro.statistics import FEWEST
from repro.tables.blocks import Block, Row, Table

NAMES = {
    "ppl": "perplexity",
    "attention_zeros": "attention: share of exact zeros",
    "attention_support": "attention: mean support",
    "seconds": "seconds of training an epoch",
}


# ---- curves


def learning_curves(rows: Sequence[Row], selects: str, split: str) -> list[Picture]:
    """Panels over epochs: the selection metric, perplexity or loss, the share of zeros in the attention, and the time.

    Args:
        selects: the metric that selects the epoch, or an empty string.
        split: the test set whose table shows the zeros.
    """
    curves = _stored(rows)
    present = {key for group in curves for curve in group for key in curve}
    first = next((m for m in (selects, "dev/accuracy") if m in present), None)
    second = next((m for m in ("dev/ppl", "dev/loss") if m in present and m != first), None)
    zeros = "dev/attention_zeros"
    metrics = [m for m in (first, second, zeros, "seconds") if m and m in present]
    if not metrics:
        raise Refused("No learning curves are stored for this column.")
    for row, group in zip(rows, curves):
        measured = scores(row, f"{split}/attention_zeros")
        for curve in group:  # training and table counted zeros of different weights if only one of them has any
            if measured and curve.get(zeros) and any(v > 0 for v in measured) != any(v > 0 for v in curve[zeros]):
                del curve[zeros]
    pictures = []
    for metric in metrics:
        with draw.canvas((3.55, 2.5)) as figure:
            _curves(figure.add_subplot(), rows, curves, metric)
            pictures.append(Picture(_name(metric), draw.svg(figure, _name(metric))))
    return pictures


def _stored(rows: Sequence[Row]) -> list[list[dict[str, Sequence[float]]]]:
    """The learning curves of each row's cells that have one."""
    return [[{**cell.curves} for cell in row.results if cell.curves.get("epoch")] for row in rows]


def _name(metric: str) -> str:
    split, _, name = metric.rpartition("/")
    return f"{split} {NAMES.get(name, name.replace('_', ' '))}".strip()


def _curves(axes: Any, rows: Sequence[Row], curves: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> None:
    """Draw the mean over a row's seeds, their range as a band, and the kept epochs as large markers."""
    import pandas as pd
    from matplotlib import ticker

    name, drawn = metric.rpartition("/")[2], []
    for row, group in zip(rows, curves):
        seeds = [pd.Series(c[metric], c["epoch"]) for c in group if metric in c]
        if not seeds:
            continue
        table = pd.concat(seeds).replace([math.inf, -math.inf], math.nan).groupby(level=0).agg(["mean", "min", "max"])
        table = table.dropna()
        style = draw.look(row.style)
        axes.plot(table.index, table["mean"], markersize=2.8, **style)
        if len(seeds) > 1:
            axes.fill_between(table.index, table["min"], table["max"], color=style["color"], alpha=0.13, lw=0)
        drawn += [*table["mean"]]
        marked = table.loc[table.index.isin([cell.metrics.get("best_epoch") for cell in row.results]), "mean"]
        if len(marked):
            dot = {"color": style["color"], "marker": style["marker"], "edgecolors": PAPER}
            axes.scatter(marked.index, marked, s=34, zorder=4, **dot)
    if name in ("ppl", "loss") and drawn and min(drawn) > 0 and max(drawn) / min(drawn) > 6:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    if name == "attention_zeros":
        axes.set_ylim(-0.03, 1.03)
    if metric == "seconds":
        axes.set_ylim(bottom=0)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)


# ---- dots with intervals


def main_score(block: Block) -> Picture:
    """The main score of each row: paired differences from the first row if there are several seeds, otherwise scores.

    Raises `Refused` if no row has a score.
    """
    at = block.main or 0
    rows = [row for row in block.own if block.main is not None and row.values[at].summary]
    if not rows:
        raise Refused("No row has a score.")
    header, first = block.headers[at], rows[0]
    hollow = "" if all(row.convergence.converged for row in rows) else "; hollow: not known to have converged"
    others = [row for row in rows if row.label != UNIFORM]  # they differ by less
    if len(rows) > len(others) and sum(row.gain is not None for row in others) > 1:
        rows, hollow = others, f"{hollow}; {UNIFORM} is not drawn"
    gains = [(row, row.gain) for row in rows if row.gain]
    if gains:
        sure = first.convergence.converged
        dots = [
            Dot(row.name, row.style, gain.mean, gain.printed, gain.values, not (sure and row.convergence.converged))
            for row, gain in gains
        ]
        many = [len(gain.values) >= FEWEST for _, gain in gains]
        over = ["seeds and test examples"] * any(many) + ["test examples"] * (not all(many))
        interval = f"95 % interval over {'; for fewer than 3 seeds, over '.join(over)}"
        title = f"{header} minus that of {first.name}: mean, {interval}; small: each seed{hollow}"
        header = f"{header} minus {first.name}"
    else:
        dots = [dot for row in rows if (dot := _score(row, at))]
        title = f"{header} of each row: no row can be compared with the first{hollow}"
    with draw.canvas((4.4, 0.75 + 0.3 * draw.height([dot.label for dot in dots]))) as figure:
        axes = figure.add_subplot()
        if gains:
            axes.axvline(0, color=INK, lw=0.8)
        draw.dots(axes, dots)
        axes.set_xlabel(header)
        return Picture(title, draw.svg(figure, title))


def _score(row: Row, at: int) -> Dot | None:
    """The mean and the runs of a row's score; None without a score."""
    if (summary := row.values[at].summary) is None:
        return None
    return Dot(row.name, row.style, summary.mean, None, row.values[at].runs, not row.convergence.converged)


def claim(outcome: Outcome, labels: Mapping[str, str]) -> str:
    """The runs that test a claim, as an SVG file: a dot per run, the mean, its 95 % interval; grey: where the claim holds.

    Args:
        labels: metric -> its name, for a claim with several metrics.
    """
    claim, parts = outcome.claim, [part for part in outcome.parts if len(part.differences) > 1]
    most = claim.test == "most"  # in this test, a dot is a setting
    dots = []
    for part in parts:
        metric = labels.get(part.metric, part.metric) if len(claim.metrics) > 1 else ""
        against = f"minus {part.against}" if len(claim.against) > 1 else ""
        runs = [*(part.columns if most else part.differences).values()]
        ends = None if most else part.known
        name = ", ".join(filter(None, (part.row, part.column, metric, against)))
        dots.append(Dot(name, 0, sum(runs) / len(runs), ends, runs))
    with draw.canvas((6.4, 1.05 + 0.3 * len(dots))) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, lw=0.8)
        draw.dots(axes, dots, draw.COLOURS[1])
        low, high = (claim.sign * min(end, 1e9) for end in claim.inside)
        ends = axes.get_xlim()
        band = axes.axvspan(low, high, color=GRID, alpha=0.5, lw=0, zorder=0, label="the claim holds here")
        axes.set_xlim(min(ends[0], 0), max(ends[1], 0))
        axes.legend(handles=[band], loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False, fontsize=7.5)
        word, sign = ("better", outcome.better) if outcome.better else ("as claimed", claim.sign)
        side, arrow = ("right", f"{word} →") if sign > 0 else ("left", f"← {word}")
        axes.set_title(arrow, loc=side, fontsize=7.5)
        one = "the row on the left" if len(claim.against) > 1 else claim.compared("")
        minus = f" {'than' if claim.ratio else 'minus that of'} {one}"
        axes.set_xlabel(("F1" if most else claim.unit) + (minus if one else ": the last minus the first"))
        return draw.svg(figure, f"claim {claim.id}: {outcome.outcome}")


def runs(table: Table) -> str:
    """The runs of a table as an SVG file: one line per column, with each seed's main score and the dev curves.

    Columns without a stored curve are left out; without any, the text is empty.
    """
    panels = []
    for block in table.blocks:
        rows = [replace(row, style=i) for i, row in enumerate(row for row in block.own if row.results)]
        curves = _stored(rows)
        metric = next((key for group in curves for curve in group for key in curve if key.startswith("dev/")), None)
        if metric and block.main is not None:
            panels.append((block, block.main, rows, curves, metric))
    if not panels:
        return ""
    with draw.canvas((8.6, sum(max(2.4, 0.8 + 0.24 * len(rows)) for _, _, rows, *_ in panels))) as figure:
        for i, (block, at, rows, curves, metric) in enumerate(panels):
            left, right = (figure.add_subplot(len(panels), 2, 2 * i + k) for k in (1, 2))
            apart = [row for row in rows if row.label == UNIFORM and len(rows) > 2]  # it would squeeze the others
            shown = [row for row in rows if row not in apart]
            draw.dots(left, [_score(row, at) for row in shown])
            less = "".join(f"; {UNIFORM} {row.values[at].text()} is not drawn" for row in apart)
            left.set_xlabel(f"{block.headers[at]}: each seed and the mean{less}")
            left.set_title(block.label if len(panels) > 1 else "", fontsize=8.5, loc="left")
            _curves(right, shown, [of for row, of in zip(rows, curves) if row in shown], metric)
            right.set_ylabel(_name(metric))
            right.set_title("lines as marked on the left", fontsize=7.5, loc="right")
        return draw.svg(figure, f"{table.title}: runs")
