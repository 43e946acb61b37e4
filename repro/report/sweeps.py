"""The pictures of a sweep: score and share of zeros against a swept parameter, and against each other."""

import math
import re
from collections.abc import Sequence
from textwrap import fill

from repro.errors import Refused
from repro.report import draw
from repro.report.data import Picture
from repro.statistics import Mean
from repro.tables.blocks import Block, Row
from repro.tables.compare import is_number, text

WIDE = 50  # an axis is logarithmic if largest value / smallest value exceeds this ratio
# label of a line -> (value of the swept parameter, row) of each point
Lines = dict[str, list[tuple[float, Row]]]


def swept(block: Block) -> dict[tuple[str, str], Lines]:
    """Find the swept parameters, as (mapping or "", key) -> the lines of the drawing.

    The rows of a line differ only in the number `key`, and a line has at least two values of it. Each parameter of
    a mapping has its own drawing. Any other parameter, such as optim.lr, has one drawing for all mappings.
    """
    drawings: dict[tuple[str, str], Lines] = {}
    for key in dict.fromkeys(k for row in block.own for k in row.point):
        lines: dict[tuple[str, str], list[tuple[float, Row]]] = {}
        for row in block.own:
            if is_number(value := row.point.get(key)) and math.isfinite(value):
                rest = ", ".join(f"{k.removeprefix('mapping.')}={text(v)}" for k, v in row.point.items() if k != key)
                label = f"{row.label} ({rest})" if rest else row.label
                mapping = row.label if key.startswith("mapping.") else ""
                lines.setdefault((mapping, label), []).append((float(value), row))
        for (mapping, label), points in lines.items():
            if len({x for x, _ in points}) > 1:
                drawings.setdefault((mapping, key), {})[label] = sorted(points, key=lambda point: point[0])
    return drawings


def pictures(block: Block) -> list[Picture]:
    """All drawings of a block of compared cells: scores against each swept parameter, and the score against the zeros.

    Raises `Refused` if no parameter was swept and fewer than two settings have both a score and a share of zeros.
    """
    metrics = [value.metric for value in block.rows[0].values]
    zeros = next((m for m in metrics if m.endswith("/attention_zeros")), None)
    score = None if block.main is None else metrics[block.main]
    dev = next((v.metric for v in block.rows[0].values if v.better and v.metric.startswith("dev/")), None)
    shown = [m for m in dict.fromkeys((score, dev, zeros)) if m]
    drawn = [_against(block, mapping, key, lines, shown) for (mapping, key), lines in swept(block).items()]
    drawn += _pareto(block, zeros, score) if zeros and score else []
    if not drawn:
        told = "No number was swept, and fewer than two settings have both a score and a share of zeros"
        raise Refused(f"{told}, so there is nothing to draw.")
    return drawn


def _against(block: Block, mapping: str, key: str, lines: Lines, metrics: Sequence[str]) -> Picture:
    """Panels for the main score, the dev score and the share of zeros; error bars: standard deviation over seeds."""
    short = key.removeprefix("mapping.")
    title = f"{block.label}{', ' if mapping else ''}{mapping}: {', '.join(metrics)} against {short}"
    values = [x for points in lines.values() for x, _ in points]
    width = 3.1 * len(metrics)
    labels = [fill(label, int(12 * width)) for label in lines]
    rows = sum(label.count("\n") + 1 for label in labels)
    with draw.canvas((width, 2.6 + 0.16 * rows)) as figure:
        for i, metric in enumerate(metrics):
            axes = figure.add_subplot(1, len(metrics), i + 1)
            for style, (label, points) in enumerate(zip(labels, lines.values())):
                known = [(x, m.mean, m.std or 0.0) for x, row in points if (m := _mean(row, metric)) is not None]
                if known := [point for point in known if math.isfinite(point[1])]:
                    draw.curve(axes, label, style, known)
            if min(values) > 0 and max(values) / min(values) > WIDE:
                axes.set_xscale("log")
            if metric.endswith("/attention_zeros"):
                axes.set_ylim(-0.03, 1.03)
            axes.set(xlabel=short, title=metric)
        named = figure.axes[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside lower left", frameon=False, fontsize=7.5)
        return Picture(title, draw.svg(figure, title), _file(block.label, mapping, short))


def _pareto(block: Block, zeros: str, score: str) -> list[Picture]:
    """The score against the share of zeros; nothing if there are fewer than two settings with both numbers.

    The line joins the settings that are not dominated by any other setting.
    """
    both = [(_mean(row, zeros), _mean(row, score), row) for row in block.own]
    points = [(z.mean, v.mean, row) for z, v, row in both if z and v and all(map(math.isfinite, (z.mean, v.mean)))]
    if len(points) < 2:
        return []
    sign = block.rows[0].values[block.main or 0].better
    front: list[tuple[float, float, Row]] = []
    for point in sorted(points, key=lambda point: (-point[0], -sign * point[1])):
        if not front or sign * point[1] > sign * front[-1][1]:
            front.append(point)
    by_mapping: dict[str, list[tuple[float, float, Row]]] = {}
    for point in points:
        by_mapping.setdefault(point[2].label, []).append(point)
    title = f"{block.label}: {score} against {zeros}"
    with draw.canvas((5.2, 3.2 + 0.1 * len(by_mapping))) as figure:
        axes = figure.add_subplot()
        axes.plot([p[0] for p in front], [p[1] for p in front], color=draw.COLOURS[0], lw=0.8, alpha=0.5, zorder=1)
        labels: dict[tuple[float, float], list[str]] = {}  # settings at the same point share a label
        for style, (mapping, own) in enumerate(by_mapping.items()):
            keys = [k for k in own[0][2].point if len({str(row.point.get(k)) for *_, row in own}) > 1]
            named = ", ".join(k.removeprefix("mapping.") for k in keys)
            look = {"color": draw.look(style)["color"], "marker": draw.look(style)["marker"], "s": 26, "lw": 0}
            label = fill(f"{mapping} ({named})" if named else mapping, 24)
            axes.scatter([p[0] for p in own], [p[1] for p in own], **look, label=label)
            for x, y, row in own:
                values = ", ".join(text(row.point[k]) for k in keys if k in row.point) or mapping
                labels.setdefault((round(x, 4), round(y, 4)), []).append(values)
        for place, texts in labels.items():
            axes.annotate(draw.word("; ".join(texts), 30), place, (3, 3), textcoords="offset points", fontsize=6.5)
        axes.set(xlabel=zeros, ylabel=score)
        figure.legend(loc="outside right upper", frameon=False, fontsize=7.5)
        return [Picture(title, draw.svg(figure, title), _file(block.label, "pareto"))]


def _mean(row: Row, metric: str) -> Mean | None:
    return value.summary if (value := row.value(metric)) else None


def _file(*parts: str) -> str:
    return re.sub(r"[^\w.-]+", "_", "_".join(filter(None, parts)))
