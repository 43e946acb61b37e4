"""Attention over images, discrete beside continuous (after Figure 3 of Martins et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_attention.mappings.continuous import MultivariateBetaGaussian
from tasks.config.models import mappings_at
from tasks.data import DataUnavailable
from tasks.data.images import ImageError, ImageInput, decode
from tasks.layers import density_alpha
from tasks.vqa.models.mcan import PLACES

LARGEST = 448  # pixels of a side of images that the model saw as features
FINE = 96  # points per axis on which a density is drawn
COLOUR = "#0072B2"  # Okabe and Ito's blue, distinct for colour-blind readers on the map used
CHOICE = "Questions: answers other than yes and no first, of these what every row answers right first, one an image."
NEXT = "run the experiment first: python scripts/reproduce.py martins2020_table2"


@dataclass
class Panel:
    """One row of the table. alpha: of its density, None for discrete attention; records: test questions by number."""

    label: str
    alpha: float | None
    records: dict[int, Mapping[str, Any]]
    attention: Mapping[str, Tensor]

    def right(self, question: int) -> bool:
        """Whether an annotator gave the row's answer."""
        record = self.records[question]
        return record["output"] in record["references"]


def read_panel(label: str, mapping: Mapping[str, Any], records: Iterable[Mapping[str, Any]], attention: Path) -> Panel:
    """A finished cell: the mapping's node of its configuration, the test set's records, its attention.safetensors.

    Raises DataUnavailable when no attention is stored.
    """
    from safetensors.torch import load_file

    if not attention.is_file():
        raise DataUnavailable(f"the row {label!r} has no stored attention", str(attention), NEXT)
    alpha = density_alpha(mappings_at(mapping, PLACES)["image"])
    return Panel(label, alpha, {r["index"]: r for r in records if r["set"] == "test"}, load_file(attention))


def pictures(images: ImageInput) -> Callable[[str], np.ndarray]:
    """The pictures of a data set, out of its about["images"]: key -> uint8 [height, width, 3]; black when unreadable."""
    size = images.size if images.input == "pixels" else (LARGEST, LARGEST)

    def picture(key: str) -> np.ndarray:
        try:
            return np.zeros((*size, 3), np.uint8) if images.source is None else decode(images.source.read(key), size)
        except ImageError:
            return np.zeros((*size, 3), np.uint8)

    return picture


def choose(panels: Sequence[Panel], count: int) -> list[int]:
    """`count` stored questions in the order that CHOICE says; several of an image only when there are no more."""
    stored = [{int(k.partition("/")[2]) for k in p.attention if k.startswith("test/")} for p in panels]
    first = panels[0].records

    def order(i: int) -> tuple[bool, int, int]:
        return first[i]["answer_type"] == "yes/no", sum(not p.right(i) for p in panels), i

    fresh: dict[str, int] = {}
    common = sorted(set.intersection(*stored), key=order)
    for i in common:
        fresh.setdefault(first[i]["image"], i)
    chosen = list(fresh.values())
    return [*chosen, *(i for i in common if i not in chosen)][:count]


def draw(
    panels: Sequence[Panel], questions: Sequence[int], picture: Callable[[str], np.ndarray], files: Sequence[Path],
    caption: str = "",
) -> list[Path]:  # fmt: skip
    """One row a question: the image, then each panel's heat map with its density's outline.

    Args:
        questions: numbers of test questions, see `choose`.
        picture: key of an image -> uint8 [height, width, 3].
        files: .png, .svg or .pdf; all are written.
        caption: below the figure.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    width, height = 1 + len(panels), len(questions)
    figure, axes = plt.subplots(
        height, width, figsize=(2.3 * width, 2.75 * height + 0.2), squeeze=False, layout="constrained"
    )
    for line, question in zip(axes, questions):
        record = panels[0].records[question]
        pixels = picture(record["image"])
        line[0].imshow(pixels, extent=(0, 1, 1, 0), interpolation="nearest")
        line[0].set_title(f"{record['source']}\n{' / '.join(record['references'][:2])}", fontsize=8)
        for axis, panel in zip(line[1:], panels):
            _panel(axis, panel, question, pixels)
            verdict = "right" if panel.right(question) else "wrong"
            axis.set_title(f"{panel.label}\n{panel.records[question]['output']} ({verdict})", fontsize=8)
        for axis in line:
            axis.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
    figure.supxlabel(caption, fontsize=7)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=130)
    plt.close(figure)
    return list(files)


def ellipse(mu: Tensor, sigma: Tensor, alpha: float, points: int = 100) -> list[Tensor]:
    """Outlines of a density mu [2], sigma [2, 2] in units of the image, first coordinate rows: [points, 2] each.

    The edge of the support for alpha > 1; one and two standard deviations for a Gaussian.
    """
    angle = torch.linspace(0, 2 * math.pi, points, dtype=torch.float64)
    circle = torch.stack((angle.cos(), angle.sin()), -1)  # [points, 2]
    mu, sigma = mu.double(), sigma.double()
    if alpha == 1:
        factor = torch.linalg.cholesky(sigma)
        return [mu + k * circle @ factor.mT for k in (1.0, 2.0)]
    return [mu + circle @ MultivariateBetaGaussian(mu, sigma, alpha).support_map().mT]


def _panel(axis: Any, panel: Panel, question: int, pixels: np.ndarray) -> None:
    grey = pixels.mean(-1, keepdims=True) / 255
    axis.imshow(np.repeat(0.55 + 0.45 * grey, 3, -1), extent=(0, 1, 1, 0), interpolation="nearest")
    if panel.alpha is None:
        _heat(axis, panel.attention[f"test/{question}"].T.numpy(), "nearest")
        return
    mu, sigma = (
        panel.attention[f"mu/{question}"],
        panel.attention[f"sigma/{question}"],
    )  # [2], [2, 2] or with K in front
    shares = panel.attention.get(f"pi/{question}", torch.ones(1))
    parts = [p for p in zip(shares.reshape(-1), mu.reshape(-1, 2), sigma.reshape(-1, 2, 2)) if p[0] > 0.01]
    line = (torch.arange(FINE) + 0.5) / FINE
    points = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).double()
    heat = torch.zeros(FINE, FINE, dtype=torch.float64)
    for share, m, s in parts:
        heat += share * MultivariateBetaGaussian(m, s, panel.alpha).pdf(points)
    _heat(axis, heat.numpy(), "bilinear")
    for _, m, s in parts:
        for outline in ellipse(m, s, panel.alpha):
            axis.plot(outline[:, 1], outline[:, 0], color=COLOUR, linewidth=1.2)


def _heat(axis: Any, heat: np.ndarray, interpolation: str) -> None:
    """Transparent where the weight is exactly zero."""
    top = max(float(heat.max()), 1e-12)
    axis.imshow(
        np.ma.masked_equal(heat, 0), extent=(0, 1, 1, 0), cmap="YlOrRd", vmin=0, vmax=top, interpolation=interpolation,
        alpha=0.25 + 0.65 * np.clip(heat / top, 0, 1),
    )  # fmt: skip
