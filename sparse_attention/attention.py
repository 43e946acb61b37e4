"""Attention modules that take any mapping.

One convention everywhere: batch first; ``mask`` boolean, True = keep; a fully masked row of weights is zero, and so is
its context. Every module returns the context and the weights.

    attend = AdditiveAttention(query_dim=512, key_dim=512, mapping="fusedmax")
    context, weights = attend(query, keys, values, mask=lengths_mask)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .registry import make


def _built(mapping: str | nn.Module) -> nn.Module:
    return make(mapping) if isinstance(mapping, str) else mapping


class _Attention(nn.Module):
    """Shared: scores ``[B, T, S]`` -> weights by the mapping -> context ``[B, T, D]``."""

    def __init__(self, mapping: str | nn.Module = "softmax"):
        super().__init__()
        self.mapping = _built(mapping)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """``query [B, T, Q]``, ``keys [B, S, K]`` -> ``[B, T, S]``."""
        raise NotImplementedError(f"{type(self).__name__} defines no scores")

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor | None = None, mask: Tensor | None = None, **inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            query: ``[B, T, Q]``, or ``[B, Q]`` for one step.
            keys: ``[B, S, K]``.
            values: ``[B, S, D]``; the keys by default.
            mask: bool ``[B, S]`` or ``[B, T, S]``, True = keep.
            inputs: handed to the mapping (``bounds`` of the constrained ones, ``[B, T, S]``).
        Returns:
            context ``[B, T, D]`` and weights ``[B, T, S]``; without T for a query without T.
        Raises:
            ValueError: a mask of another shape.
        """
        single = query.ndim == 2
        if single:
            query = query.unsqueeze(1)  # [B, 1, Q]
            inputs = {name: value.unsqueeze(1) for name, value in inputs.items()}
        scores = self.scores(query, keys)  # [B, T, S]
        weights = self.mapping(scores, mask=expand_mask(mask, scores, single), **inputs)
        context = weights @ (keys if values is None else values)  # [B, T, D]
        return (context.squeeze(1), weights.squeeze(1)) if single else (context, weights)


def expand_mask(mask: Tensor | None, scores: Tensor, single: bool = False) -> Tensor | None:
    """A mask ``[B, S]`` or ``[B, T, S]`` for ``scores [B, T, S]``."""
    if mask is None:
        return None
    B, T, S = scores.shape
    if mask.shape == (B, S):
        return mask.unsqueeze(1)
    if mask.ndim == 3 and mask.shape[0] in (1, B) and mask.shape[1] in (1, T) and mask.shape[2] == S:
        return mask
    raise ValueError(f"mask of shape {tuple(mask.shape)} fits neither [B, S] = {(B, S)} nor [B, T, S] = {(B, T, S)}")


class DotAttention(_Attention):
    """``score(q, k) = q . k`` (Luong et al. 2015), over ``sqrt(d)`` with ``scaled``."""

    def __init__(self, mapping: str | nn.Module = "softmax", scaled: bool = False):
        super().__init__(mapping)
        self.scaled = scaled

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        factor = 1.0 / math.sqrt(query.shape[-1]) if self.scaled else 1.0
        return query @ keys.transpose(1, 2) * factor  # [B, T, S]


class GeneralAttention(_Attention):
    """``score(q, k) = q^T W k`` (Luong et al. 2015); the default of OpenNMT, used by all four papers' NMT systems."""

    def __init__(self, query_dim: int, key_dim: int, mapping: str | nn.Module = "softmax"):
        super().__init__(mapping)
        self.project = nn.Linear(query_dim, key_dim, bias=False)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.project(query) @ keys.transpose(1, 2)  # [B, T, S]


class AdditiveAttention(_Attention):
    """``score(q, k) = v . tanh(W k + U q)`` (Bahdanau et al. 2015; Peters et al. 2018)."""

    def __init__(
        self, query_dim: int, key_dim: int, hidden_dim: int | None = None, mapping: str | nn.Module = "softmax"
    ):
        super().__init__(mapping)
        hidden = hidden_dim or key_dim
        self.from_key = nn.Linear(key_dim, hidden)
        self.from_query = nn.Linear(query_dim, hidden, bias=False)
        self.to_score = nn.Linear(hidden, 1, bias=False)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        mixed = self.from_query(query).unsqueeze(2) + self.from_key(keys).unsqueeze(1)  # [B, T, S, hidden]
        return self.to_score(torch.tanh(mixed)).squeeze(-1)  # [B, T, S]


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention in H subspaces (Vaswani et al. 2017) with any mapping for the softmax.

    A hyperparameter of the mapping given as a tensor ``[H, 1]`` is one value per head.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mapping: str | nn.Module = "softmax",
        dropout: float = 0.0,
        key_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
    ):
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.heads = heads
        self.mapping = _built(mapping)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(key_dim or dim, dim, bias=bias)
        self.value = nn.Linear(value_dim or dim, dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, query: Tensor, keys: Tensor | None = None, values: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            query: ``[B, T, dim]``; keys, values ``[B, S, .]``, by default the query and the keys.
            mask: bool ``[B, S]``, ``[B, T, S]``, ``[T, S]`` (causal) or ``[B, H, T, S]``, True = keep.
        Returns:
            context ``[B, T, dim]`` and weights ``[B, H, T, S]`` (before dropout).
        Raises:
            ValueError: a mask of another shape.
        """
        keys = query if keys is None else keys
        values = keys if values is None else values
        q, k, v = self._split(self.query(query)), self._split(self.key(keys)), self._split(self.value(values))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # [B, H, T, S]
        weights = self.mapping(scores, mask=self._mask(mask, scores))
        context = self.dropout(weights) @ v  # [B, H, T, d]
        return self.out(context.transpose(1, 2).flatten(2)), weights

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, d]

    def _mask(self, mask: Tensor | None, scores: Tensor) -> Tensor | None:
        if mask is None or mask.ndim == 4:
            return mask
        B, _, T, S = scores.shape
        if mask.ndim == 3:
            return mask.unsqueeze(1)
        if mask.shape == (B, S) and mask.shape != (T, S):
            return mask[:, None, None]
        if mask.shape == (T, S) and mask.shape != (B, S):
            return mask
        if mask.shape == (B, S):
            raise ValueError(
                f"a mask of shape {tuple(mask.shape)} may mean [B, S] or [T, S] here; pass [B, 1, S] or [1, T, S]"
            )
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} fits none of [B, S] = {(B, S)}, [T, S] = {(T, S)}, "
            f"[B, T, S], [B, H, T, S] for scores {tuple(scores.shape)}"
        )


__all__ = ["AdditiveAttention", "DotAttention", "GeneralAttention", "MultiHeadAttention", "expand_mask"]
