"""Draws discrete and continuous attention over images side by side (after Figure 3 of Martins et al. 2020)."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.files import write_atomic
from repro.report import draw as canvas
from sparse_attention.mappings.continuous import MultivariateBetaGaussian
from tasks.config.models import mappings_at
from tasks.data import DataError
from tasks.data.images import ImageInput, decode
from tasks.layers.words import density_alpha
from tasks.vqa.models.mcan import PLACES

Picture = Callable[[str], np.ndarray]  # key of an image -> uint8 [height, width, 3]
LARGEST = 448  # side length, in pixels, of drawn images that the model saw as features
FINE = 96  # points per axis used to draw a density
COLOUR = "#0072B2"  # Okabe and Ito's blue, visible on the colour map to colour-blind readers
CHOICE = "Questions: answers other than yes and no first, of these what every row answers right first, one an image."


@dataclass
class Panel:
    """One row of the table. alpha: that of its density, None for discrete attention; records: test records by index."""

    label: str
    alpha: float | None
    records: dict[int, Mapping[str, Any]]
    attention: Mapping[str, Tensor]

    def right(self, question: int) -> bool:
        """Whether at least one annotator gave the same answer as this row."""
        record = self.records[question]
        return record["output"] in record["references"]


def panel(
    label: str, mapping: Mapping[str, Any], records: dict[int, Mapping[str, Any]], attention: Mapping[str, np.ndarray]
) -> Panel:
    """The panel of a finished cell, with its node `mapping` and its test records and stored attention."""
    alpha = density_alpha(mappings_at(mapping, PLACES)["image"])
    return Panel(label, alpha, records, {name: torch.from_numpy(array) for name, array in attention.items()})


def pictures(images: ImageInput) -> Picture:
    """A function that returns the picture of a key from a data set's about["images"]: uint8 [height, width, 3].

    An unreadable picture is black.
    """
    size = images.size if images.input == "pixels" else (LARGEST, LARGEST)

    def picture(key: str) -> np.ndarray:
        try:
            return np.zeros((*size, 3), np.uint8) if images.source is None else decode(images.source.read(key), size)
        except DataError:
            return np.zeros((*size, 3), np.uint8)

    return picture


def choose(panels: Sequence[Panel], count: int) -> list[int]:
    """`count` stored questions in the order given by CHOICE; several questions share an image only if necessary."""
    stored = [{int(k.partition("/")[2]) for k in p.attention if k.startswith("test/")} for p in panels]
    first = panels[0].records

    def order(i: int) -> tuple[bool, int, int]:
        return first[i]["answer_type"] == "yes/no", sum(not p.right(i) for p in panels), i

    common = sorted(set.intersection(*stored), key=order)
    chosen = sorted({first[i]["image"]: i for i in reversed(common)}.values(), key=order)
    return [*chosen, *(i for i in common if i not in chosen)][:count]


def write(
    panels: Sequence[Panel],
    questions: Sequence[int],
    picture: Picture,
    stem: Path,
    endings: Sequence[str],
    caption: str,
) -> Path:
    """Draw one row per question: the image, then each panel's heat map with the outline of its density.

    Args:
        questions: indices of test questions, see `choose`.
        picture: key of an image -> uint8 [height, width, 3].
        stem: the drawings are stem.png, .svg or .pdf, the weights stem.json, whose path is returned.
        caption: text below the figure.
    """
    width, height, told = 1 + len(panels), len(questions), []
    files = [stem.with_suffix(ending) for ending in endings]
    with canvas.captioned((2.3 * width, 2.75 * height + 0.2), caption, files) as figure:
        axes = figure.subplots(height, width, squeeze=False)
        for line, question in zip(axes, questions):
            record, rows = panels[0].records[question], []
            pixels = picture(record["image"])
            line[0].imshow(pixels, extent=(0, 1, 1, 0), interpolation="nearest")
            line[0].set_title(f"{record['source']}\n{' / '.join(record['references'][:2])}", fontsize=8)
            for axis, panel in zip(line[1:], panels):
                _panel(axis, panel, question, pixels)
                output, verdict = panel.records[question]["output"], "right" if panel.right(question) else "wrong"
                axis.set_title(f"{panel.label}\n{output} ({verdict})", fontsize=8)
                weights = [round(v, 6) for v in panel.attention[f"test/{question}"].flatten().tolist()]
                rows.append({"label": panel.label, "output": output, "weights": weights})
            for axis in line:
                axis.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
            told.append({"question": question, "asked": record["source"], "rows": rows})
    data = stem.with_suffix(".json")
    write_atomic(data, (json.dumps({"about": caption, "questions": told}, ensure_ascii=False) + "\n").encode())
    return data


def _panel(axis: Any, panel: Panel, question: int, pixels: np.ndarray) -> None:
    """A heat map over the image in grey; of a density, with outlines.

    For alpha > 1, the outline is the edge of the support; for a Gaussian, there are two, at one and two standard
    deviations.
    """
    grey = pixels.mean(-1, keepdims=True) / 255
    axis.imshow(np.repeat(0.55 + 0.45 * grey, 3, -1), extent=(0, 1, 1, 0), interpolation="nearest")
    if panel.alpha is None:
        _heat(axis, panel.attention[f"test/{question}"].T.numpy(), "nearest")
        return
    mu, sigma = (panel.attention[f"{what}/{question}"] for what in ("mu", "sigma"))  # [2], [2, 2], or with a leading K
    shares = panel.attention.get(f"pi/{question}", torch.ones(1))
    line = (torch.arange(FINE) + 0.5) / FINE
    points = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).double()
    heat = torch.zeros(FINE, FINE, dtype=torch.float64)
    for share, m, s in zip(shares.reshape(-1), mu.reshape(-1, 2), sigma.reshape(-1, 2, 2)):
        if share > 0.01:
            density = MultivariateBetaGaussian(m, s, panel.alpha).pdf(points)
            heat += share * density
            levels = [math.exp(-2), math.exp(-0.5)] if panel.alpha == 1 else [1e-3]
            axis.contour(line, line, density / density.max(), levels, colors=COLOUR, linewidths=1.2)
    _heat(axis, heat.numpy(), "bilinear")


def _heat(axis: Any, heat: np.ndarray, interpolation: str) -> None:
    """Draw a heat map that is transparent where the weight is exactly zero."""
    top = max(float(heat.max()), 1e-12)
    clear = {"alpha": 0.25 + 0.65 * np.clip(heat / top, 0, 1), "interpolation": interpolation}
    axis.imshow(np.ma.masked_equal(heat, 0), extent=(0, 1, 1, 0), cmap="YlOrRd", vmin=0, vmax=top, **clear)
