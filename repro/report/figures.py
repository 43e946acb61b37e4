"""The learning curves, dot plots and difference plots of a report, drawn by matplotlib as inline SVG.

The drawings use placeholders for colours. `_inline` replaces these with the page's CSS variables, so that the same
drawing works in light mode, in dark mode and in print.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from repro.plan.experiment import Show
from repro.protocol import Metric, metric_of
from repro.report.data import Line, Missing, scores
from repro.tables.blocks import Block, Table
from repro.tables.claims import UNIFORM
from repro.tables.convergence import read_curves
from repro.tables.statistics import FEWEST

# Placeholders for --c0 ... --c7 and for the colours of text, grid and paper. The page's CSS has the real colours: those
# of Okabe & Ito, which colour-blind readers can tell apart, darkened where they are faint on white.
COLOURS = ("#010000", "#010001", "#010002", "#010003", "#010004", "#010005", "#010006", "#010007")
INK, GRID, PAPER = "#020001", "#020002", "#020003"
# Rows never differ only in colour: marker and dash differ too. Second item: SVG path of the marker in a 10 x 10 box.
MARKERS = (
    ("o", "M1.6 5a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0z"), ("s", "M2 2h6v6h-6z"), ("^", "M5 1l4 7.5h-8z"),
    ("D", "M5 .8l4.2 4.2l-4.2 4.2l-4.2-4.2z"), ("v", "M5 9l4-7.5h-8z"), ("P", "M3.5 1h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z"),
    ("X", "M1 3l2-2l2 2l2-2l2 2l-2 2l2 2l-2 2l-2-2l-2 2l-2-2l2-2z"), ("h", "M5 .8l3.7 2.1v4.2l-3.7 2.1l-3.7-2.1v-4.2z"),
)  # fmt: skip
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)))


def swatch(style: int) -> Markup:
    """The legend entry of a row: line and marker in the row's colour."""
    colour, mark = f"var(--c{style % 8})", MARKERS[style % 8][1]
    dash = ("", ' stroke-dasharray="5 2"', ' stroke-dasharray="1.5 1.8"')[min(style // 4, 2)]
    return Markup(
        f'<svg class="swatch" viewBox="0 0 26 10" width="26" height="10" aria-hidden="true">'
        f'<path d="M0 5h26" style="stroke:{colour}" stroke-width="1.6"{dash}/>'
        f'<path transform="translate(8 0)" d="{mark}" style="fill:{colour}"/></svg>'
    )


@dataclass
class Figure:
    caption: str
    svg: Markup


@contextmanager
def _matplotlib(salt: str) -> Iterator[Any]:
    """matplotlib's Figure class with the report's settings; without pyplot, so without global state or a display."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise Missing(
            f"No figures: matplotlib cannot be imported ({error}). `pip install matplotlib` and run the command again."
        ) from error
    settings: Any = {  # Any, because matplotlib's type for this argument lists every key
        "svg.fonttype": "none", "svg.hashsalt": salt, "font.size": 8.5, "text.parse_math": False, "font.sans-serif": ["DejaVu Sans"],
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK,
        "xtick.color": INK, "ytick.color": INK, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
        "axes.axisbelow": True, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.3,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield Drawing


def _inline(drawing: Any, label: str) -> Markup:
    """The drawing as an SVG element for the page, without prologue, metadata or fixed size, in the page's colours."""
    text = _svg(drawing, transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r'<g id="of ([^"]*)"', r'<g data-of="\1"', text)  # whose line it is, for the filters of a page
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # ids would repeat between drawings; only <defs> are referred to
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()  # type: ignore[union-attr]
    head = f'<svg class="plot" role="img" viewBox="0 0 {width} {height}" style="max-width:{float(width) * 1.34:.0f}px">'
    text = re.sub(r"^<svg[^>]*>", lambda _: f"{head}<title>{Markup.escape(label)}</title>", text, count=1)
    text = _coloured(text, [f"var(--{name})" for name in (*(f"c{i}" for i in range(8)), "ink", "grid", "paper")])
    text = re.sub(r"\n\s*", "\n", text)
    return Markup(re.sub(r"(\d\.\d{2})\d+", r"\1", text))


# The colours of an SVG file with a white background (report.css.jinja has the colours of the page).
ON_WHITE = (
    "#1f2328", "#0072b2", "#d55e00", "#009e73", "#c05a94", "#b98500", "#3d9bd0", "#7b3f98", "#1f2328", "#d8dee4", "#ffffff",
)  # fmt: skip


def standalone(drawing: Any, label: str) -> str:
    """The drawing as an SVG file with a white background."""
    text = _svg(drawing, facecolor="white", metadata={"Date": None, "Title": label})
    return _coloured(text, ON_WHITE)


def _svg(drawing: Any, **options: Any) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(drawing)
    drawing.draw_without_rendering()  # the layout needs two passes
    buffer = io.StringIO()
    drawing.savefig(buffer, format="svg", **options)
    return buffer.getvalue()


def _coloured(text: str, colours: Sequence[str]) -> str:
    """`text` with the placeholders replaced by `colours`."""
    names = dict(zip((*COLOURS, INK, GRID, PAPER), colours))
    return re.sub("|".join(names), lambda m: names[m[0]], text)


def _style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % 8], "linestyle": DASHES[min(index // 4, 2)], "marker": MARKERS[index % 8][0]}


NAMES = {
    "accuracy": "accuracy", "ppl": "perplexity", "loss": "loss", "attention_zeros": "attention: share of exact zeros",
    "attention_support": "attention: mean support", "seconds": "seconds of training an epoch",
}  # fmt: skip


def learning_curves(lines: Sequence[Line], selects: str, split: str, salt: str) -> list[Figure]:
    """Panels over epochs: the selection metric, perplexity or loss, the share of zeros in the attention, and the time.

    Each line is the mean over a row's seeds, and the band is their range. Large markers show the selected epochs.

    Args:
        selects: the metric that selects the epoch, or an empty string.
        split: the test set whose table shows the zeros.
    """
    curves = [[c for f in line.found if (c := read_curves(f.folder)).get("epoch")] for line in lines]
    present = {key for group in curves for curve in group for key in curve}
    first = next((m for m in (selects, "dev/accuracy") if m in present), None)
    second = next((m for m in ("dev/ppl", "dev/loss") if m in present and m != first), None)
    third = "dev/attention_zeros" if "dev/attention_zeros" in present else None
    metrics = [m for m in (first, second, third, "seconds" if "seconds" in present else None) if m]
    if not metrics:
        raise Missing("No learning curves are stored for this column.")
    kept = [[f.metrics.get("best_epoch") for f in line.found] for line in lines]
    for line, group in zip(lines, curves):
        for curve in group if third else ():
            if _contradicts(scores(line, f"{split}/attention_zeros"), curve.get(third or "", [])):
                del curve[third or ""]
    return [_curve(lines, curves, kept, metric, f"{salt}/{metric}") for metric in metrics]


def _contradicts(measured: Sequence[float], curve: Sequence[float]) -> bool:
    """Whether training and table counted the zeros of different weights: one has no zeros, and the other has some."""
    return bool(measured and curve) and any(v > 0 for v in measured) != any(v > 0 for v in curve)


def _curve(lines, curves, kept, metric: str, salt: str) -> Figure:
    split, _, name = metric.rpartition("/")
    title = f"{split} {NAMES.get(name, name.replace('_', ' '))}".strip()
    with _matplotlib(salt) as drawing_of:
        drawing = drawing_of(figsize=(3.55, 2.5), layout="constrained")
        _curves(drawing.add_subplot(), lines, curves, kept, metric)
        return Figure(title, _inline(drawing, title))


def _curves(axes: Any, lines, curves, kept, metric: str) -> None:
    """Draw the learning curves of the rows: the mean over seeds, their range, and the epochs `kept`."""
    from matplotlib import ticker

    name, drawn = metric.rpartition("/")[2], []
    for line, group, best in zip(lines, curves, kept):
        series = [dict(zip(c["epoch"], c[metric])) for c in group if metric in c]
        epochs = sorted({e for s in series for e, v in s.items() if math.isfinite(v)})
        if not epochs:
            continue
        values = [[s[e] for s in series if math.isfinite(s.get(e, math.nan))] for e in epochs]
        means = [sum(v) / len(v) for v in values]
        style, of = _style(line.style), {"gid": f"of {line.label}"}
        axes.plot(epochs, means, markersize=2.8, **style, **of)
        if len(series) > 1:
            band = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(epochs, *band, color=style["color"], alpha=0.13, lw=0, **of)
        drawn += means
        if marked := [(e, mean) for e, mean in zip(epochs, means) if e in best]:
            look = {"color": style["color"], "marker": style["marker"], "edgecolors": PAPER}
            axes.scatter(*zip(*marked), s=34, zorder=4, **look, **of)
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


@dataclass
class Dot:
    """A line of a dot plot: a value with its interval and its runs. It is drawn hollow if it proves nothing."""

    label: str
    style: int
    value: float
    interval: tuple[float, float] | None = None
    runs: Sequence[float] = ()
    hollow: bool = False


def _wrapped(label: str) -> str:
    return textwrap.fill(label, 40, break_on_hyphens=False)


def _height(labelled: Sequence[Any]) -> float:
    """The height of a dot plot in rows with labels of one line."""
    return len(labelled) * max(1.0, 0.6 * max(_wrapped(one.label).count("\n") + 1 for one in labelled))


def _dots(axes: Any, dots: Sequence[Dot | None], colour_of_runs: str = "") -> None:
    """Draw one line per dot, from top to bottom; a line without a value stays empty."""
    for y, dot in enumerate(dots):
        if dot is None:
            continue
        look, of = _style(dot.style), {"gid": f"of {dot.label}"}
        if dot.interval:
            axes.plot(dot.interval, [y, y], color=look["color"], lw=1.6, **of)
        fill = (
            {"color": PAPER, "edgecolors": look["color"], "lw": 1.2}
            if dot.hollow
            else {"color": look["color"], "lw": 0}
        )
        axes.scatter([dot.value], [y], s=34, zorder=3, marker=look["marker"], **fill, **of)
        colour, down = colour_of_runs or look["color"], 0.22 if dot.interval else 0.0
        axes.scatter(
            dot.runs, [y + down] * len(dot.runs), s=9, lw=0, color=colour, marker=look["marker"], zorder=3, **of
        )
    axes.set_yticks(range(len(dots)), [_wrapped(dot.label) if dot else "" for dot in dots])
    axes.set_ylim(len(dots) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)


def _dot_plot(dots: Sequence[Dot], title: str, xlabel: str, salt: str, band: float | None = None) -> Figure:
    """A dot plot; with a `band`, of differences: the band is drawn around zero, if it is not 0."""
    with _matplotlib(salt) as drawing_of:
        drawing = drawing_of(figsize=(4.4, 0.75 + 0.3 * _height(dots)), layout="constrained")
        axes = drawing.add_subplot()
        if band is not None:
            axes.axvline(0, color=INK, lw=0.8)
        if band:
            axes.axvspan(-band, band, color=GRID, alpha=0.5, lw=0)
        _dots(axes, dots)
        axes.set_xlabel(xlabel)
        return Figure(title, _inline(drawing, title))


def main_score(block: Block, lines: Sequence[Line], salt: str) -> Figure:
    """The main score of each row: the paired differences from the first row where there are several seeds, else the scores.

    Raises `Missing` if no row has a score.
    """
    at = block.main
    known = [] if at is None else [
        (row, line, value, value.summary) for row, line in zip(block.rows, lines) if (value := row.values[at]).summary
    ]  # fmt: skip
    if not known:
        raise Missing("No row has a score.")
    header, (first, *_) = block.headers[at or 0], known[0]
    hollow = "" if all(row.convergence.converged for row, *_ in known) else "; hollow: not known to have converged"
    others = [one for one in known if one[0].label != UNIFORM]  # which differ by less
    if len(known) > len(others) and sum(row.gain is not None for row, *_ in others) > 1:
        known, hollow = others, f"{hollow}; {UNIFORM} is not drawn"
    if any(row.gain for row, *_ in known):
        dots = [
            Dot(line.label, line.style, g.mean, g.printed, g.values, not (first.convergence.converged and row.convergence.converged))
            for row, line, *_ in known if (g := row.gain)
        ]  # fmt: skip
        runs = [len(row.gain.values) >= FEWEST for row, *_ in known if row.gain]
        over = ["seeds and test examples"] * any(runs) + ["test examples"] * (not all(runs))
        interval = f"95 % interval over {'; of fewer than 3 seeds, over '.join(over)}"
        told = f"{header} minus that of {first.label}: mean, {interval}; small: each seed"
        return _dot_plot(dots, told + hollow, f"{header} minus {first.label}", salt, 0.0)
    dots = [
        Dot(line.label, line.style, s.mean, None, v.runs, not row.convergence.converged) for row, line, v, s in known
    ]
    return _dot_plot(dots, f"{header} of each row: no row can be compared with the first{hollow}", header, salt)


def attention_quality(lines: Sequence[Line], first: Show, split: str, salt: str) -> Figure:
    """Dot plots with one line per row: share of exact zeros, mean support, and the score `first`.

    Small dots are seeds, and large dots are their mean.
    """
    panels = [
        ("share of exact zeros", [scores(line, f"{split}/attention_zeros") for line in lines]),
        ("mean support (tokens)", [scores(line, f"{split}/attention_support") for line in lines]),
    ]
    panels = [(title, values) for title, values in panels if any(values)]
    if not panels:
        raise Missing("No attention statistics are stored for this column.")
    panels.append((first.label, [scores(line, first.metric) for line in lines]))
    with _matplotlib(salt) as drawing_of:
        drawing = drawing_of(figsize=(8.6, 0.62 + 0.25 * _height(lines)), layout="constrained")
        drawing.get_layout_engine().set(wspace=0.06)
        for i, (title, values) in enumerate(panels):
            axes = drawing.add_subplot(1, len(panels), i + 1)
            _dots(axes, [Dot(x.label, x.style, sum(v) / len(v), None, v) if v else None for x, v in zip(lines, values)])
            axes.set_yticks(
                range(len(lines)), [_wrapped(line.label) for line in lines] if i == 0 else [""] * len(lines)
            )
            axes.spines["left"].set_visible(False)
            axes.set_xlabel(title)
            if title.startswith("share"):
                axes.set_xlim(-0.04, 1.04)
            elif i < len(panels) - 1:
                axes.set_xlim(left=0)
        return Figure("Attention in the test decoding, and the score beside it", _inline(drawing, "attention quality"))


def against_published(block: Block, lines: Sequence[Line], metrics: Mapping[str, Metric], salt: str) -> list[Figure]:
    """Our number minus the published one, with the 95 % interval over seeds; one panel per published column.

    As for the verdict, the experiment defines our metric for each published column (`against`). Raises `Missing` if no
    number is comparable.
    """
    figures = []
    for c, (title, metric) in enumerate(zip(block.columns, block.against)):
        found = []
        for row, line in zip(block.rows, lines):
            ours, theirs, verdict = row.value(metric), row.theirs[c], row.verdicts[c]
            if ours and ours.summary and theirs is not None and verdict is not None and verdict.comparable:
                gap, half = ours.summary.mean - theirs.value, ours.summary.half
                found.append(Dot(line.label, line.style, gap, None if half is None else (gap - half, gap + half)))
        if found:
            told = f"{title}: ours minus published; line: 95 % interval over seeds, band: tolerance"
            tolerance = metric_of(metrics, metric).tolerance or 0.0
            figures.append(_dot_plot(found, told, "ours minus published", f"{salt}/{c}", tolerance))
    if not figures:
        raise Missing("Not drawn: none of these numbers is comparable with the published ones.")
    return figures


def runs(table: Table, salt: str) -> str:
    """The runs of a table as a standalone SVG: a line a column, with each seed's main score and the curves of the dev score.

    Columns without a stored curve are left out; without any, the text is empty.
    """
    panels = []
    for block in table.blocks:
        rows = [row for row in block.rows if row.found and not row.baseline]
        curves = [[c for f in row.found if (c := read_curves(f.folder)).get("epoch")] for row in rows]
        metric = next((key for group in curves for curve in group for key in curve if key.startswith("dev/")), None)
        if metric and block.main is not None:
            lines = [Line(row.label, row.detail, i, row.found) for i, row in enumerate(rows)]
            panels.append((block, block.main, rows, lines, curves, metric))
    if not panels:
        return ""
    with _matplotlib(salt) as drawing_of:
        drawing = drawing_of(
            figsize=(8.6, sum(max(2.4, 0.8 + 0.24 * len(rows)) for _, _, rows, *_ in panels)), layout="constrained"
        )
        for i, (block, at, rows, lines, curves, metric) in enumerate(panels):
            left, right = (drawing.add_subplot(len(panels), 2, 2 * i + k) for k in (1, 2))
            scores_ = [row.values[at] for row in rows]
            _dots(left, [
                Dot(line.label, line.style, v.summary.mean, None, v.runs, not row.convergence.converged) if v.summary else None
                for row, line, v in zip(rows, lines, scores_)
            ])  # fmt: skip
            left.set_xlabel(f"{block.headers[at]}: each seed and the mean")
            left.set_title(block.label if len(panels) > 1 else "", fontsize=8.5, loc="left")
            _curves(right, lines, curves, [[f.metrics.get("best_epoch") for f in row.found] for row in rows], metric)
            split, _, name = metric.partition("/")
            right.set_ylabel(f"{split} {NAMES.get(name, name.replace('_', ' '))}")
        return standalone(drawing, f"{table.title}: runs")
