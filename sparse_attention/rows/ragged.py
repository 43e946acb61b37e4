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


def together(*ends: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
    """The sequences whose lengths agree in all of ``ends``, int64 ``[B + 1]`` each.

    For every kind of sequence: which ones they are, int64 ``[b]``, and their positions in each packed tensor, int64
    ``[b, n]``.
    """
    lengths, of = torch.stack([x.diff() for x in ends], -1).unique(dim=0, return_inverse=True)
    found = []
    for kind, sizes in enumerate(lengths.tolist()):
        which = (of == kind).nonzero().flatten()
        each = [x[which].unsqueeze(-1) + torch.arange(n, device=x.device) for x, n in zip(ends, sizes)]
        found.append((which, each))
    return found


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
        scores: ``[B, ..., *, ...]``; dim is any dimension except the first.
        mask: bool, jagged, with the lengths of the scores, and broadcastable to them.
        params: numbers; tensors as `shape.per_row` takes them, in which the ragged dimension has size 1; and jagged
            tensors like the mask, which have a value for each position.
    Returns:
        jagged, with the shape of the scores; it can be combined with them in arithmetic.
    Raises:
        TypeError: the mask is not jagged. ValueError: dim is 0 or out of range; the lengths differ.
    """
    dim, ragged, ends = whole(dim), scores._ragged_idx, ends_of(scores, "scores")  # type: ignore[attr-defined]
    dim = dim + scores.ndim if dim < 0 else dim
    if not 0 < dim < scores.ndim:
        raise ValueError(f"dim={dim} is out of range: 1 to {scores.ndim - 1} for nested scores {tuple(scores.shape)}")
    sizes = [1 if i == ragged else scores.shape[i] for i in range(scores.ndim)]
    like = scores.values().detach().new_empty(()).expand(sizes)  # type: ignore[operator]
    order = [ragged, *(i for i in range(1, scores.ndim) if i not in (ragged, dim)), *([] if dim == ragged else [dim])]

    def by_position(x: Tensor, name: str) -> Tensor:
        """The values of a jagged tensor as ``[N, ..., n]``, or ``[N, ...]`` if dim is ragged."""
        if not jagged(x):
            raise TypeError(
                f"{name} must be nested like the scores: use nested_tensor_from_jagged(..., scores.offsets())"
            )
        alike(ends_of(x, name), ends, name, "scores")
        if x.ndim != scores.ndim or x._ragged_idx != ragged:  # type: ignore[attr-defined]
            raise ValueError(f"{name} {tuple(x.shape)} does not broadcast to the scores {tuple(scores.shape)}")
        return x.values().permute([i - 1 for i in order])  # type: ignore[operator]

    def by_row(value: Tensor, name: str) -> Tensor:
        """A parameter as ``[B or 1, ..., 1]``."""
        shaped = per_row(value, like, dim, name)
        return shaped if dim == ragged else shaped.squeeze(ragged - (dim < ragged))

    x = by_position(scores, "scores")
    if not len(x):
        return scores.clone()
    given = {"mask": mask, **params}
    each = {name: by_position(t, name) for name, t in given.items() if t is not None and (name == "mask" or jagged(t))}
    rows = {name: by_row(t, name) for name, t in params.items() if isinstance(t, Tensor) and name not in each}

    def computed(which: Tensor, at: Callable[[Tensor], Tensor]) -> Tensor:
        """The result for the given sequences, int64 ``[b]`` or ``[N]``; ``at`` selects their values from the packed ones."""
        own = {name: value if len(value) == 1 else value[which] for name, value in rows.items()}
        return function(at(x), **{**given, **own, **{name: at(value) for name, value in each.items()}})

    if dim != ragged:
        out = computed(torch.repeat_interleave(ends.diff(), output_size=len(x)), lambda value: value)
    else:
        parts, places = [], []
        for which, (at,) in together(ends):
            if at.numel():
                part = computed(which, lambda value, at=at: value[at].movedim(1, -1))  # type: ignore[misc]
                parts.append(part.movedim(-1, 1).flatten(0, 1))
                places.append(at.flatten())
        out = packed(parts, places)
    values = out.permute([order.index(i) for i in range(1, scores.ndim)])
    return torch.nested.nested_tensor_from_jagged(values, ends, jagged_dim=ragged)


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
