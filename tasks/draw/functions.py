"""The papers' figures that need no data, computed by our own library and written as numbers and as a picture.

Each figure notes what the published figure shows; details that the paper does not state, and the values that we chose
for them, are in `chosen`.
"""

import base64
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sparse_attention as sa
from repro.files import csv_text, write_atomic
from repro.report.draw import INK, PAPER, canvas, heat, heat_scale
from sparse_attention.mappings import continuous
from tasks.config.files import values_in

ABOUT = "White lines: where a weight becomes exactly 0 or 1, or a density 0. The numbers are in the .csv next to each picture."
COLOURS = 32  # colours of the bitmaps inside an SVG
MAP, SURFACE, WRITTEN = 161, 41, 21  # grid points per side: of a map, a surface, the numbers written


@dataclass(frozen=True)
class Panel:
    """One set of curves, or one map.

    `columns` has its numbers: x (and y for a map), then the values to draw; [n] for curves, [n, n] otherwise.
    """

    title: str
    columns: dict[str, Tensor]
    kind: str = "curves"  # row, surface, map, contours

    def written(self) -> Iterator[tuple[float, ...]]:
        """The rows of numbers that are written to the .csv: all for curves, a coarser grid otherwise."""
        columns = self.columns.values()
        if self.kind not in ("curves", "row"):
            steps = [slice(None, None, (len(column) - 1) // (WRITTEN - 1)) for column in columns]
            columns = [column[step, step].flatten() for column, step in zip(columns, steps)]
        return zip(*columns)


def _row() -> Iterator[Panel]:
    x = torch.tensor([0.7, 1.2, 1.0, -0.4, 0.2, 1.1, 0.9, -0.2], dtype=torch.float64)
    weights = {"softmax": sa.softmax(x), "sparsemax": sa.sparsemax(x), "fusedmax": sa.fusedmax(x)}
    yield Panel("One row of scores (top) and its attention weights", {"score": x} | weights, "row")


def _entropies() -> dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]:
    """Label -> (mapping, Omega) with gamma = 1, from Niculae & Blondel 2017."""

    def variation(p: Tensor) -> Tensor:
        return (p[..., 1:] - p[..., :-1]).abs().sum(-1)

    def pairs(p: Tensor) -> Tensor:
        return torch.maximum(p.unsqueeze(-1), p.unsqueeze(-2)).triu(1).sum((-2, -1))

    half = lambda p: 0.5 * p.square().sum(-1)  # noqa: E731
    entropies: dict[str, Any] = {
        "softmax": (sa.softmax, lambda p: torch.special.xlogy(p, p).sum(-1)),
        "sparsemax": (sa.sparsemax, half),
        "sq-pnorm-max p=1.5": (lambda x: sa.pnormmax(x, p=1.5), lambda p: 0.5 * p.pow(1.5).sum(-1).pow(2 / 1.5)),
    }
    for mapping, lam, label, penalty in (
        (sa.fusedmax, 0.1, "fusedmax lambda=.1", variation),
        (sa.fusedmax, 0.5, "fusedmax lambda=.5", variation),
        (sa.oscarmax, 0.1, "oscarmax lambda=.1", pairs),
    ):
        entropies[label] = partial(mapping, lam=lam), lambda p, lam=lam, penalty=penalty: half(p) + lam * penalty(p)
    return entropies


def _max(x: Tensor, mapping: Any, omega: Any) -> tuple[Tensor, Tensor]:
    """max_Omega(x) and p = Pi_Omega(x), where max_Omega(x) = <p, x> - Omega(p).

    The maximum is shifted by Omega(e_1), so that it equals max(x) where p is a corner of the simplex.
    """
    p = mapping(x)
    corner = torch.zeros_like(x[:1])
    corner[..., 0] = 1
    return (p * x).sum(-1) - omega(p) + omega(corner), p


def _two() -> Iterator[Panel]:
    t = torch.linspace(-4, 4, 401, dtype=torch.float64)
    x = torch.stack((t, torch.zeros_like(t)), -1)
    maxima = {name: _max(x, *of) for name, of in _entropies().items() if not name.startswith("oscarmax")}
    values = {k: v for k, (v, _) in maxima.items()}
    yield Panel("max operator of [t, 0] plus Omega of a corner", {"t": t} | values)
    yield Panel("mapping of [t, 0], first weight", {"t": t} | {k: p[:, 0] for k, (_, p) in maxima.items()})


def _square(low: float, high: float, steps: int = MAP) -> tuple[Tensor, Tensor]:
    """The coordinates of a grid, [steps, steps] each."""
    side = torch.linspace(low, high, steps, dtype=torch.float64)
    across, along = torch.meshgrid(side, side, indexing="xy")
    return across, along


def _three() -> Iterator[Panel]:
    first, second = _square(-3, 3, SURFACE)
    x = torch.stack((first, second, torch.zeros_like(first)), -1)
    maxima = {name: _max(x, *of) for name, of in _entropies().items()}
    for name, (value, _) in maxima.items():
        yield Panel(f"max, {name}", {"t1": first, "t2": second, "max": value}, "surface")
    for name, (_, p) in maxima.items():
        yield Panel(f"first weight, {name}", {"t1": first, "t2": second, "weight": p[..., 0]}, "surface")


def _weights(kind: str, points: Sequence[tuple[str, dict[str, float]]]) -> Iterator[Panel]:
    """The first weight of two scores, for mappings with their parameters."""
    first, second = _square(-2, 2)
    for name, parameters in points:
        p = sa.make(name, **parameters)(torch.stack((first, second), -1))[..., 0]
        title = " ".join([name, *(f"{k}={v:g}" for k, v in parameters.items())])
        yield Panel(title, {"z1": first, "z2": second, "p1": p}, kind)


def _lambda() -> Iterator[Panel]:
    z = torch.tensor([1.0, 0.8, 0.6, 0.2, -0.5], dtype=torch.float64)
    lams = torch.linspace(-4, 0.95, 100, dtype=torch.float64)
    p = torch.stack([sa.sparsegen_lin(z, lam=float(lam)) for lam in lams])
    named = {f"p of z={value:g}": p[:, i] for i, value in enumerate(z.tolist())}
    yield Panel("sparsegen-lin: weights", {"lambda": lams} | named)
    scores = torch.randn(2000, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    support = [(sa.sparsegen_lin(scores, lam=float(lam)) > 0).sum(-1).double().mean() for lam in lams]
    yield Panel("mean support of 20 normal scores", {"lambda": lams, "support": torch.stack(support)})


def _line() -> Iterator[Panel]:
    t = torch.linspace(-3, 3, 601, dtype=torch.float64)
    zero, one = torch.tensor([0.0, 1.0], dtype=torch.float64)
    gaussians = ("Gaussian", continuous.Gaussian), ("truncated paraboloid", continuous.TruncatedParabola)
    others = ("Laplace", continuous.Laplace), ("triangular", continuous.Triangular)
    for title, families in (("mu = 0, sigma^2 = 1", gaussians), ("mu = 0, b = 1", others)):
        lines = {f"{name} (alpha = {alpha})": of(zero, one).pdf(t) for alpha, (name, of) in enumerate(families, 1)}
        yield Panel(f"densities of {title}", {"t": t} | lines)


def _plane() -> Iterator[Panel]:
    first, second = _square(-3, 3)
    mu, sigma = torch.zeros(2, dtype=torch.float64), torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    gaussian, paraboloid = continuous.MultivariateGaussian, continuous.TruncatedParaboloid
    for title, family in (("Gaussian", gaussian), ("truncated paraboloid", paraboloid)):
        density = family(mu, sigma).pdf(torch.stack((first, second), -1))
        yield Panel(title, {"t1": first, "t2": second, "density": density}, "map")


REGIONS = {  # figure -> the mappings whose first weight of two scores is drawn, as a map
    "laha2018_figure2": [("sparsegen_lin", {"lam": lam}) for lam in (-1.0, 0.0, 0.5)],
    "laha2018_figure3a": [("sparsecone", {"q": q}) for q in (0.5, 1.0, 2.0)],
    "laha2018_figure3b": [("sparsehourglass", {"q": q}) for q in (0.1, 1.0, 10.0)],
}
PANELS = {
    "one_row": _row,
    "niculae2017_figure2": _two,
    "niculae2017_appendix_c1": _three,
    "laha2018_figure1": partial(_weights, "contours", [("softmax", {}), ("sparsemax", {}), ("sum_normalization", {})]),
    **{name: partial(_weights, "map", mappings) for name, mappings in REGIONS.items()},
    "laha2018_lambda": _lambda,
    "martins2020_figure1_line": _line,
    "martins2020_figure1_plane": _plane,
}
# name -> what the published figure shows, and what we chose
FIGURES = values_in("paper_figures")


def write_all(names: Sequence[str], folder: Path) -> Iterator[list[Path]]:
    """Write the figures with these names; without names, write all figures and their page.

    A figure is <name>.csv (panel, column, numbers) and <name>.svg. Yields the paths of each figure.
    """
    for name in names or FIGURES:
        files = drawn(name)
        for file, content in files.items():
            write_atomic(folder / file, content)
        yield [folder / file for file in files]
    if not names:
        write_atomic(folder / "README.md", page().encode())


def drawn(name: str) -> dict[str, bytes]:
    """The files of a figure: file name -> content."""
    panels = list(PANELS[name]())
    rows: list[Sequence[str]] = []
    for panel in panels:
        rows.append(["panel", *panel.columns])
        rows += [[panel.title, *(f"{v:.5g}" for v in row)] for row in panel.written()]
    across = min(len(panels), 6)
    down = -(-len(panels) // across)
    with canvas((6.4, 1.9) if panels[0].kind == "row" else (3.3 * across, 3.0 * down), style={}) as drawing:
        for i, panel in enumerate(panels, 1):
            kind = "3d" if panel.kind == "surface" else None
            draw(drawing.add_subplot(down, across, i, projection=kind), panel)
        buffer = io.BytesIO()
        drawing.savefig(buffer, format="svg", dpi=110, metadata={"Date": None})
    return {f"{name}.csv": csv_text(rows).encode(), f"{name}.svg": _light(buffer.getvalue())}


def _light(svg: bytes) -> bytes:
    """Make an SVG smaller.

    Its bitmaps get COLOURS colours, coordinates are cut to a hundredth of a point, and indentation and group names are
    removed.
    """
    from PIL import Image

    def fewer(bitmap: re.Match[bytes]) -> bytes:
        out = io.BytesIO()
        image = Image.open(io.BytesIO(base64.b64decode(bitmap[1])))
        image.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(out, "png", optimize=True)
        return b"base64," + base64.b64encode(out.getvalue())

    parts = re.split(rb"(base64,[^\"]+)", svg)
    parts[::2] = (re.sub(rb"(\d\.\d\d)\d+|(<g) id=\"[^\"]*\"|\n( )\s+", rb"\1\2\3", part) for part in parts[::2])
    return b"".join(re.sub(rb"base64,([^\"]+)", fewer, part) for part in parts)


def draw(axes: Any, panel: Panel) -> None:
    """Draw a panel on matplotlib's axes, which are 3D for a surface."""
    names, values = list(panel.columns), [column.numpy() for column in panel.columns.values()]
    axes.set_title(panel.title, fontsize=8)
    if panel.kind == "row":
        weights = np.stack(values[1:])
        heat(axes, weights / weights.max(), names[1:], [f"{score:.1f}" for score in values[0]])
        for (y, x), weight in np.ndenumerate(weights):
            dark = weight > weights.max() / 2
            axes.text(x + 0.5, y + 0.5, f"{weight:.2f}" if weight else "0", color=PAPER if dark else INK, ha="center", va="center")  # fmt: skip
        heat_scale(axes, weights.max())
        return
    axes.tick_params(labelsize=7)
    axes.set_xlabel(names[0], fontsize=8)
    if panel.kind == "curves":
        for name, value in zip(names[1:], values[1:]):
            axes.plot(values[0], value, label=name, linewidth=1.2)
        axes.legend(fontsize=6, frameon=False)
        return
    axes.set_ylabel(names[1], fontsize=8)
    first, second, height = values
    if panel.kind == "surface":
        coarse: Any = {"rcount": SURFACE, "ccount": SURFACE, "linewidth": 0, "rasterized": True}
        axes.plot_surface(first, second, height, cmap="viridis", **coarse)
        axes.locator_params(nbins=3)
        axes.view_init(28, -125)
        return
    height = np.ma.masked_invalid(height)  # sparsecone has no value where the scores sum to zero or less
    low, high = float(height.min()), float(height.max())
    colours = axes.pcolormesh(
        first, second, height, vmin=low, vmax=high, cmap="viridis", shading="gouraud", rasterized=True
    )
    axes.set_aspect("equal")
    scale = axes.figure.colorbar(colours, ax=axes, shrink=0.7)
    scale.ax.tick_params(labelsize=7)
    scale.set_label(names[2], fontsize=8)
    if panel.kind == "contours":
        axes.contour(first, second, height, levels=np.arange(1, 10) / 10, colors="black", linewidths=0.7)
        axes.plot([1, 0], [0, 1], color="white", linewidth=2)
        return
    for corner in (0, 1) if names[2] == "p1" else (0,):
        if (at := height.filled(np.nan) == corner).any():  # a Gaussian is nowhere zero
            axes.contour(first, second, at.astype(float), levels=[0.5], colors="white", linewidths=1)


def page() -> str:
    """The page in Markdown: each figure, with a description of the published figure."""
    lines = ["# Figures of the papers, drawn by our own library", "", "    make paper-figures", "", ABOUT, ""]
    for name, figure in FIGURES.items():
        about = [f"* published: {figure['published']}", f"* ours: {figure['chosen']}", ""]
        lines += [f"## {name}", "", *about, f"![{name}]({name}.svg)", ""]
    return "\n".join(lines)
