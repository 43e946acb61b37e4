"""Draw comparisons of settings: score and share of zeros against a swept parameter, and against each other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from repro.files import csv_text
from repro.report.data import Missing
from repro.report.figures import _inline, _matplotlib, _style, standalone
from repro.tables.compare import Group, Setting, text

WIDE = 50  # an axis is logarithmic if largest value / smallest value exceeds this ratio


@dataclass
class Drawn:
    """A drawing as SVG, with its numbers as CSV (`data`)."""

    name: str
    caption: str
    svg: str
    data: str


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
    keys = dict.fromkeys(k for s in group.settings for k, v in s.values.items() if _is_number(v))
    for key in keys:
        lines: dict[str, list[tuple[float, Setting]]] = {}
        for s in group.settings:
            value = s.values.get(key)
            if value is not None and _is_number(value):
                rest = ", ".join(f"{k.removeprefix('mapping.')}={text(v)}" for k, v in s.values.items() if k != key)
                lines.setdefault(f"{s.mapping}|{rest}", []).append((float(value), s))
        for name, points in lines.items():
            mapping, _, rest = name.partition("|")
            if len({x for x, _ in points}) > 1:
                drawing = (mapping if key.startswith("mapping.") else "", key)
                found.setdefault(drawing, []).append(
                    Curve(f"{mapping} ({rest})" if rest else mapping, sorted(points, key=lambda p: p[0]))
                )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def figures(group: Group, salt: str, files: bool) -> list[Drawn]:
    """All drawings of a group's settings, for SVG files if `files` is true, or else for the report's page.

    Raises `Missing` if no parameter was swept and fewer than two settings have both a score and a share of zeros.
    """
    drawn = [_against(group, mapping, key, curves, salt, files) for (mapping, key), curves in swept(group).items()]
    if (pareto := _pareto(group, salt, files)) is not None:
        drawn.append(pareto)
    if not drawn:
        raise Missing(
            "No number was swept, and fewer than two settings have both a score and a share of zeros, so there is nothing to draw."
        )
    return drawn


def _against(group: Group, mapping: str, key: str, curves: Sequence[Curve], salt: str, files: bool) -> Drawn:
    """Panels for the main score, the dev score and the share of zeros; error bars: standard deviation over seeds."""
    zeros = next((m for m, h in group.attention.items() if h == "zeros"), None)
    dev = next((m for m in group.scores if m.startswith("dev/")), None)
    metrics = [m for m in dict.fromkeys((group.score, dev, zeros)) if m]
    short = key.removeprefix("mapping.")
    title = f"{group.task}{', ' if mapping else ''}{mapping}: {', '.join(metrics)} against {short}"
    values = [x for c in curves for x, _ in c.points]
    width = 3.1 * len(metrics)
    labels = {curve.label: fill(curve.label, int(12 * width)) for curve in curves}
    rows = sum(label.count("\n") + 1 for label in labels.values())
    with _matplotlib(f"{salt}/{mapping}/{key}") as drawing_of:
        drawing = drawing_of(figsize=(width, 2.6 + 0.16 * rows), layout="constrained")
        for i, metric in enumerate(metrics):
            axes = drawing.add_subplot(1, len(metrics), i + 1)
            for style, curve in enumerate(curves):
                shown = [
                    (x, m) for x, s in curve.points if (m := s.summary(metric)) is not None and math.isfinite(m.mean)
                ]
                if shown:
                    spread = [m.std or 0.0 for _, m in shown]
                    look = _style(style) | {"markersize": 4, "capsize": 2.5, "elinewidth": 0.8}
                    look |= {"label": labels[curve.label], "gid": f"of {curve.label}"}
                    axes.errorbar([x for x, _ in shown], [m.mean for _, m in shown], spread, **look)
            if min(values) > 0 and max(values) / min(values) > WIDE:
                axes.set_xscale("log")
            if metric == zeros:
                axes.set_ylim(-0.03, 1.03)
            axes.set(xlabel=short, title=metric)
        drawing.legend(
            *drawing.axes[0].get_legend_handles_labels(), loc="outside lower left", frameon=False, fontsize=7.5
        )
        data = _data(metrics, short, ((c.label, x, s) for c in curves for x, s in c.points))
        name = "_".join(part for part in (group.task, mapping, short) if part)
        return Drawn(_file(name), title, (standalone if files else _inline)(drawing, title), data)


def _pareto(group: Group, salt: str, files: bool) -> Drawn | None:
    """The score against the share of zeros, or None if there are fewer than two settings with both numbers.

    The line joins the settings that are not dominated by any other setting.
    """
    zeros, score = next((m for m, h in group.attention.items() if h == "zeros"), None), group.score
    if zeros is None or score is None:
        return None
    points = [
        (z.mean, v.mean, s) for s in group.settings
        if (z := s.summary(zeros)) and (v := s.summary(score)) and math.isfinite(z.mean) and math.isfinite(v.mean)
    ]  # fmt: skip
    if len(points) < 2:
        return None
    sign = group.metric(score).better or 1
    front = sorted((p for p in points if not any(_beats(q, p, sign) for q in points)), key=lambda p: p[:2])
    mappings = list(dict.fromkeys(s.mapping for *_, s in points))
    title = f"{group.task}: {score} against {zeros}"
    with _matplotlib(f"{salt}/pareto") as drawing_of:
        drawing = drawing_of(figsize=(5.2, 3.2 + 0.1 * len(mappings)), layout="constrained")
        axes = drawing.add_subplot()
        look = _style(0)
        axes.plot([p[0] for p in front], [p[1] for p in front], color=look["color"], lw=0.8, alpha=0.5, zorder=1)
        said: dict[tuple[float, float], list[str]] = {}  # settings at the same point share a label
        for style, mapping in enumerate(mappings):
            own, look = [p for p in points if p[2].mapping == mapping], _style(style)
            keys = [k for k in own[0][2].values if _varies(k, own)]
            named = ", ".join(k.removeprefix("mapping.") for k in keys)
            dots = {"s": 26, "lw": 0, "color": look["color"], "marker": look["marker"]}
            dots |= {"label": fill(f"{mapping} ({named})" if named else mapping, 24), "gid": f"of {mapping}"}
            axes.scatter([p[0] for p in own], [p[1] for p in own], **dots)
            for x, y, s in own:
                told = ", ".join(text(s.values[k]) for k in keys if k in s.values) or mapping
                said.setdefault((round(x, 4), round(y, 4)), []).append(told)
        for place, labels in said.items():
            told = "; ".join(labels)
            told = told if len(told) <= 30 else f"{told[:29]}…"
            axes.annotate(told, place, (3, 3), textcoords="offset points", fontsize=6.5)
        axes.set(xlabel=zeros, ylabel=score)
        drawing.legend(loc="outside right upper", frameon=False, fontsize=7.5)
        data = _data([zeros, score], "", ((s.mapping, math.nan, s) for *_, s in points))
        return Drawn(_file(f"{group.task}_pareto"), title, (standalone if files else _inline)(drawing, title), data)


def _beats(a: tuple, b: tuple, sign: int) -> bool:
    no_worse = a[0] >= b[0] and sign * a[1] >= sign * b[1]
    return no_worse and (a[0] > b[0] or sign * a[1] > sign * b[1])


def _varies(key: str, points: Iterable[tuple]) -> bool:
    return len({str(s.values.get(key)) for *_, s in points}) > 1


def _data(metrics: Sequence[str], key: str, points: Iterable[tuple[str, float, Setting]]) -> str:
    number: Callable[[float | None], str] = lambda v: "" if v is None else f"{v:.6g}"  # noqa: E731
    head = [f"{m} {what}" for m in metrics for what in ("mean", "sd", "n")]
    rows = [["line", *([key] if key else []), "setting", *head]]
    for label, x, s in points:
        found = [s.summary(m) for m in metrics]
        numbers = [v for m in found for v in ([number(m.mean), number(m.std), m.n] if m else ["", "", 0])]
        rows.append([label, *([number(x)] if key else []), s.detail, *map(str, numbers)])
    return csv_text(rows)


def _file(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
