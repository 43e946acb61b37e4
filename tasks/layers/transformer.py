"""A layer of the Transformer (Vaswani et al. 2017), its positions and its initial weights; see `tasks.seq2seq.models.transformer`."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repro.options import flag, integer, number
from tasks.layers.attention import MultiheadAttention

Cache = tuple[Tensor, Tensor]  # keys and values [B, heads, words, E / heads]


@dataclass
class LayerOptions:
    """Options of a model with layers of the Transformer; each architecture's file states the defaults."""

    hidden_dim: int = integer(low=2, help="size of word vectors and layers: even, a multiple of heads")
    ff_dim: int = integer(low=1, help="hidden units of the feed-forward sub-layers")
    heads: int = integer(low=1)
    dropout: float = number(low=0, below=1, help="dropout on word vectors and on what each sub-layer adds")
    attention_dropout: float = number(low=0, below=1, help="dropout on attention weights")
    relu_dropout: float = number(low=0, below=1, help="inside the feed-forward sub-layers")
    pre_norm: bool = flag(help="normalise before each sub-layer, not after: trains with less warm-up")

    def problems(self) -> list[str]:
        if self.hidden_dim % self.heads or self.hidden_dim % 2:
            return [f"hidden_dim={self.hidden_dim} must be even and a multiple of heads={self.heads}"]
        return []


class Layer(nn.Module):
    """Self-attention, attention to the source (only if there is a mapping for it), and feed-forward."""

    def __init__(self, options: LayerOptions, own: nn.Module, cross: nn.Module | None = None) -> None:
        super().__init__()
        H, F = options.hidden_dim, options.ff_dim
        sizes = H, options.heads, options.attention_dropout
        self.own = MultiheadAttention(*sizes, copy.deepcopy(own))
        self.cross = None if cross is None else MultiheadAttention(*sizes, copy.deepcopy(cross))
        self.feed = nn.Sequential(nn.Linear(H, F), nn.ReLU(), nn.Dropout(options.relu_dropout), nn.Linear(F, H))
        self.norms = nn.ModuleList(nn.LayerNorm(H) for _ in range(2 if cross is None else 3))
        self.dropout, self.pre_norm = nn.Dropout(options.dropout), options.pre_norm

    def forward(
        self, x: Tensor, lengths: Tensor, before: Cache | None = None, source: Cache | None = None, weigh: bool = False
    ) -> tuple[Tensor, Cache, Tensor | None]:
        """Apply the layer to T words.

        Args:
            x: [B, T, E]. lengths: [B], the numbers of words of the source.
            before: keys and values of the t previous words. source: keys and values of the source.
            weigh: return the weights of the last attention.
        Returns:
            states [B, T, E], keys and values of the t + T words, weights [B, heads, T, .] or None.
        """
        queries, keys, values = self.own.project(self._enter(0, x))
        if before is not None and before[0].size(2):
            keys, values = torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)
        seen = {"lengths": lengths} if self.cross is None else {"causal": True}
        y, weights = self.own.attend(queries, keys, values, **seen, need_weights=weigh and self.cross is None)
        x = self._leave(0, x, y)
        if self.cross is not None:
            asked = self.cross.project(self._enter(1, x), "q")
            y, weights = self.cross.attend(*asked, *source, lengths=lengths, need_weights=weigh)
            x = self._leave(1, x, y)
        return self._leave(-1, x, self.feed(self._enter(-1, x))), (keys, values), weights

    def _enter(self, i: int, x: Tensor) -> Tensor:
        return self.norms[i](x) if self.pre_norm else x

    def _leave(self, i: int, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x if self.pre_norm else self.norms[i](x)


def positions(x: Tensor, first: int = 0) -> Tensor:
    """Sines and cosines [T, E] of T positions from `first` on (section 3.5), for x [B, T, E]."""
    half = x.size(-1) // 2
    rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(1e4) / half))
    angles = torch.arange(first, first + x.size(1), device=x.device).unsqueeze(1) * rates  # [T, E / 2]
    return torch.cat((angles.sin(), angles.cos()), -1).to(x.dtype)


def initialise(part: nn.Module) -> None:
    """Initialise the linear layers inside with Glorot's uniform weights and zero bias."""
    for layer in part.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
