"""`make tour`: run the tour of the library, docs/start/library.md, make a notebook of it and draw its pictures."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import sparse_attention as sa

BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.S)
SCORES = torch.tensor([1.2, 1.1, 0.9, -0.2, 0.3, 1.0, -0.6, 0.1])
MAPPINGS = {
    "softmax": {},
    "entmax": {"alpha": 1.5},
    "sparsemax": {},
    "fusedmax": {"lam": 0.2},
    "oscarmax": {"lam": 0.1},
}


def write(docs: Path) -> None:
    """Run docs/start/library.md and write it with the output of its code; also write its notebook and its pictures."""
    page = run((docs / "library.md").read_text(encoding="utf-8"))
    (docs / "library.md").write_text(page, encoding="utf-8")
    (docs / "library.ipynb").write_text(notebook(page), encoding="utf-8")
    (docs / "figures").mkdir(exist_ok=True)
    for name, picture in figures():
        (docs / "figures" / name).write_bytes(picture)


def run(page: str) -> str:
    """The page with the output of each code block below the block. All blocks share one namespace.

    Raises:
        Exception: any error raised by a block.
    """
    names: dict[str, Any] = {"__name__": "tour"}

    def printed(block: re.Match[str]) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block[1], "docs/start/library.md", "exec"), names)
        said = f"\n```text\n{out.getvalue()}```\n" if out.getvalue() else ""
        return f"```python\n{block[1]}```\n{said}"

    return BLOCK.sub(printed, page)


def notebook(page: str) -> str:
    """The page as a Jupyter notebook (format 4.5), with the printed texts as outputs."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str, **more: Any) -> None:
        if text.strip():
            lines = text.strip("\n").splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, **more, "source": lines})

    at = 0
    for block in BLOCK.finditer(page):
        add("markdown", page[at : block.start()])
        said = {"name": "stdout", "output_type": "stream", "text": (block[2] or "").splitlines(keepends=True)}
        add("code", block[1], execution_count=None, outputs=[said] if block[2] else [])
        at = block.end()
    add("markdown", page[at:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}}
    return json.dumps({**whole, "nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"


def figures() -> Iterator[tuple[str, bytes]]:
    """(file name, SVG) for each picture."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    style: Any = {"svg.hashsalt": "tour", "svg.fonttype": "none", "font.size": 9}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    for draw in (_mappings, _alpha, _threshold, _heads, _continuous):
        with matplotlib.rc_context(style):
            figure, out = draw(plt), io.BytesIO()
            figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
            plt.close(figure)
        lines = [line.rstrip() for line in out.getvalue().decode().splitlines()]
        yield f"library{draw.__name__}.svg", ("\n".join(lines) + "\n").encode()


def _mappings(plt: Any) -> Any:
    figure, axes = plt.subplots(1, len(MAPPINGS), figsize=(9, 1.7), sharey=True)
    for axis, (name, params) in zip(axes, MAPPINGS.items()):
        p = sa.make(name, **params)(SCORES)
        axis.bar(range(len(p)), p, color=["#3b6ea5" if w > 0 else "none" for w in p])
        axis.plot([i for i, w in enumerate(p) if w == 0], [0.01] * int((p == 0).sum()), "x", color="#b04040", ms=4)
        axis.set(title="\n".join([name, *(f"{k} = {v}" for k, v in params.items())]), xticks=[], xlabel="position")
    axes[0].set_ylabel("weight (x: exactly 0)")
    return figure


def _alpha(plt: Any) -> Any:
    alphas = torch.linspace(1, 2.5, 61)
    p = sa.entmax(SCORES.expand(61, -1), alpha=alphas[:, None])
    figure, axis = plt.subplots(figsize=(6, 2.6))
    for i, score in enumerate(SCORES):
        axis.plot(alphas, p[:, i], label=f"{score:.1f}")
    axis.set(xlabel="alpha of entmax (1: softmax, 2: sparsemax)", ylabel="weight")
    axis.legend(title="score", ncol=2, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _threshold(plt: Any) -> Any:
    x = 0.5 * torch.randn(160, generator=torch.Generator().manual_seed(0))
    p = sa.sparsemax(x)
    tau, bound = float((x - p)[p > 0][0]), float(x.max()) - 1
    figure, axis = plt.subplots(figsize=(7, 2.4))
    for colour, chosen, text in (
        ("#bbbbbb", x <= bound, "below the bound: dropped at once"),
        ("#d9a441", (x > bound) & (p == 0), "candidates that get 0"),
        ("#3b6ea5", p > 0, "the support"),
    ):
        axis.plot(chosen.nonzero().squeeze(-1), x[chosen], ".", color=colour, label=f"{text} ({int(chosen.sum())})")
    axis.axhline(bound, color="#777777", lw=0.8, ls="--")
    axis.axhline(tau, color="#3b6ea5", lw=0.8)
    axis.annotate("largest score - 1", (162, bound), va="top", annotation_clip=False)
    axis.annotate("threshold", (162, tau), va="bottom", annotation_clip=False)
    axis.set(xlabel="key", ylabel="score")
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.12, 1))
    return figure


def _heads(plt: Any) -> Any:
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(24, 8, generator=draw).cumsum(0) for _ in range(2))  # neighbours are alike
    keep = torch.ones(24, 24).tril().bool()
    scores = (q + k) @ (q + k).mT / 24
    figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.6))
    for axis, (name, params) in zip(axes, (("softmax", {}), ("sparsemax", {}), ("fusedmax", {"lam": 0.2}))):
        p = sa.make(name, **params)(scores, mask=keep)
        zeros = float((p == 0)[keep].float().mean())
        axis.imshow(p.sqrt(), cmap="Blues", vmin=0, vmax=1)
        axis.set(title=f"{name}: {zeros:.0%} zeros", xlabel="key", xticks=[], yticks=[])
    axes[0].set_ylabel("query")
    return figure


def _continuous(plt: Any) -> Any:
    t = torch.linspace(0, 1, 201, dtype=torch.float64)
    figure, axis = plt.subplots(figsize=(6, 2.2))
    mu, variance = torch.tensor([0.45], dtype=torch.float64), torch.tensor([0.01], dtype=torch.float64)
    for name, alpha in (("Gaussian (softmax)", 1.0), ("biweight (entmax 1.5)", 1.5), ("parabola (sparsemax)", 2.0)):
        sigma_sq = sa.continuous.matched_sigma_sq(variance, alpha)
        kind = {1.0: sa.continuous.Gaussian, 1.5: sa.continuous.Biweight, 2.0: sa.continuous.TruncatedParabola}[alpha]
        axis.plot(t, kind(mu, sigma_sq).pdf(t), label=name)
    axis.set(xlabel="position in the document", ylabel="density")
    axis.legend(frameon=False)
    return figure
