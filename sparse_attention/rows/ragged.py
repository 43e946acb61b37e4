"""Apply a function to rows of tensors of any shape; those of jagged tensors are read from the packed values, unpadded.

A row over the ragged dimension has the length of its sequence. Sequences of equal length are computed together, in one
call on a dense tensor; so a batch needs one call per distinct length. The lengths are read on the CPU: a call waits
for the GPU once, and torch.compile breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .shape import PLAIN, jagged, last, per_row, tensor, whole


def eager(function: Any) -> None:
    """Let torch.compile break its graph at calls of the function, as torch.compiler.disable does, which imports torch._dynamo."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "it reads the lengths of nested tensors; for fullgraph=True, pad them"


def ends_of(x: Any, name: str) -> Tensor:
    """The ends of the sequences of a jagged tensor, int64 ``[B + 1]``, 0 before them.

    Raises:
        ValueError: the values have gaps, as after torch.nested.narrow.
    """
    if x.lengths() is not None:
        raise ValueError(f"{name} has gaps between sequences, as after torch.nested.narrow: pass {name}.contiguous()")
    return x.offsets()  # type: ignore[no-any-return]


def alike(x: Tensor, other: Tensor, name: str, than: str) -> None:
    """Raise ValueError unless sequences that end at ``x`` and at ``other``, both int64 ``[B + 1]``, have equal lengths."""
    if x is not other and not (x.shape == other.shape and torch.equal(x, other)):
        raise ValueError(f"the sequences of {name} must have the same lengths as those of {than}")


def together(*ends: Tensor) -> list[list[Tensor]]:
    """The sequences whose lengths agree in all of ``ends``, int64 ``[B + 1]`` each.

    For every kind of sequence: the positions of its ``b`` sequences in each packed tensor, int64 ``[b, n]``.
    """
    lengths, of = torch.stack([x.diff() for x in ends], -1).unique(dim=0, return_inverse=True)
    return [
        [x[:-1][of == kind].unsqueeze(-1) + torch.arange(n, device=x.device) for x, n in zip(ends, sizes)]
        for kind, sizes in enumerate(lengths.tolist())
    ]


def packed(parts: list[Tensor], places: list[Tensor]) -> Tensor:
    """The parts ``[n_i, ...]`` at their places, int64 ``[n_i]``, of one tensor ``[N, ...]``."""
    return torch.cat(parts).index_select(0, torch.cat(places).argsort())


def along(body: Callable[..., Tensor], scores: Tensor, dim: int, mask: Tensor | None, **values: Any) -> Tensor:
    """Apply ``body(x, **values)`` along ``dim``.

    ``body`` gets x ``[..., n]`` as returned by `last`, never empty, and tensors in ``values`` as returned by `per_row`.
    If the scores are jagged, it is called once for each length.
    """
    if scores.__class__ not in PLAIN and jagged(scores):
        return over_rows(lambda x, mask, **rows: along(body, x, -1, mask, **rows), scores, dim, mask, values)
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = per_row(value, scores, dim, name)
    return restore(body(x, **values))


def over_rows(
    function: Callable[..., Tensor], scores: Tensor, dim: int, mask: Tensor | None, params: dict[str, Any]
) -> Tensor:
    """``function(x [..., n], mask, **params)``, a mapping along the last dimension, on each row of a jagged tensor.

    Args:
        scores: ``[B, *]`` or ``[B, *, ...]``; dim is any dimension except the first.
        mask: bool, jagged, with the shape of the scores.
        params: numbers, and tensors of one value.
    Returns:
        jagged, with the shape of the scores; it can be combined with them in arithmetic.
    Raises:
        TypeError: the mask is not jagged. ValueError: dim is 0 or out of range; the shapes differ; a tensor among params
            has several values.
    """
    dim, ends = whole(dim), ends_of(scores, "scores")
    dim = dim + scores.ndim if dim < 0 else dim
    if scores._ragged_idx != 1 or not 0 < dim < scores.ndim:  # type: ignore[attr-defined]
        allowed = f"dim from 1 to {scores.ndim - 1} and nested scores [B, *, ...], see transpose"
        raise ValueError(f"dim={dim} of nested scores {tuple(scores.shape)}: mappings take {allowed}")
    if bad := [name for name, value in params.items() if isinstance(value, Tensor) and value.numel() != 1]:
        raise ValueError(f"{bad[0]} must be one number for nested scores; for several, pad them and pass a mask")
    x = scores.values()  # type: ignore[operator]
    keep = None
    if mask is not None:
        if not jagged(mask):
            raise TypeError("mask must be nested like the scores: use nested_tensor_from_jagged(..., scores.offsets())")
        alike(ends_of(mask, "mask"), ends, "mask", "scores")
        keep = mask.values()  # type: ignore[operator]
        if keep.shape != x.shape:
            raise ValueError(f"mask {tuple(mask.shape)} must have the shape of the scores {tuple(scores.shape)}")
    if not len(x):
        return scores.clone()
    if dim > 1:
        out = function(x.movedim(dim - 1, -1), None if keep is None else keep.movedim(dim - 1, -1), **params)
        out = out.movedim(-1, dim - 1)
    else:
        parts, places = [], []
        for (at,) in together(ends):
            if at.numel():
                rows = [None if t is None else t[at].movedim(1, -1) for t in (x, keep)]  # [b, ..., n]
                parts.append(function(*rows, **params).movedim(-1, 1).flatten(0, 1))
                places.append(at.flatten())
        out = packed(parts, places)
    return torch.nested.nested_tensor_from_jagged(out, ends)


def over_segments(
    function: Callable[..., Tensor],
    scores: Tensor,
    dim: int,
    mask: Tensor | None,
    segments: Tensor,
    name: str = "segments",
    **params: Any,
) -> Tensor:
    """``function(x [..., m], **params)``, a mapping along the last dimension, within each segment of the positions of ``dim``.

    Time and memory are linear in the number of positions, whatever the sizes of the segments.

    Args:
        segments: the segment of each position, int64 ``[n]`` from 0, in any order.
        params: numbers, and tensors as `shape.per_row` takes them.
    Raises:
        ValueError: the segments have another shape or dtype, or are negative. TypeError: the scores are nested.
    """
    if jagged(scores):
        raise TypeError(f"nested scores are segments already: leave out {name}, or pass the values scores.values()")
    tensor(scores)
    n = scores.shape[dim] if scores.ndim else 1
    if (
        not isinstance(segments, Tensor)
        or segments.shape != (n,)
        or segments.dtype != torch.int64
        or bool((segments < 0).any())
    ):
        given = f"{segments.dtype} of shape {tuple(segments.shape)}" if isinstance(segments, Tensor) else repr(segments)
        raise ValueError(
            f"{name} is {given}; it must be int64 of shape ({n},), the segment of each position, counted from 0"
        )
    places = _places(segments)
    back = torch.cat([place[place < n] for place in places]).argsort() if places else segments

    def body(x: Tensor, **values: Any) -> Tensor:
        padded, parts = torch.nn.functional.pad(x, (0, 1), value=-torch.inf), []
        rows = {key: value.unsqueeze(-1) if isinstance(value, Tensor) else value for key, value in values.items()}
        for place in places:
            p = function(padded[..., place], **rows)  # [..., segments, largest]
            parts.append(p.flatten(-2)[..., place.flatten() < n])
        return torch.cat(parts, -1)[..., back]

    return along(body if n else lambda x, **_: x, scores, dim, mask, **params)


def _places(segments: Tensor) -> list[Tensor]:
    """The positions of each segment, ``[segments, largest]`` int64, padded with n, by sizes.

    Segments of more than 2^k and at most 2^(k + 1) positions are together, so the padding is less than half of a tensor.
    """
    order = segments.argsort(stable=True)
    sizes = segments.unique(return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    found = []
    kinds = (sizes - 1).clamp(min=0).to(torch.float64).log2().floor()
    for kind in kinds.unique():
        own = kinds == kind
        at = torch.arange(int(sizes[own].max()), device=segments.device)
        inside = at < sizes[own].unsqueeze(-1)
        place = order[(starts[own].unsqueeze(-1) + at).clamp(max=len(segments) - 1)]
        found.append(place.masked_fill(~inside, len(segments)))
    return found


eager(over_rows)
eager(over_segments)
