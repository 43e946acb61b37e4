"""Attention with any mapping: score functions and attention modules.

Conventions: batch first; ``mask`` is boolean, True = keep; a fully masked row has zero weights and a zero context.

    attend = AdditiveAttention(query_dim=512, key_dim=512, mapping="sparsemax")
    context, weights = attend(query, keys, values, mask=lengths_mask)

Everything that depends only on the keys is computed once: ``ready = attend.precompute(keys)``. Then call
``attend.scores(query, ready)`` for the scores or, in a decoder,
``context, weights, state = attend.step(query, ready, values, state, mask)`` for each step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparse_attention import nn as nn_like_torch


class Scores(nn.Module):
    """``score(q, k)`` for all pairs: ``scores(query [B, T, Q], precompute(keys [B, S, K])) -> [B, T, S]``.

    scale: a constant factor on the scores. The papers use none (1). With a factor below 1, a sparse mapping starts with
    a larger support, so that more positions learn; this is a deviation from the papers.
    """

    def __init__(self, scale: float = 1.0):
        super().__init__()
        if not scale > 0:
            raise ValueError(f"scale={scale} must be above 0; 1 leaves the scores as they are")
        self.scale = scale

    def precompute(self, keys: Tensor) -> Tensor:
        """The part of the scores that does not depend on the query, computed once per source: ``[B, S, .]``."""
        return keys

    def forward(self, query: Tensor | None, ready: Tensor) -> Tensor:
        """``query [B, T, Q]``, ``ready = precompute(keys) [B, S, .]`` -> ``[B, T, S]``."""
        scores = self.unscaled(query, ready)
        return scores if self.scale == 1.0 else scores * self.scale

    def unscaled(self, query: Tensor | None, ready: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no scores")


class DotScores(Scores):
    """``q . k`` (Luong et al. 2015)."""

    def unscaled(self, query: Tensor, ready: Tensor) -> Tensor:  # type: ignore[override]
        return query @ ready.transpose(1, 2)  # [B, T, S]


class GeneralScores(Scores):
    """``q^T W k`` (Luong et al. 2015).

    This is the default of OpenNMT-py, the toolkit of Niculae & Blondel 2017 and Laha et al. 2018.
    """

    def __init__(self, query_dim: int, key_dim: int, scale: float = 1.0):
        super().__init__(scale)
        self.project = nn.Linear(query_dim, key_dim, bias=False)

    def unscaled(self, query: Tensor, ready: Tensor) -> Tensor:  # type: ignore[override]
        return self.project(query) @ ready.transpose(1, 2)  # [B, T, S]


class AdditiveScores(Scores):
    """``v . tanh(W k + b [+ U q])`` (Bahdanau et al. 2015; Peters et al. 2018).

    If `query_dim` is None, the scores depend only on the keys (``T = 1``). The bias b is added to the keys, as part of
    `precompute`; adding it to the query would give the same function.
    """

    def __init__(self, query_dim: int | None, key_dim: int, hidden_dim: int | None = None, scale: float = 1.0):
        super().__init__(scale)
        hidden = hidden_dim or key_dim
        self.from_key = nn.Linear(key_dim, hidden)
        self.from_query = None if query_dim is None else nn.Linear(query_dim, hidden, bias=False)
        self.to_score = nn.Linear(hidden, 1, bias=False)

    def precompute(self, keys: Tensor) -> Tensor:
        return self.from_key(keys)

    def unscaled(self, query: Tensor | None, ready: Tensor) -> Tensor:
        mixed = ready.unsqueeze(1)  # [B, 1, S, hidden]
        if self.from_query is not None:
            mixed = self.from_query(query).unsqueeze(2) + mixed  # [B, T, S, hidden]
        return self.to_score(torch.tanh(mixed)).squeeze(-1)


KINDS = ("general", "dot", "additive")


def make_scores(
    kind: str, query_dim: int | None, key_dim: int, hidden_dim: int | None = None, scale: float = 1.0
) -> Scores:
    """The score function named ``kind``: general, dot or additive.

    Raises:
        ValueError: the kind is unknown, or the score function does not support these dimensions.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown scores {kind!r}; choose one of {', '.join(KINDS)}")
    if kind == "additive":
        return AdditiveScores(query_dim, key_dim, hidden_dim, scale)
    if query_dim is None:
        raise ValueError(f"{kind} scores need a query; only additive ones do without")
    if kind == "general":
        return GeneralScores(query_dim, key_dim, scale)
    if query_dim != key_dim:
        raise ValueError(f"dot scores need queries and keys of one size, got {query_dim} and {key_dim}; use general")
    return DotScores(scale=scale)


class Attention(nn.Module):
    """Scores ``[B, T, S]`` -> weights by the mapping -> context ``[B, T, D]``."""

    def __init__(self, scores: Scores, mapping: str | nn.Module = "softmax"):
        super().__init__()
        self.scores = scores
        self.mapping: Any = nn_like_torch.over_keys(mapping)

    def precompute(self, keys: Tensor) -> Tensor:
        """Compute the argument ``ready`` of `scores` and `step` from ``keys [B, S, K]``, once for all queries."""
        return self.scores.precompute(keys)

    def forward(
        self,
        query: Tensor | None,
        keys: Tensor,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Attend to the values; a stateful mapping runs over all steps from its initial state.

        Args:
            query: ``[B, T, Q]``, or ``[B, Q]`` for one step; None for scores that depend only on the keys.
            keys: ``[B, S, K]``.
            values: ``[B, S, D]``; the keys by default.
            mask: bool ``[B, S]`` or ``[B, T, S]``, True = keep.
            inputs: passed to the mapping (for example ``bounds [B, T, S]`` for constrained mappings).
        Returns:
            context ``[B, T, D]`` and weights ``[B, T, S]``; both without T if the query has no T.
        Raises:
            ValueError: the mask has a different shape.
        """
        single = query is None or query.ndim == 2
        if single:
            query = None if query is None else query.unsqueeze(1)  # [B, 1, Q]
            if not self._stateful:
                inputs = {name: value.unsqueeze(1) for name, value in inputs.items()}
        scores = self.scores(query, self.precompute(keys))  # [B, T, S]
        weights = self.mapping(scores, mask=expand_mask(mask, scores), **inputs)
        context = weights @ (keys if values is None else values)  # [B, T, D]
        return (context.squeeze(1), weights.squeeze(1)) if single else (context, weights)

    def step(
        self, query: Tensor, ready: Tensor, values: Tensor, state: dict[str, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One decoder step; the mapping may be stateful or stateless.

        Args:
            query: ``[B, Q]``; ready: ``precompute(keys)``; values: ``[B, S, D]``; mask: bool ``[B, S]``, True = keep.
            state: returned by the previous step; at the first step, ``mapping.start(mask, **inputs)``.
        Returns:
            context ``[B, D]``, weights ``[B, S]`` and the new state.
        """
        scores = self.scores(query.unsqueeze(1), ready).squeeze(1)  # [B, S]
        weights, state = self.mapping.step(scores, state, mask)
        return (weights.unsqueeze(1) @ values).squeeze(1), weights, state

    @property
    def _stateful(self) -> bool:
        return bool(getattr(getattr(self.mapping, "spec", None), "stateful", False))


def expand_mask(mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """Make a mask ``[B, S]`` or ``[B, T, S]`` broadcastable to ``scores [B, T, S]``."""
    if mask is None:
        return None
    B, T, S = scores.shape
    if mask.shape == (B, S):
        return mask.unsqueeze(1)
    if mask.ndim == 3 and mask.shape[0] in (1, B) and mask.shape[1] in (1, T) and mask.shape[2] == S:
        return mask
    raise ValueError(f"mask of shape {tuple(mask.shape)} fits neither [B, S] = {(B, S)} nor [B, T, S] = {(B, T, S)}")


class AdditiveAttention(Attention):
    """Attention with `AdditiveScores`."""

    def __init__(
        self, query_dim: int | None, key_dim: int, hidden_dim: int | None = None, mapping: str | nn.Module = "softmax"
    ):
        super().__init__(AdditiveScores(query_dim, key_dim, hidden_dim), mapping)


class MultiheadAttention(nn_like_torch.MultiheadAttention):
    """``sa.nn.MultiheadAttention``, batch first, with the mask convention of this file (True = keep); it returns the
    weights of every head.

    If the mapping learns a hyperparameter (``alpha="learned"``), every head has its own value.

    A decoder can cache its projections: ``q, k, v = attend.project(x)`` projects the new words, then
    ``attend.attend(q, keys, values, mask)`` attends to all keys and values so far.

    Raises:
        ValueError: the number of heads does not divide the dimension.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, mapping: str | nn.Module = "softmax"):
        super().__init__(embed_dim, num_heads, dropout, batch_first=True, mapping=mapping)

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Project the inputs and attend.

        Args:
            query: ``[B, T, E]``. key, value: ``[B, S, E]``.
            mask: bool, broadcastable to ``[B, H, T, S]``, True = keep.
        Returns:
            ``[B, T, E]`` and the weights ``[B, H, T, S]``.
        """
        if query is key is value:
            q, k, v = self.project(query)
        elif key is value:
            (q,), (k, v) = self.project(query, "q"), self.project(key, "kv")
        else:
            (q,), (k,), (v,) = self.project(query, "q"), self.project(key, "k"), self.project(value, "v")
        return self.attend(q, k, v, mask)

    def project(self, x: Tensor, parts: str = "qkv") -> tuple[Tensor, ...]:
        """``x [B, T, E]`` -> the projections named in `parts`, a substring of "qkv", each ``[B, H, T, E / H]``."""
        first = "qkv".index(parts) * self.embed_dim
        rows = slice(first, first + len(parts) * self.embed_dim)
        projected = F.linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows])
        return projected.unflatten(-1, (len(parts), self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend with outputs of `project`: queries ``[B, H, T, d]``, keys and values ``[B, H, S, d]``; returns the
        same as `forward`.
        """
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-2, -1)  # [B, H, T, S]
        weights = self.mapping(scores, mask=mask)
        read = F.dropout(weights, self.dropout, self.training) @ values  # [B, H, T, d]
        return self.out_proj(read.transpose(1, 2).flatten(2)), weights
