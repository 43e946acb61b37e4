"""Attention with any mapping: score functions and attention modules.

Conventions: batch first; ``mask`` is boolean, True = keep; a fully masked row has zero weights and a zero context.

    attend = Attention(AdditiveScores(query_dim=512, key_dim=512), mapping="sparsemax")
    context, weights = attend(query, keys, mask)

A decoder computes what depends only on the keys once, ``ready = attend.scores.precompute(keys)``, and then at each step
``attend.mapping(attend.scores(query, ready), mask=mask)``.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparse_attention import nn as nn_like_torch
from sparse_attention import sparse_attention


class Scores(nn.Module):
    """``score(q, k)`` for all pairs: ``scores(query [B, T, Q], precompute(keys [B, S, K])) -> [B, T, S]``."""

    def precompute(self, keys: Tensor) -> Tensor:
        """The part of the scores that does not depend on the query, computed once per source: ``[B, S, .]``."""
        return keys

    def matrix(self, ready: Tensor) -> Tensor | None:
        """What a query is multiplied by to get its scores, ``[B, Q, S]``; None if there is no such matrix."""
        return None


class DotScores(Scores):
    """``q . k`` (Luong et al. 2015)."""

    def matrix(self, ready: Tensor) -> Tensor:
        return ready.mT

    def forward(self, query: Tensor, ready: Tensor) -> Tensor:
        return query @ ready.transpose(1, 2)  # [B, T, S]


class GeneralScores(Scores):
    """``q^T W k`` (Luong et al. 2015).

    This is the default of OpenNMT-py, the toolkit of Niculae & Blondel 2017 and Laha et al. 2018.
    """

    def __init__(self, query_dim: int, key_dim: int):
        super().__init__()
        self.project = nn.Linear(query_dim, key_dim, bias=False)

    def matrix(self, ready: Tensor) -> Tensor:
        return (ready @ self.project.weight).mT

    def forward(self, query: Tensor, ready: Tensor) -> Tensor:
        return self.project(query) @ ready.transpose(1, 2)  # [B, T, S]


class AdditiveScores(Scores):
    """``v . tanh(W k + b [+ U q])`` (Bahdanau et al. 2015; Peters et al. 2018).

    If `query_dim` is None, the scores depend only on the keys (``T = 1``). The bias b is added to the keys, as part of
    `precompute`; adding it to the query would give the same function.
    """

    def __init__(self, query_dim: int | None, key_dim: int, hidden_dim: int | None = None):
        super().__init__()
        hidden = hidden_dim or key_dim
        self.from_key = nn.Linear(key_dim, hidden)
        self.from_query = None if query_dim is None else nn.Linear(query_dim, hidden, bias=False)
        self.to_score = nn.Linear(hidden, 1, bias=False)

    def precompute(self, keys: Tensor) -> Tensor:
        return self.from_key(keys)

    def forward(self, query: Tensor | None, ready: Tensor) -> Tensor:
        mixed = ready.unsqueeze(1)  # [B, 1, S, hidden]
        if self.from_query is not None:
            mixed = self.from_query(query).unsqueeze(2) + mixed  # [B, T, S, hidden]
        return self.to_score(torch.tanh(mixed)).squeeze(-1)


KINDS = ("general", "dot", "additive")


def make_scores(kind: str, dim: int) -> Scores:
    """The score function named ``kind``, one of `KINDS`, for queries and keys of size `dim`."""
    return DotScores() if kind == "dot" else {"general": GeneralScores, "additive": AdditiveScores}[kind](dim, dim)


class Attention(nn.Module):
    """Scores -> weights by the mapping -> context, for one query per sequence of keys."""

    def __init__(self, scores: Scores, mapping: str | nn.Module):
        super().__init__()
        self.scores = scores
        self.mapping: Any = nn_like_torch.over_keys(mapping)

    def forward(self, query: Tensor | None, keys: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend to the keys.

        Args:
            query: ``[B, Q]``; None for scores that depend only on the keys.
            keys: ``[B, S, K]``.
            mask: bool ``[B, S]``, True = keep.
        Returns:
            context ``[B, K]`` and weights ``[B, S]``.
        """
        query = None if query is None else query.unsqueeze(1)
        scores = self.scores(query, self.scores.precompute(keys))  # [B, 1, S]
        weights = self.mapping(scores, mask=None if mask is None else mask.unsqueeze(1))
        return (weights @ keys).squeeze(1), weights.squeeze(1)


class MultiheadAttention(nn_like_torch.MultiheadAttention):
    """``sa.nn.MultiheadAttention`` in two parts, batch first, so that a decoder can cache its projections.

    ``q, k, v = attend.project(x)`` projects the new words; then ``attend.attend(q, keys, values, mask)`` attends to all
    keys and values so far. If the mapping learns a hyperparameter (``alpha="learned"``), every head has its own value.

    Raises:
        ValueError: the number of heads does not divide the dimension.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, mapping: str | nn.Module = "softmax"):
        super().__init__(embed_dim, num_heads, dropout, batch_first=True, mapping=mapping)

    def project(self, x: Tensor, parts: str = "qkv") -> tuple[Tensor, ...]:
        """``x [B, T, E]`` -> the projections named in `parts`, a substring of "qkv", each ``[B, H, T, E / H]``."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if parts != "qkv":  # the gradient of a slice is two more operations
            first = "qkv".index(parts) * self.embed_dim
            rows = slice(first, first + len(parts) * self.embed_dim)
            weight, bias = weight[rows], bias[rows]
        projected = F.linear(x, weight, bias).unflatten(-1, (len(parts), self.num_heads, -1))
        return tuple(part.transpose(1, 2) for part in projected.unbind(2))

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, need_weights: bool = False, **seen: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with outputs of `project`, by `sa.sparse_attention`, which chooses the fastest way.

        Args:
            queries: ``[B, H, T, d]``. keys, values: ``[B, H, S, d]``.
            need_weights: also return the weights, as they are before dropout.
            seen: the visible keys: `mask`, `lengths`, `causal` of `sa.sparse_attention`.
        Returns:
            ``[B, T, E]`` and the weights ``[B, H, T, S]``, None unless requested.
        """
        seen |= {"dropout": self.dropout if self.training else 0.0, "need_weights": need_weights}
        found = sparse_attention(queries, keys, values, self.mapping, **seen)
        read, weights = found if need_weights else (found, None)
        return self.out_proj(read.transpose(1, 2).flatten(2)), weights
