"""The pictures of a sweep: score and share of zeros against a swept parameter, and against each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from repro.files import csv_text
from repro.report import draw
from repro.report.data import Missing, Picture
from repro.tables.compare import Group, Setting, text

WIDE = 50  # an axis is logarithmic if largest value / smallest value exceeds this ratio


@dataclass
class Curve:
    """A line of a drawing: (value of the swept parameter, setting) for each point."""

    label: str
    points: list[tuple[float, Setting]]


def swept(group: Group) -> dict[tuple[str, str], list[Curve]]:
    """Find the swept parameters, as (mapping or "", key) -> the lines of the drawing.

    The settings of a line differ only in the number `key`, and a line has at least two values of it. Each parameter of
    a mapping has its own drawing. Any other parameter, such as optim.lr, has one drawing for all mappings.
    """
    found: dict[tuple[str, str], list[Curve]] = {}
    for key in dict.fromkeys(k for s in group.settings for k, v in s.values.items() if _is_number(v)):
        lines: dict[tuple[str, str], list[tuple[float, Setting]]] = {}
        for s in group.settings:
            if key in s.values and _is_number(value := s.values[key]):
                rest = ", ".join(f"{k.removeprefix('mapping.')}={text(v)}" for k, v in s.values.items() if k != key)
                lines.setdefault((s.mapping, rest), []).append((float(value), s))
        for (mapping, rest), points in lines.items():
            if len({x for x, _ in points}) > 1:
                label = f"{mapping} ({rest})" if rest else mapping
                drawing = (mapping if key.startswith("mapping.") else "", key)
                found.setdefault(drawing, []).append(Curve(label, sorted(points, key=lambda p: p[0])))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def pictures(group: Group, salt: str) -> list[Picture]:
    """All drawings of a group's settings: scores against each swept parameter, and the score against the zeros.

    Raises `Missing` if no parameter was swept and fewer than two settings have both a score and a share of zeros.
    """
    drawn = [_against(group, mapping, key, curves, salt) for (mapping, key), curves in swept(group).items()]
    if (pareto := _pareto(group, salt)) is not None:
        drawn.append(pareto)
    if not drawn:
        raise Missing(
            "No number was swept, and fewer than two settings have both a score and a share of zeros, so there is nothing to draw."
        )
    return drawn


def _zeros(group: Group) -> str | None:
    return next((m for m, header in group.attention.items() if header == "zeros"), None)


def _against(group: Group, mapping: str, key: str, curves: Sequence[Curve], salt: str) -> Picture:
    """Panels for the main score, the dev score and the share of zeros; error bars: standard deviation over seeds."""
    dev = next((m for m in group.scores if m.startswith("dev/")), None)
    metrics = [m for m in dict.fromkeys((group.score, dev, _zeros(group))) if m]
    short = key.removeprefix("mapping.")
    title = f"{group.task}{', ' if mapping else ''}{mapping}: {', '.join(metrics)} against {short}"
    values = [x for c in curves for x, _ in c.points]
    width = 3.1 * len(metrics)
    labels = [fill(curve.label, int(12 * width)) for curve in curves]
    rows = sum(label.count("\n") + 1 for label in labels)
    with draw.canvas((width, 2.6 + 0.16 * rows), f"{salt}/{mapping}/{key}") as figure:
        for i, metric in enumerate(metrics):
            axes = figure.add_subplot(1, len(metrics), i + 1)
            for style, (curve, label) in enumerate(zip(curves, labels)):
                found = [(x, m.mean, m.std or 0.0) for x, s in curve.points if (m := s.summary(metric)) is not None]
                if points := [p for p in found if math.isfinite(p[1])]:
                    draw.curve(axes, curve.label, style, points, label=label)
            if min(values) > 0 and max(values) / min(values) > WIDE:
                axes.set_xscale("log")
            if metric == _zeros(group):
                axes.set_ylim(-0.03, 1.03)
            axes.set(xlabel=short, title=metric)
        named = figure.axes[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside lower left", frameon=False, fontsize=7.5)
        data = _data(metrics, short, ((c.label, x, s) for c in curves for x, s in c.points))
        name = "_".join(part for part in (group.task, mapping, short) if part)
        return Picture(title, draw.svg(figure, title), _file(name), data)


def _pareto(group: Group, salt: str) -> Picture | None:
    """The score against the share of zeros, or None if there are fewer than two settings with both numbers.

    The line joins the settings that are not dominated by any other setting.
    """
    zeros, score = _zeros(group), group.score
    if zeros is None or score is None:
        return None
    both = [(s.summary(zeros), s.summary(score), s) for s in group.settings]
    points = [(z.mean, v.mean, s) for z, v, s in both if z and v and math.isfinite(z.mean) and math.isfinite(v.mean)]
    if len(points) < 2:
        return None
    sign = group.metric(score).better or 1
    front = sorted((p for p in points if not any(_beats(q, p, sign) for q in points)), key=lambda p: p[:2])
    mappings = list(dict.fromkeys(s.mapping for *_, s in points))
    title = f"{group.task}: {score} against {zeros}"
    with draw.canvas((5.2, 3.2 + 0.1 * len(mappings)), f"{salt}/pareto") as figure:
        axes = figure.add_subplot()
        axes.plot([p[0] for p in front], [p[1] for p in front], color=draw.COLOURS[0], lw=0.8, alpha=0.5, zorder=1)
        said: dict[tuple[float, float], list[str]] = {}  # settings at the same point share a label
        for style, mapping in enumerate(mappings):
            own, look = [p for p in points if p[2].mapping == mapping], draw.look(style)
            keys = [k for k in own[0][2].values if len({str(s.values.get(k)) for *_, s in own}) > 1]
            named = ", ".join(k.removeprefix("mapping.") for k in keys)
            dots = {"s": 26, "lw": 0, "color": look["color"], "marker": look["marker"]}
            dots |= {"label": fill(f"{mapping} ({named})" if named else mapping, 24), "gid": f"of {mapping}"}
            axes.scatter([p[0] for p in own], [p[1] for p in own], **dots)
            for x, y, s in own:
                told = ", ".join(text(s.values[k]) for k in keys if k in s.values) or mapping
                said.setdefault((round(x, 4), round(y, 4)), []).append(told)
        for place, labels in said.items():
            told = draw.word("; ".join(labels), 30)
            axes.annotate(told, place, (3, 3), textcoords="offset points", fontsize=6.5)
        axes.set(xlabel=zeros, ylabel=score)
        figure.legend(loc="outside right upper", frameon=False, fontsize=7.5)
        data = _data([zeros, score], "", ((s.mapping, math.nan, s) for *_, s in points))
        return Picture(title, draw.svg(figure, title), _file(f"{group.task}_pareto"), data)


def _beats(a: tuple, b: tuple, sign: int) -> bool:
    no_worse = a[0] >= b[0] and sign * a[1] >= sign * b[1]
    return no_worse and (a[0] > b[0] or sign * a[1] > sign * b[1])


def _data(metrics: Sequence[str], key: str, points: Iterable[tuple[str, float, Setting]]) -> str:
    head = [f"{m} {what}" for m in metrics for what in ("mean", "sd", "n")]
    rows = [["line", *([key] if key else []), "setting", *head]]
    for label, x, s in points:
        found = [s.summary(m) for m in metrics]
        numbers = [
            v
            for m in found
            for v in ((f"{m.mean:.6g}", "" if m.std is None else f"{m.std:.6g}", m.n) if m else ("", "", 0))
        ]
        rows.append([label, *([f"{x:.6g}"] if key else []), s.detail, *map(str, numbers)])
    return csv_text(rows)


def _file(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
