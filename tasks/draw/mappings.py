"""Pictures of the mappings over rows: SVG files that are the same on every machine.

The picture of a mapping shows, on the left, the first of two weights while its score goes from -3 to 3 and the other
score is 0; on the right, the weights of one row of ten scores, where a ring marks a weight of exactly 0. The sheet
shows the weights of the ten scores for all mappings. All weights are computed in float64 by the reference kernels.
"""

from pathlib import Path
from typing import Any

import torch

import sparse_attention as sa
from repro.files import templates
from sparse_attention.describe import Spec

TEN = (0.2, 1.1, 1.3, -0.5, 0.9, 2.0, 1.9, 0.3, -1.2, 0.6)
WIDTH, HEIGHT, LEFT, TOP = 120, 60, 20, 12  # size and position of a panel
STEPS = 60
DRAWN = {"GREY": "#888888", "BLUE": "#1f77b4", "WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "TOP": TOP}
DRAWN |= {"scores": [f"{score:g}" for score in TEN]}


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
    there = [(i, p) for i, p in enumerate(curve) if p == p]
    high = max(1.0, *(p for _, p in there))
    points = [f"{LEFT + WIDTH * i / STEPS:.1f},{TOP + HEIGHT * (1 - p / high):.1f}" for i, p in there]
    return _drawn(specs=(), spec=spec, row=row, high=high, points=points)


def sheet(specs: list[Spec]) -> str:
    """The SVG with the weights of the ten scores, one panel for each mapping."""
    return _drawn(specs=specs, weights=weights)


def _drawn(**of: Any) -> str:
    return templates(Path(__file__).parent).get_template("mapping.svg.jinja").render(DRAWN, **of)
