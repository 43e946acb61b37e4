"""Pictures of the mappings over rows: SVG files that are the same on every machine.

The picture of a mapping shows, on the left, the first of two weights while its score goes from -3 to 3 and the other
score is 0; on the right, the weights of one row of ten scores, where a ring marks a weight of exactly 0. The sheet
shows the weights of the ten scores for all mappings. All weights are computed in float64 by the reference kernels.
"""

from __future__ import annotations

from typing import Any

import torch

import sparse_attention as sa
from sparse_attention.describe import Spec

TEN = (0.2, 1.1, 1.3, -0.5, 0.9, 2.0, 1.9, 0.3, -1.2, 0.6)
WIDTH, HEIGHT, LEFT, TOP = 120, 60, 20, 12  # size and position of a panel
STEPS = 60
GREY, BLUE = "#888888", "#1f77b4"
TEXT = f'font-family="sans-serif" font-size="8" fill="{GREY}"'


def drawable(spec: Spec) -> bool:
    """True for functions of a row of scores."""
    return spec.over == "row" and spec.function is not None


def weights(spec: Spec) -> tuple[list[float], list[float]]:
    """The first weight of the scores (t, 0), for t from -3 to 3, and the weights of TEN.

    A mapping of non-negative scores gets (t + 3, 3), and TEN minus its minimum.
    """
    function: Any = spec.function
    t = torch.linspace(-3, 3, STEPS + 1, dtype=torch.float64)
    pairs, ten = torch.stack((t, torch.zeros_like(t)), -1), torch.tensor(TEN, dtype=torch.float64)
    if spec.domain == "nonnegative":
        pairs, ten = pairs + 3.0, ten - ten.min()
    of_pairs: dict[str, Any] = {"bounds": 0.8, "groups": 2}
    of_ten: dict[str, Any] = {"bounds": 0.2, "groups": 5}
    with sa.kernels.use("reference"):
        curve = function(pairs, **{name: of_pairs[name] for name in spec.inputs})[:, 0]
        row = function(ten, **{name: of_ten[name] for name in spec.inputs})
    return curve.tolist(), row.tolist()


def picture(spec: Spec) -> str:
    """The SVG."""
    curve, row = weights(spec)
    shift = 3 if spec.domain == "nonnegative" else 0
    high = max(1.0, *(p for p in curve if p == p))
    points = [
        f"{LEFT + WIDTH * i / STEPS:.1f},{TOP + HEIGHT * (1 - p / high):.1f}" for i, p in enumerate(curve) if p == p
    ]
    at = LEFT + WIDTH + 40
    size = f'0 0 {at + WIDTH + 10} {TOP + HEIGHT + 14}" width="{2 * (at + WIDTH + 10)}"'
    title = f"{spec.name}: the first weight of the scores (t, {shift}), and the weights of ten scores"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}>', f"<title>{title}</title>"]
    lines += [_axis(x, f"{top:.2g}") for x, top in ((LEFT, high), (at, max(row)))]
    for t in (-3, 0, 3):
        x = f"{LEFT + WIDTH * (t + 3) / 6:.0f}"
        lines.append(f'<text x="{x}" y="{TOP + HEIGHT + 10}" text-anchor="middle" {TEXT}>{t + shift}</text>')
    lines.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>')
    for i, score in enumerate(TEN):
        x = at + WIDTH * (i + 0.5) / len(row)
        lines.append(
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 10}" text-anchor="middle" {TEXT.replace("8", "6", 1)}>{score:g}</text>'
        )
    return "\n".join([*lines, *_bars(row, at), "</svg>\n"])


def sheet(specs: list[Spec]) -> str:
    """The SVG with the weights of the ten scores, one panel for each mapping."""
    columns, wide, tall = 5, LEFT + WIDTH + 20, TOP + HEIGHT + 22
    size = f"{columns * wide} {-(-len(specs) // columns) * tall}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{columns * wide}">',
        f"<title>Weights of the scores {', '.join(f'{score:g}' for score in TEN)} by each mapping</title>",
    ]
    for i, spec in enumerate(specs):
        _, row = weights(spec)
        name = f'<text x="{LEFT + WIDTH // 2}" y="{TOP + HEIGHT + 10}" text-anchor="middle" {TEXT}>{spec.name}</text>'
        lines.append(f'<g transform="translate({i % columns * wide} {i // columns * tall})">')
        lines += [_axis(LEFT, f"{max(row):.2g}"), name, *_bars(row, LEFT), "</g>"]
    return "\n".join([*lines, "</svg>\n"])


def _bars(row: list[float], at: int) -> list[str]:
    """A bar for each weight of a row, from x = at; a ring for a weight of exactly 0."""
    centres = [at + WIDTH * (i + 0.5) / len(row) for i in range(len(row))]
    heights = [HEIGHT * p / max(row) for p in row]
    return [
        f'<rect x="{x - 4:.1f}" y="{TOP + HEIGHT - tall:.1f}" width="8" height="{tall:.1f}" fill="{BLUE}"/>'
        if tall
        else f'<circle cx="{x:.1f}" cy="{TOP + HEIGHT - 2}" r="1.5" fill="none" stroke="{GREY}" stroke-width="0.7"/>'
        for x, tall in zip(centres, heights)
    ]


def _axis(x: int, top: str) -> str:
    """A baseline, and a mark at the highest weight."""
    return (
        f'<path d="M{x} {TOP}V{TOP + HEIGHT}H{x + WIDTH}" fill="none" stroke="{GREY}" stroke-width="0.7"/>'
        f'<text x="{x - 3}" y="{TOP + 3}" text-anchor="end" {TEXT}>{top}</text>'
    )
