"""Statistics of attention weights: support, zeros, entropy, groups, clusters and contiguity.

Also their agreement with human alignments and rationales.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .rows.shape import in_float64

SAME = 1e-6  # relative difference up to which two weights count as equal


def attention_statistics(p: Tensor, mask: Tensor | None = None) -> dict[str, float]:
    """Statistics of attention weights, averaged over the rows that have at least one kept position.

    Args:
        p: weights ``[..., n]``, attention along the last dimension.
        mask: bool, broadcastable to p, True = keep.
    Returns:
        These numbers, of which all but ``rows`` and ``zeros`` are means over rows; without rows, they are NaN:

        - ``rows``: how many rows are averaged.
        - ``support``: non-zero positions of a row.
        - ``zeros``: share of exact zeros among the kept positions of all rows together.
        - ``entropy``: in nats.
        - ``max_weight``: the largest weight.
        - ``groups``: runs of equal non-zero weight in neighbouring kept positions.
        - ``clusters``: distinct non-zero weights, divided by the support; 1 for a row without support. Weights count
          as equal if they differ by at most 1e-6 of the larger one, wherever they are.
        - ``segments``: runs of non-zero weight.
        - ``contiguity``: ``1 - (segments - 1)/(support - 1)``: 1 if the support is one run or one position, 0 if no two
          of its positions are neighbours.
    """
    p = p.detach().to("cpu", torch.float64)
    n = p.shape[-1]
    keep = torch.ones_like(p, dtype=torch.bool) if mask is None else mask.to("cpu").expand(p.shape)
    p, keep = p.reshape(-1, n), keep.reshape(-1, n)
    alive = keep.any(-1)
    p, keep = p[alive], keep[alive]
    # Neighbours are consecutive kept positions, so move the kept positions together.
    order = torch.argsort(keep.to(torch.int8), dim=-1, descending=True, stable=True)
    p = p.masked_fill(~keep, 0.0).gather(-1, order)
    on = p > 0
    before = torch.nn.functional.pad(p[:, :-1], (1, 0), value=0.0)
    support = on.sum(-1).double()
    segments = (on & (before <= 0)).sum(-1).double()
    groups = (on & (before != p)).sum(-1).double()
    ranked = p.sort(-1).values
    below = torch.nn.functional.pad(ranked[:, :-1], (1, 0), value=0.0)
    distinct = ((ranked > 0) & (ranked - below > SAME * ranked)).sum(-1).double()
    clusters = torch.where(support > 0, distinct / support.clamp(min=1.0), 1.0)
    contiguity = 1.0 - (segments - 1.0) / (support - 1.0).clamp(min=1.0)
    entropy = -torch.where(on, p * torch.where(on, p, 1.0).log(), 0.0).sum(-1)
    kept = keep.sum().double()
    return {
        "rows": float(len(p)),
        "support": support.mean().item(),
        "zeros": ((kept - support.sum()) / kept).item(),
        "entropy": entropy.mean().item(),
        "max_weight": p.amax(-1).mean().item(),
        "groups": groups.mean().item(),
        "clusters": clusters.mean().item(),
        "segments": segments.mean().item(),
        "contiguity": contiguity.clamp(max=1.0).mean().item(),
    }


def alignment_error_rate(
    alignments: list[set[tuple[int, int]]], sure: list[set[tuple[int, int]]], possible: list[set[tuple[int, int]]]
) -> dict[str, float]:
    """Alignment error rate over a corpus (Och & Ney 2003): ``1 - (|A & S| + |A & P|) / (|A| + |S|)``.

    Args:
        alignments, sure, possible: one set of links ``(source, target)`` per sentence; sure links also count as
            possible.
    Returns:
        ``aer``, ``precision`` (``|A & P| / |A|``), ``recall`` (``|A & S| / |S|``), in [0, 1]; NaN if there are no
        links.
    Raises:
        ValueError: the lists have different lengths.
    """
    if not len(alignments) == len(sure) == len(possible):
        raise ValueError(
            f"one set of links per sentence is needed: got {len(alignments)} alignments, {len(sure)} sure "
            f"and {len(possible)} possible"
        )
    A, S, P = ({(i, link) for i, links in enumerate(x) for link in links} for x in (alignments, sure, possible))
    in_sure, in_possible, nan = len(A & S), len(A & (S | P)), float("nan")
    return {
        "aer": 1.0 - (in_sure + in_possible) / (len(A) + len(S)) if A or S else nan,
        "precision": in_possible / len(A) if A else nan,
        "recall": in_sure / len(S) if S else nan,
    }


def links(p: Tensor) -> set[tuple[int, int]]:
    """Links of one sentence, as ``(source, target)`` pairs: the largest weight of each non-zero row of ``p [T, S]`` (target by
    source)."""
    return {(int(row.argmax()), t) for t, row in enumerate(p.detach().cpu()) if bool((row > 0).any())}


@in_float64
def rationale_overlap(p: Tensor, rationale: Tensor, mask: Tensor | None = None) -> dict[str, float]:
    """Agreement between attention over tokens and the tokens marked by annotators.

    Args:
        p: weights ``[N, n]``; rationale: bool ``[N, n]``, True = marked; mask: bool ``[N, n]``, True = keep.
    Returns:
        ``precision``, ``recall``, ``f1``: how well the tokens with weight match the marked ones (DeYoung et al. 2020);
        ``mass``: the attention on marked tokens; all are means over the texts with a marked token, and NaN if there are
        no such texts. ``texts``: the number of such texts.
    Raises:
        ValueError: the shapes differ.
    """
    if p.shape != rationale.shape:
        raise ValueError(f"attention {tuple(p.shape)} and rationale {tuple(rationale.shape)} must have the same shape")
    keep = torch.ones_like(rationale, dtype=torch.bool) if mask is None else mask.expand(p.shape)
    marked = rationale.bool() & keep
    use = marked.any(-1)
    p, marked, keep = p.detach().double()[use], marked[use], keep[use]
    chosen = (p > 0) & keep
    hit = (chosen & marked).sum(-1).double()
    precision = hit / chosen.sum(-1).clamp(min=1)
    recall = hit / marked.sum(-1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-30)
    mass = torch.where(marked, p, 0.0).sum(-1)
    return {
        "texts": float(len(p)),
        "precision": precision.mean().item(),
        "recall": recall.mean().item(),
        "f1": f1.mean().item(),
        "mass": mass.mean().item(),
    }


__all__ = ["alignment_error_rate", "attention_statistics", "links", "rationale_overlap"]
