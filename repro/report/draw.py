"""The colours and the canvas of every picture, and what is drawn on it: heat maps, dots with intervals, curves.

Every picture is an SVG file with a white background; a page inverts it in dark mode (report.css.jinja). Rows never
differ only in colour: marker and dash differ too.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from repro.files import write_atomic
from repro.launch.display import cut

# Those of Okabe & Ito, which colour-blind readers can tell apart, darkened where they are faint on white.
COLOURS = ("#1f2328", "#0072b2", "#d55e00", "#009e73", "#c05a94", "#b98500", "#3d9bd0", "#7b3f98")
INK, GRID, PAPER, ZERO, WEIGHT = "#1f2328", "#d8dee4", "#ffffff", "#dddddd", (8 / 255, 81 / 255, 156 / 255)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
SIGNS = "●■▲◆▼✚✖⬢"  # the markers as characters, for a legend
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)))
STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("axes.axisbelow", "axes.grid"), True),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "text.parse_math"), False),
    "grid.color": GRID,
    "font.size": 8.5,
    "font.sans-serif": ["DejaVu Sans"],
    "lines.linewidth": 1.3,
}
EQUAL = 1e-6  # relative difference up to which weights count as equal (float32 noise)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML does not allow


def look(style: int) -> dict[str, Any]:
    """matplotlib's options for the line of the row with this index."""
    return {"color": COLOURS[style % 8], "linestyle": DASHES[min(style // 4, 2)], "marker": MARKERS[_sign(style)]}


def _sign(style: int) -> int:
    """The index of a row's marker: the ninth row has the colour of the first row, but another marker."""
    return (style + style // 8) % 8


def swatch(style: int) -> Markup:
    """The legend entry of a row: its marker between two pieces of its line, in its colour."""
    line = ("━", "╍", "┉")[min(style // 4, 2)]
    return Markup('<i class="inked" style="color:{}" aria-hidden="true">{}{}{}</i>').format(
        COLOURS[style % 8], line, SIGNS[_sign(style)], line
    )


@contextmanager
def canvas(size: tuple[float, float], layout: Any = "constrained", style: Mapping[str, Any] = STYLE) -> Iterator[Any]:
    """A matplotlib figure of `size` inches, without pyplot, so without global state or a display.

    Args:
        layout: None if the axes are placed by hand.
        style: matplotlib's parameters.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # text stays text, and the same numbers give the same file
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "picture", **style}
    with matplotlib.rc_context(settings):
        yield Figure(figsize=size, layout=layout)


@contextmanager
def captioned(size: tuple[float, float], caption: str, files: Iterable[Path]) -> Iterator[Any]:
    """A figure to draw on, without a grid; it is then written to .svg, .png or .pdf files, above its caption."""
    with canvas(size, style=STYLE | {"axes.grid": False}) as figure:
        yield figure
        figure.supxlabel(textwrap.fill(caption, int(size[0] * 17)), fontsize=7)
        for file in files:
            write_atomic(file, rendered(figure, file.suffix[1:], caption))


def rendered(figure: Any, ending: str, title: str = "", dpi: int = 130) -> bytes:
    """A figure as the content of a file: svg (with a white background; `title` is in it), png or pdf."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    options: dict[str, Any] = {"dpi": dpi}
    if ending == "svg":
        FigureCanvasSVG(figure)
        options = {"facecolor": "white", "metadata": {"Date": None, "Title": title}}
    with warnings.catch_warnings():  # text stays text: a reader's font may have characters that ours lacks
        warnings.filterwarnings("ignore", "Glyph")
        if engine := figure.get_layout_engine():
            engine.execute(figure)  # saving lays out once more: the layout needs two passes
        figure.savefig(buffer, format=ending, **options)
    return buffer.getvalue()


def svg(figure: Any, title: str) -> str:
    """A figure as an SVG file."""
    return rendered(figure, "svg", title).decode()


# ---- heat maps


def runs(row: Sequence[float]) -> list[tuple[int, int]]:
    """The half-open interval [start, end) of each run of equal neighbouring weights."""
    starts = [i for i in range(len(row)) if not i or not _same(row[i - 1], row[i])]
    return list(zip(starts, [*starts[1:], len(row)]))


def groups(row: Sequence[float]) -> list[list[int]]:
    """Groups of positions that share a non-zero weight and are not all neighbours; the largest weight comes first."""
    order = sorted((i for i, v in enumerate(row) if v and v == v), key=lambda i: -row[i])
    found: list[list[int]] = []
    for i in order:
        if found and _same(row[found[-1][0]], row[i]):
            found[-1].append(i)
        else:
            found.append([i])
    return [sorted(g) for g in found if max(g) - min(g) >= len(g)]


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= EQUAL * max(abs(a), abs(b))  # zeros form no group


def shade(weights: Any) -> np.ndarray:
    """The colours of weights [...] as [..., 3]: grey for an exact zero, else from almost white to blue; NaN is blue."""
    depth = 0.08 + 0.92 * np.nan_to_num(np.clip(np.asarray(weights, float), 0, 1), nan=1.0)
    colours = 1 - depth[..., None] * (1 - np.array(WEIGHT))
    colours[np.asarray(weights) == 0] = int(ZERO[1:3], 16) / 255
    return colours


def heat(axis: Any, weights: Any, down: Sequence[str], across: Sequence[str]) -> None:
    """Draw weights [T, S] with the T words `down` and the S words `across`, which are cut (`word`).

    An exact zero is grey. Neighbours of equal weight in a row have no border between them, which shows the segments of a
    mapping that fuses them. Equal weights that are not all neighbours share a letter, which shows groups.
    """
    weights = np.asarray(weights, float)
    steps, tokens = weights.shape
    axis.imshow(shade(weights), extent=(0, tokens, steps, 0), interpolation="nearest", aspect="equal")
    lines = [((0, tokens), (t, t)) for t in range(1, steps)]
    lines += [((s, s), (t, t + 1)) for t, row in enumerate(weights) for s, _ in runs(row)[1:]]
    if lines:  # as one path, with gaps
        x, y = (np.array([(*line[k], np.nan) for line in lines]).ravel() for k in (0, 1))
        axis.plot(x, y, color=PAPER, lw=0.7, marker="", ls="-")
    for t, row in enumerate(weights):
        for letter, members in zip(LETTERS, groups(row)):
            colour = PAPER if row[members[0]] > 0.5 else INK
            for s in members:
                axis.text(s + 0.5, t + 0.5, letter, color=colour, fontsize=6.5, ha="center", va="center")
    words = [[word(w) for w in (*of, *[""] * n)][:n] for of, n in ((across, tokens), (down, steps))]
    axis.grid(False)
    axis.set_xticks(np.arange(tokens) + 0.5, words[0], rotation=60, ha="left", rotation_mode="anchor", fontsize=7)
    axis.set_yticks(np.arange(steps) + 0.5, words[1], fontsize=7)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False, pad=2)
    axis.set(xlim=(0, tokens), ylim=(steps, 0))


def heat_scale(axes: Any, most: float = 1.0) -> None:
    """The colours of heat maps from 0 to `most`, beside one or several axes."""
    from matplotlib import cm, colors

    colours = colors.ListedColormap(shade(np.linspace(1e-3, 1, 128)))
    drawn = cm.ScalarMappable(colors.Normalize(0, most), colours)
    bar = np.ravel(axes)[0].figure.colorbar(drawn, ax=axes, fraction=0.02, pad=0.01)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("weight (grey: exactly 0)", fontsize=7)


@contextmanager
def heat_figure(weights: Any, down: Sequence[str], across: Sequence[str]) -> Iterator[Any]:
    """A figure with one heat map; the arguments are those of `heat`."""
    steps, tokens = np.shape(weights)
    left, top = (0.1 + 0.075 * max((len(word(w)) for w in of), default=0) for of in (down, across))  # inches
    size = left + 0.16 * tokens + 0.5 * top, 0.9 * top + 0.16 * steps + 0.05
    with canvas(size, layout=None) as figure:
        place = left / size[0], 0.04 / size[1], 0.16 * tokens / size[0], 0.16 * steps / size[1]
        heat(figure.add_axes(place), weights, down, across)
        yield figure


@dataclass
class Heat:
    """A heat map with a title; the other attributes are arguments of `heat`."""

    title: str
    weights: Any
    down: Sequence[str]
    across: Sequence[str]


def heat_width(tokens: int) -> float:
    """The width of a drawing of `heat_maps` for `tokens` words across, in inches."""
    return 0.24 * tokens + 1.3


def heat_maps(lines: Sequence[Sequence[Heat]], files: Sequence[Path], caption: str) -> None:
    """Draw lines of heat maps, which may differ in length, and save .svg, .png or .pdf files."""
    columns = max(map(len, lines))
    heights = [0.24 * max(len(heat.down) for heat in line) + 1.0 for line in lines]
    width = heat_width(max(len(heat.across) for line in lines for heat in line))
    with captioned((columns * width, sum(heights) + 0.4), caption, files) as figure:
        axes = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights)
        for line, places in zip(lines, axes):
            for one, axis in zip(line, places):
                heat(axis, one.weights, one.down, one.across)
                axis.set_title(one.title, fontsize=8)
            for axis in places[len(line) :]:
                axis.axis("off")
        heat_scale(axes)


def word(text: str, most: int = 15) -> str:
    """A word for a label: cut, and without control characters."""
    return CONTROL.sub("\ufffd", cut(text, most))


# ---- dots with intervals, curves


@dataclass
class Dot:
    """A line of a dot plot: a value with its interval and its runs. It is drawn hollow if it proves nothing."""

    label: str
    style: int
    value: float
    interval: tuple[float, float] | None = None
    runs: Sequence[float] = ()
    hollow: bool = False


def wrapped(label: str) -> str:
    """A label of a dot plot, in lines."""
    return textwrap.fill(label, 40, break_on_hyphens=False)


def height(labels: Sequence[str]) -> float:
    """The height of a dot plot, in rows with labels of one line."""
    return len(labels) * max(1.0, 0.6 * max(wrapped(label).count("\n") + 1 for label in labels))


def dots(axes: Any, drawn: Sequence[Dot | None], colour_of_runs: str = "") -> None:
    """Draw one line per dot, from top to bottom; a line without a value stays empty."""
    for y, dot in enumerate(drawn):
        if dot is None:
            continue
        colour, marker = look(dot.style)["color"], look(dot.style)["marker"]
        if dot.interval:
            axes.plot(dot.interval, [y, y], color=colour, lw=1.6)
        fill = {"color": PAPER, "edgecolors": colour, "lw": 1.2} if dot.hollow else {"color": colour, "lw": 0}
        axes.scatter([dot.value], [y], s=34, zorder=3, marker=marker, **fill)
        below = [y + (0.22 if dot.interval else 0.0)] * len(dot.runs)
        axes.scatter(dot.runs, below, s=9, lw=0, color=colour_of_runs or colour, marker=marker, zorder=3)
    axes.set_yticks(range(len(drawn)), [wrapped(dot.label) if dot else "" for dot in drawn])
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)


def curve(axes: Any, label: str, style: int, points: Sequence[tuple[float, float, float]]) -> None:
    """Draw a line through points (x, mean, standard deviation), with error bars."""
    x, mean, spread = zip(*points)
    axes.errorbar(x, mean, spread, **look(style), markersize=4, capsize=2.5, elinewidth=0.8, label=label)
