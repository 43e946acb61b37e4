"""Attention over images, discrete beside continuous (after Figure 3 of Martins et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparse_attention.mappings.continuous import MultivariateBetaGaussian
from sparse_attention.repro.store import Entry
from tasks.data.errors import DataUnavailable
from tasks.vqa.corpus import load_corpus
from tasks.vqa.images import ImageError, decode
from tasks.vqa.mcan import ALPHAS
from tasks.vqa.regions import ellipse

FINE = 96  # points per axis on which a density is drawn
LARGEST = 448  # pixels of a side that images are drawn with
COLOUR = "#0072B2"  # Okabe and Ito's blue, distinct for colour-blind readers on the map used


@dataclass
class Panel:
    """One row of the table on one question."""

    label: str
    reduction: str
    config: Mapping[str, Any]
    records: dict[int, dict[str, Any]]
    attention: Mapping[str, torch.Tensor]


def read_panel(label: str, entry: Entry, config: Mapping[str, Any]) -> Panel:
    """A finished cell. Raises DataUnavailable when it has no stored attention."""
    from safetensors.torch import load_file

    path = entry.path("attention.safetensors")
    if not path.is_file():
        raise DataUnavailable(
            f"the row {label!r} has no stored attention",
            str(path),
            "run the experiment first: python scripts/reproduce.py martins2020_table2",
        )
    records = {r["index"]: r for r in entry.predictions() if r["set"] == "test"}
    return Panel(label, str(config["model"]["reduction"]), config, records, load_file(path))


def choose(panels: Sequence[Panel], count: int) -> list[int]:
    """`count` stored questions: answers other than yes and no before those, then what every row answers rightly; one an image
    as long as there are images."""
    stored = [{int(k.partition("/")[2]) for k in p.attention if k.startswith("test/")} for p in panels]
    common = sorted(set.intersection(*stored))

    def wrong(i: int) -> int:
        return sum(p.records[i]["output"] not in p.records[i]["references"] for p in panels)

    chosen: list[int] = []
    images: set[str] = set()
    for fresh in (
        True,
        False,
    ):  # answers other than yes and no first, one question an image as long as there are images
        for i in sorted(common, key=lambda i: (panels[0].records[i]["answer_type"] == "yes/no", wrong(i), i)):
            if len(chosen) < count and i not in chosen and (not fresh or panels[0].records[i]["image"] not in images):
                chosen.append(i)
                images.add(panels[0].records[i]["image"])
    return chosen


def draw(panels: Sequence[Panel], indices: Sequence[int], files: Sequence[Path], root: str | None = None) -> list[Path]:
    """One row a question: the image, then each panel's heat map with its density's outline.

    Args:
        indices: test questions, see `choose`.
        files: .png, .svg or .pdf; all are written.
        root: data cache, when it is not where the cells were run.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    data = dict(panels[0].config["task"]["data"]) | ({"root": root} if root else {})
    source = load_corpus(data).source
    figure, axes = plt.subplots(
        len(indices),
        1 + len(panels),
        figsize=(2.3 * (1 + len(panels)), 2.75 * len(indices)),
        squeeze=False,
        layout="constrained",
    )
    for line, index in zip(axes, indices):
        record = panels[0].records[index]
        picture = _picture(source, record["image"], data)
        line[0].imshow(picture, extent=(0, 1, 1, 0), interpolation="nearest")
        line[0].set_title(f"{record['source']}\n{' / '.join(record['references'][:2])}", fontsize=8)
        for axis, panel in zip(line[1:], panels):
            _panel(axis, panel, index, picture)
            right = panel.records[index]["output"] in panel.records[index]["references"]
            axis.set_title(
                f"{panel.label}\n{panel.records[index]['output']} ({'right' if right else 'wrong'})", fontsize=8
            )
        for axis in line:
            axis.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=130)
    plt.close(figure)
    return list(files)


def _picture(source: Any, key: str, data: Mapping[str, Any]) -> np.ndarray:
    height, width = data["image_size"] if data["input"] == "pixels" else (LARGEST, LARGEST)
    try:
        return decode(source.read(key), (height, width))
    except (ImageError, AttributeError):  # unreadable, or a set without images
        return np.zeros((height, width, 3), np.uint8)


def _panel(axis: Any, panel: Panel, index: int, picture: np.ndarray) -> None:
    grey = picture.mean(-1, keepdims=True) / 255
    axis.imshow(np.repeat(0.55 + 0.45 * grey, 3, -1), extent=(0, 1, 1, 0), interpolation="nearest")
    alpha = ALPHAS[panel.reduction]
    if alpha is None:
        heat = panel.attention[f"test/{index}"].T.numpy()
        _heat(axis, heat, "nearest")
        return
    mu, sigma = panel.attention[f"mu/{index}"], panel.attention[f"sigma/{index}"]  # [2], [2, 2] or with K in front
    shares = panel.attention.get(f"pi/{index}", torch.ones(1))
    line = (torch.arange(FINE) + 0.5) / FINE
    points = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).double()
    heat = torch.zeros(FINE, FINE, dtype=torch.float64)
    for share, m, s in zip(shares.reshape(-1), mu.reshape(-1, 2), sigma.reshape(-1, 2, 2)):
        if share > 0.01:
            heat += share * MultivariateBetaGaussian(m, s, alpha).pdf(points)
    _heat(axis, heat.numpy(), "bilinear")
    for share, m, s in zip(shares.reshape(-1), mu.reshape(-1, 2), sigma.reshape(-1, 2, 2)):
        if share > 0.01:
            for outline in ellipse(m, s, alpha):
                axis.plot(outline[:, 1], outline[:, 0], color=COLOUR, linewidth=1.2)


def _heat(axis: Any, heat: np.ndarray, interpolation: str) -> None:
    """Transparent where the weight is exactly zero."""
    top = max(float(heat.max()), 1e-12)
    axis.imshow(
        np.ma.masked_equal(heat, 0), extent=(0, 1, 1, 0), cmap="YlOrRd", vmin=0, vmax=top, alpha=0.25 + 0.65 * np.clip(heat / top, 0, 1),
        interpolation=interpolation,
    )  # fmt: skip
