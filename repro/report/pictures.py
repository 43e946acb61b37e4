"""The pictures of a report and of a page of claims: learning curves, main score, differences, runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from repro.convergence import read_curves
from repro.plan.experiment import Show
from repro.protocol import Metric, metric_of
from repro.report import draw
from repro.report.data import Line, Missing, Picture, scores
from repro.report.draw import GRID, INK, PAPER, Dot
from repro.tables.blocks import Block, Table
from repro.tables.claims import UNIFORM
from repro.tables.decide import Outcome
from repro.tables.statistics import FEWEST

NAMES = {
    "ppl": "perplexity",
    "attention_zeros": "attention: share of exact zeros",
    "attention_support": "attention: mean support",
    "seconds": "seconds of training an epoch",
}


# ---- curves


def learning_curves(lines: Sequence[Line], selects: str, split: str, salt: str) -> list[Picture]:
    """Panels over epochs: the selection metric, perplexity or loss, the share of zeros in the attention, and the time.

    Args:
        selects: the metric that selects the epoch, or an empty string.
        split: the test set whose table shows the zeros.
    """
    curves = _stored(lines)
    present = {key for group in curves for curve in group for key in curve}
    first = next((m for m in (selects, "dev/accuracy") if m in present), None)
    second = next((m for m in ("dev/ppl", "dev/loss") if m in present and m != first), None)
    zeros = "dev/attention_zeros"
    metrics = [m for m in (first, second, zeros, "seconds") if m and m in present]
    if not metrics:
        raise Missing("No learning curves are stored for this column.")
    for line, group in zip(lines, curves):
        for curve in group:
            if zeros in curve and _contradicts(scores(line, f"{split}/attention_zeros"), curve[zeros]):
                del curve[zeros]
    pictures = []
    for metric in metrics:
        with draw.canvas((3.55, 2.5), f"{salt}/{metric}") as figure:
            _curves(figure.add_subplot(), lines, curves, metric)
            pictures.append(Picture(_name(metric), draw.svg(figure, _name(metric))))
    return pictures


def _stored(lines: Sequence[Line]) -> list[list[dict[str, list[float]]]]:
    """The learning curves of each line's cells that have one."""
    return [[c for f in line.found if (c := read_curves(f.folder)).get("epoch")] for line in lines]


def _name(metric: str) -> str:
    split, _, name = metric.rpartition("/")
    return f"{split} {NAMES.get(name, name.replace('_', ' '))}".strip()


def _contradicts(measured: Sequence[float], curve: Sequence[float]) -> bool:
    """Whether training and table counted the zeros of different weights: one has no zeros, and the other has some."""
    return bool(measured and curve) and any(v > 0 for v in measured) != any(v > 0 for v in curve)


def _curves(axes: Any, lines: Sequence[Line], curves: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> None:
    """Draw the mean over a row's seeds, their range as a band, and the kept epochs as large markers."""
    import pandas as pd
    from matplotlib import ticker

    name, drawn = metric.rpartition("/")[2], []
    for line, group in zip(lines, curves):
        seeds = [pd.Series(c[metric], c["epoch"]) for c in group if metric in c]
        if not seeds:
            continue
        table = pd.concat(seeds).replace([math.inf, -math.inf], math.nan).groupby(level=0).agg(["mean", "min", "max"])
        table = table.dropna()
        style, of = draw.look(line.style), {"gid": f"of {line.label}"}
        axes.plot(table.index, table["mean"], markersize=2.8, **style, **of)
        if len(seeds) > 1:
            axes.fill_between(table.index, table["min"], table["max"], color=style["color"], alpha=0.13, lw=0, **of)
        drawn += [*table["mean"]]
        marked = table.loc[table.index.isin([f.metrics.get("best_epoch") for f in line.found]), "mean"]
        if len(marked):
            dot = {"color": style["color"], "marker": style["marker"], "edgecolors": PAPER}
            axes.scatter(marked.index, marked, s=34, zorder=4, **dot, **of)
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


def _dot_plot(dots: Sequence[Dot], title: str, xlabel: str, salt: str, band: float | None = None) -> Picture:
    """A dot plot; with a `band`, of differences: the band is drawn around zero, if it is not 0."""
    with draw.canvas((4.4, 0.75 + 0.3 * draw.height([dot.label for dot in dots])), salt) as figure:
        axes = figure.add_subplot()
        if band is not None:
            axes.axvline(0, color=INK, lw=0.8)
        if band:
            axes.axvspan(-band, band, color=GRID, alpha=0.5, lw=0)
        draw.dots(axes, dots)
        axes.set_xlabel(xlabel)
        return Picture(title, draw.svg(figure, title))


def main_score(block: Block, lines: Sequence[Line], salt: str) -> Picture:
    """The main score of each row: the paired differences from the first row where there are several seeds, else the scores.

    Raises `Missing` if no row has a score.
    """
    at = block.main or 0
    rows = [(row, line) for row, line in zip(block.rows, lines) if block.main is not None and row.values[at].summary]
    if not rows:
        raise Missing("No row has a score.")
    header, (first, reference) = block.headers[at], rows[0]
    hollow = "" if all(row.convergence.converged for row, _ in rows) else "; hollow: not known to have converged"
    others = [(row, line) for row, line in rows if row.label != UNIFORM]  # which differ by less
    if len(rows) > len(others) and sum(row.gain is not None for row, _ in others) > 1:
        rows, hollow = others, f"{hollow}; {UNIFORM} is not drawn"
    gains = [(row, line, row.gain) for row, line in rows if row.gain]
    if not gains:
        dots = [_score(row.values[at], line, row.convergence.converged) for row, line in rows]
        return _dot_plot(dots, f"{header} of each row: no row can be compared with the first{hollow}", header, salt)
    dots = [
        Dot(
            line.label,
            line.style,
            gain.mean,
            gain.printed,
            gain.values,
            not (first.convergence.converged and row.convergence.converged),
        )
        for row, line, gain in gains
    ]
    many = [len(gain.values) >= FEWEST for *_, gain in gains]
    over = ["seeds and test examples"] * any(many) + ["test examples"] * (not all(many))
    interval = f"95 % interval over {'; of fewer than 3 seeds, over '.join(over)}"
    told = f"{header} minus that of {reference.label}: mean, {interval}; small: each seed"
    return _dot_plot(dots, told + hollow, f"{header} minus {reference.label}", salt, 0.0)


def _score(value: Any, line: Line, converged: bool) -> Dot:
    return Dot(line.label, line.style, value.summary.mean, None, value.runs, not converged)


def attention_quality(lines: Sequence[Line], first: Show, split: str, salt: str) -> Picture:
    """Dot plots with one line per row: share of exact zeros, mean support, and the score `first`.

    Small dots are seeds, and large dots are their mean.
    """
    panels = {"share of exact zeros": f"{split}/attention_zeros", "mean support (tokens)": f"{split}/attention_support"}
    panels = {title: metric for title, metric in panels.items() if any(scores(line, metric) for line in lines)}
    if not panels:
        raise Missing("No attention statistics are stored for this column.")
    labels = [line.label for line in lines]
    with draw.canvas((8.6, 0.62 + 0.25 * draw.height(labels)), salt) as figure:
        figure.get_layout_engine().set(wspace=0.06)
        for i, (title, metric) in enumerate({**panels, first.label: first.metric}.items()):
            axes = figure.add_subplot(1, len(panels) + 1, i + 1)
            values = [scores(line, metric) for line in lines]
            draw.dots(
                axes, [Dot(x.label, x.style, sum(v) / len(v), None, v) if v else None for x, v in zip(lines, values)]
            )
            axes.set_yticks(range(len(lines)), [draw.wrapped(label) if i == 0 else "" for label in labels])
            axes.spines["left"].set_visible(False)
            axes.set_xlabel(title)
            if title.startswith("share"):
                axes.set_xlim(-0.04, 1.04)
            elif title in panels:
                axes.set_xlim(left=0)
        caption = "Attention in the test decoding, and the score beside it"
        return Picture(caption, draw.svg(figure, caption))


def against_published(block: Block, lines: Sequence[Line], metrics: Mapping[str, Metric], salt: str) -> list[Picture]:
    """Our number minus the published one, with the 95 % interval over seeds; one panel per published column.

    As for the verdict, the experiment defines our metric for each published column (`against`). Only comparable numbers
    are drawn.
    """
    pictures = []
    for c, (title, metric) in enumerate(zip(block.columns, block.against)):
        dots = []
        for row, line in zip(block.rows, lines):
            ours, theirs, verdict = row.value(metric), row.theirs[c], row.verdicts[c]
            if ours and ours.summary and theirs is not None and verdict is not None and verdict.comparable:
                gap, half = ours.summary.mean - theirs.value, ours.summary.half
                dots.append(Dot(line.label, line.style, gap, None if half is None else (gap - half, gap + half)))
        if dots:
            told = f"{title}: ours minus published; line: 95 % interval over seeds, band: tolerance"
            tolerance = metric_of(metrics, metric).tolerance or 0.0
            pictures.append(_dot_plot(dots, told, "ours minus published", f"{salt}/{c}", tolerance))
    return pictures


def claim(outcome: Outcome, labels: Mapping[str, str], salt: str) -> str:
    """What tests a claim, as an SVG file: a dot a run, the mean, its 95 % interval, and grey what counts as equal.

    Args:
        labels: metric -> its name, for a claim with several metrics.
    """
    claim, parts = outcome.claim, [part for part in outcome.parts if len(part.differences) > 1]
    most = claim.test == "most"  # then a dot is a setting
    dots = []
    for part in parts:
        metric = labels.get(part.metric, part.metric) if len(claim.metrics) > 1 else ""
        against = f"against {part.against}" if len(claim.against) > 1 else ""
        runs = [*(part.columns if most else part.differences).values()]
        ends = None if most else part.known
        name = ", ".join(filter(None, (part.row, part.column, metric, against)))
        dots.append(Dot(name, 0, sum(runs) / len(runs), ends, runs))
    with draw.canvas((6.4, 1.05 + 0.3 * len(dots)), salt) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, lw=0.8)
        if claim.equal:
            low, high = sorted(claim.sign * end for end in claim.equal)
            band = axes.axvspan(low, high, color=GRID, alpha=0.5, lw=0, label="counts as equal")
            axes.legend(handles=[band], loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False, fontsize=7.5)
        draw.dots(axes, dots, draw.COLOURS[1])
        word, sign = ("better", outcome.better) if outcome.better else ("as claimed", claim.sign)
        side, arrow = ("right", f"{word} →") if sign > 0 else ("left", f"← {word}")
        axes.set_title(arrow, loc=side, fontsize=7.5)
        minus = claim.compared(" minus ") or ": the last minus the first"
        unit = ("F1" if most else claim.unit) or claim.metrics[0]
        axes.set_xlabel(f"{unit}{minus}{' (100 times the difference of logarithms)' if claim.ratio else ''}")
        return draw.svg(figure, f"claim {claim.id}: {outcome.outcome}")


def runs(table: Table, salt: str) -> str:
    """The runs of a table as an SVG file: a line a column, with each seed's main score and the curves of the dev score.

    Columns without a stored curve are left out; without any, the text is empty.
    """
    panels = []
    for block in table.blocks:
        rows = [row for row in block.rows if row.found and not row.baseline]
        lines = [Line(row.label, row.detail, i, row.found) for i, row in enumerate(rows)]
        curves = _stored(lines)
        metric = next((key for group in curves for curve in group for key in curve if key.startswith("dev/")), None)
        if metric and block.main is not None:
            panels.append((block, block.main, rows, lines, curves, metric))
    if not panels:
        return ""
    with draw.canvas((8.6, sum(max(2.4, 0.8 + 0.24 * len(rows)) for _, _, rows, *_ in panels)), salt) as figure:
        for i, (block, at, rows, lines, curves, metric) in enumerate(panels):
            left, right = (figure.add_subplot(len(panels), 2, 2 * i + k) for k in (1, 2))
            shown = [(row.values[at], line, row.convergence.converged) for row, line in zip(rows, lines)]
            apart = [value.text() for row, (value, *_) in zip(rows, shown) if row.label == UNIFORM and len(rows) > 2]
            shown = [one for one in shown if not apart or one[1].label != UNIFORM]  # which would squeeze the others
            draw.dots(left, [_score(*one) if one[0].summary else None for one in shown])
            less = "".join(f"; {UNIFORM} {text} is not drawn" for text in apart)
            left.set_xlabel(f"{block.headers[at]}: each seed and the mean{less}")
            left.set_title(block.label if len(panels) > 1 else "", fontsize=8.5, loc="left")
            _curves(right, lines, curves, metric)
            right.set_ylabel(_name(metric))
        return draw.svg(figure, f"{table.title}: runs")
