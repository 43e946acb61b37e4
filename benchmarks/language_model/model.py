"""A decoder as in GPT-2, with rotary positions (Su et al. 2021).

It has pre-norm blocks, causal attention with any mapping, and tied input and output embeddings of bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparse_attention as sa

BYTES = 256


class Block(nn.Module):
    """``x [B, n, width] -> [B, n, width]``.

    Softmax attention is torch's scaled_dot_product_attention; other mappings use sa.sparse_attention.
    """

    def __init__(self, width: int, heads: int, mapping: str, params: dict[str, Any]):
        super().__init__()
        self.heads, self.mapping, self.params = heads, mapping, params
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def inputs(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the attention, each ``[B, heads, n, d]``."""
        q, k, v = self.project(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return rotated(q, turn), rotated(k, turn), v

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        q, k, v = self.inputs(x, turn)
        if self.mapping == "softmax":
            read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            read = sa.sparse_attention(q, k, v, self.mapping, causal=True, **self.params)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


def turns(n: int, d: int) -> Tensor:
    """Cosines and sines ``[2, n, d / 2]`` of the rotary angles."""
    angles = torch.outer(torch.arange(n), 10000 ** (-torch.arange(0, d, 2) / d))
    return torch.stack((angles.cos(), angles.sin()))


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = turn
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class LanguageModel(nn.Module):
    """Bytes ``[B, n]`` -> scores of the next byte ``[B, n, 256]``."""

    def __init__(self, width: int, layers: int, heads: int, mapping: str, **params: Any):
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.blocks = nn.ModuleList(Block(width, heads, mapping, params) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.d = width // heads
        for name, p in self.named_parameters():
            if p.ndim == 2:
                deep = name.endswith(("out.weight", "feed.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if deep else 0.02)

    def forward(self, x: Tensor) -> Tensor:
        h, turn = self.bytes(x), turns(x.shape[1], self.d)
        for block in self.blocks:
            h = block(h, turn)
        return F.linear(self.last(h), self.bytes.weight)

    @torch.no_grad()
    def attended(self, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """q, k, v ``[B, heads, n, d]`` of every layer for the input ``x``."""
        h, turn, found = self.bytes(x), turns(x.shape[1], self.d), []
        for block in self.blocks:
            found.append(block.inputs(h, turn))  # type: ignore[operator]
            h = block(h, turn)
        return found
