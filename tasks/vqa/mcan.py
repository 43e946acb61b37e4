"""MCAN, the modular co-attention network (Yu et al. 2019), with a choice of attention in its last step.

    question  words -> embedding -> LSTM -> self-attention x layers                     x [B, T, H]
    image     cells -> linear -> (self-attention, attention to x) x layers              y [B, L, H]
    answer    reduce(x) + reduce(y) -> layer norm -> linear                             logits [B, A]

`reduce` (AttFlat in the authors' code) scores every word or cell by a small MLP, turns the scores into weights and sums.
Martins et al. 2020, section 4, replace the weights of the *image* alone: the discrete weights over the L cells give a mean
and a covariance, these a density on [0, 1]^2, and the context is taken under it. The continuous context replaces the
discrete one. `ImageReduction` does that; the co-attention layers keep their softmax.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from sparse_attention.mappings.continuous import (
    ContinuousAttention2d,
    GaussianBasis2d,
    MultimodalAttention2d,
)

# name -> alpha of the density; "discrete" has none, "mixture" fits up to four Gaussians
ALPHAS = {
    "discrete": None, "continuous_softmax": 1.0, "continuous_triweight": 4 / 3, "continuous_biweight": 1.5,
    "continuous_sparsemax": 2.0, "mixture": 1.0,
}  # fmt: skip
REDUCTIONS = tuple(ALPHAS)


@dataclass
class ImageSpec:
    """What a model sees of an image.

    kind: "pixels" (uint8 [height, width, 3], read by the model's own CNN) or "features" (cells x channels).
    grid: (height, width) of the pixels, or (rows, columns) of the feature map. channels: 3, or those of the features.
    """

    kind: str
    grid: tuple[int, int]
    channels: int


@dataclass
class McanOptions:
    """Sizes and attention; the defaults are the paper's MCAN small."""

    layers: int = 6
    hidden_dim: int = 512
    heads: int = 8
    ff_dim: int = 2048
    dropout: float = 0.1
    embed_dim: int = 300
    flat_mlp_dim: int = 512
    flat_out_dim: int = 1024
    reduction: str = "discrete"
    basis_side: int = 10  # basis functions per axis
    basis_variance: float = 0.001
    ridge: float = 0.01
    pad_positions: str = "correct"
    moment_match: str = "exact"
    quadrature: str = "auto"
    max_components: int = 4  # mixture
    cnn_channels: list[int] = field(default_factory=list)  # pixels: one convolution each
    cnn_strides: list[int] = field(default_factory=list)


class Reduced(NamedTuple):
    """The image's context [B, D] and where it was taken.

    weights [B, L]: the mapping's weights on the cells. mu, sigma: the density (with K components for a mixture, whose
    shares are pi [B, K]); None for discrete attention.
    """

    context: Tensor
    weights: Tensor
    mu: Tensor | None = None
    sigma: Tensor | None = None
    pi: Tensor | None = None


class SmallCnn(nn.Module):
    """Convolutions 3 x 3 with batch norm and ReLU, trained with the rest: uint8 [U, h, w, 3] -> [U, L, channels[-1]]."""

    def __init__(self, channels: list[int], strides: list[int]) -> None:
        super().__init__()
        if not channels or len(channels) != len(strides):
            raise ValueError(
                f"images given as pixels need model.cnn_channels and model.cnn_strides of one length, got {channels} and "
                f"{strides}; for example [32, 64, 64] and [2, 2, 2]"
            )
        blocks: list[nn.Module] = []
        for before, after, stride in zip([3, *channels], channels, strides):
            blocks += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)

    @staticmethod
    def grid(pixels: tuple[int, int], strides: list[int]) -> tuple[int, int]:
        """(rows, columns) of the feature map of an image of `pixels` = (height, width)."""
        rows, columns = pixels
        for stride in strides:
            rows, columns = -(-rows // stride), -(-columns // stride)
        return rows, columns

    def forward(self, pixels: Tensor) -> Tensor:
        kind = self.blocks[0].weight.dtype  # type: ignore[union-attr]
        x = pixels.permute(0, 3, 1, 2).to(kind) / 127.5 - 1.0  # [U, 3, h, w]
        return self.blocks(x).flatten(2).transpose(1, 2)


class Attend(nn.Module):
    """Scaled dot-product attention in `heads` subspaces (softmax): queries [B, T, H], states [B, S, H], mask [B, S]."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"model.hidden_dim={dim} is not a multiple of model.heads={heads}")
        self.heads, self.dropout = heads, dropout
        self.query, self.both, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
        def split(x: Tensor) -> Tensor:  # [B, heads, length, dim / heads]
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        keys, values = self.both(states).chunk(2, -1)
        keep = None if mask is None else mask[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        read = F.scaled_dot_product_attention(split(self.query(queries)), split(keys), split(values), keep, dropout)
        return self.out(read.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Self-attention, attention to the other modality where `guided`, feed-forward; residual, norm after each."""

    def __init__(self, o: McanOptions, guided: bool) -> None:
        super().__init__()
        self.own = Attend(o.hidden_dim, o.heads, o.dropout)
        self.other = Attend(o.hidden_dim, o.heads, o.dropout) if guided else None
        self.feed = nn.Sequential(
            nn.Linear(o.hidden_dim, o.ff_dim), nn.ReLU(), nn.Dropout(o.dropout), nn.Linear(o.ff_dim, o.hidden_dim)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(o.hidden_dim) for _ in range(3 if guided else 2))
        self.dropout = nn.Dropout(o.dropout)

    def look_at_own(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The self-attention step alone: x [B, L, H], mask [B, L] -> [B, L, H]."""
        return self.norms[0](x + self.dropout(self.own(x, x, mask)))

    def finish(self, x: Tensor, other: Tensor | None = None, other_mask: Tensor | None = None) -> Tensor:
        """What follows it."""
        if self.other is not None:
            assert other is not None
            x = self.norms[1](x + self.dropout(self.other(x, other, other_mask)))
        return self.norms[-1](x + self.dropout(self.feed(x)))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """An unguided layer."""
        return self.finish(self.look_at_own(x, mask))


class Scorer(nn.Sequential):
    """One score per word or cell: [B, L, H] -> [B, L]."""

    def __init__(self, o: McanOptions) -> None:
        super().__init__(
            nn.Linear(o.hidden_dim, o.flat_mlp_dim), nn.ReLU(), nn.Dropout(o.dropout), nn.Linear(o.flat_mlp_dim, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


class QuestionReduction(nn.Module):
    """Softmax over the words, as in every row of the paper's table."""

    def __init__(self, o: McanOptions) -> None:
        super().__init__()
        self.score, self.merge = Scorer(o), nn.Linear(o.hidden_dim, o.flat_out_dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, T, H], mask [B, T] -> [B, D]"""
        p = self.score(x).masked_fill(~mask, float("-inf")).softmax(-1)
        return self.merge((p.unsqueeze(1) @ x).squeeze(1))


class ImageReduction(nn.Module):
    """The layer that the paper's rows differ in.

    Args:
        mapping: scores [B, L] -> weights [B, L]; softmax in the paper, any simplex mapping here.
        grid: (rows, columns) of the cells.
    Raises:
        ValueError: an unknown `reduction`.
    """

    def __init__(self, o: McanOptions, mapping: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        if o.reduction not in ALPHAS:
            raise ValueError(f"model.reduction={o.reduction!r} is unknown; allowed: {', '.join(REDUCTIONS)}")
        self.kind, self.mapping = o.reduction, mapping
        self.score, self.merge = Scorer(o), nn.Linear(o.hidden_dim, o.flat_out_dim)
        self.continuous: ContinuousAttention2d | None = None
        if o.reduction != "discrete":
            basis = GaussianBasis2d.grid(o.basis_side, o.basis_side, o.basis_variance)
            shared: dict[str, Any] = {
                "ridge": o.ridge, "pad_positions": o.pad_positions, "moment_match": o.moment_match, "quadrature": o.quadrature,
            }  # fmt: skip
            alpha = ALPHAS[o.reduction]
            assert alpha is not None
            if o.reduction == "mixture":
                self.continuous = MultimodalAttention2d(grid, basis, alpha, max_components=o.max_components, **shared)
            else:
                self.continuous = ContinuousAttention2d(grid, basis, alpha, **shared)

    def forward(self, y: Tensor) -> Reduced:
        """y [B, L, H]"""
        p = self.mapping(self.score(y))
        if self.continuous is None:
            return Reduced(self.merge((p.unsqueeze(1) @ y).squeeze(1)), p)
        context, info = self.continuous(y, weights=p)
        pi = info.mixture.pi if info.mixture is not None else None
        return Reduced(self.merge(context.to(y.dtype)), p, info.mu, info.sigma, pi)


class Mcan(nn.Module):
    """Words and images to answer logits.

    Args:
        words: size of the vocabulary; `padding` is the number of the padding symbol.
        answers: size of the answer vocabulary.
        vectors: [words, embed_dim] initial word vectors, None for random ones.
    """

    def __init__(
        self, options: McanOptions, images: ImageSpec, words: int, answers: int, mapping: nn.Module, padding: int,
        vectors: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        o = options
        if o.layers < 1:
            raise ValueError(f"model.layers={o.layers} must be at least 1")
        self.padding = padding
        self.embed = nn.Embedding(words, o.embed_dim, padding)
        if vectors is not None:
            if vectors.shape != self.embed.weight.shape:
                raise ValueError(
                    f"word vectors {tuple(vectors.shape)} do not fit {tuple(self.embed.weight.shape)}: set model.embed_dim"
                )
            self.embed.weight.data.copy_(vectors)
        self.lstm = nn.LSTM(o.embed_dim, o.hidden_dim, batch_first=True)
        self.cnn = SmallCnn(list(o.cnn_channels), list(o.cnn_strides)) if images.kind == "pixels" else None
        self.grid = SmallCnn.grid(images.grid, o.cnn_strides) if self.cnn else images.grid
        self.project = nn.Linear(o.cnn_channels[-1] if self.cnn else images.channels, o.hidden_dim)
        self.question_layers = nn.ModuleList(Layer(o, guided=False) for _ in range(o.layers))
        self.image_layers = nn.ModuleList(Layer(o, guided=True) for _ in range(o.layers))
        self.reduce_question = QuestionReduction(o)
        self.reduce_image = ImageReduction(o, mapping, self.grid)
        self.norm = nn.LayerNorm(o.flat_out_dim)
        self.answer = nn.Linear(o.flat_out_dim, answers)

    def forward(self, tokens: Tensor, images: Tensor, image_of: Tensor) -> tuple[Tensor, Reduced]:
        """Answer a batch.

        Args:
            tokens: int64 [B, T], padded on the right; no row may consist of padding alone.
            images: the batch's different images: uint8 [U, h, w, 3] or features [U, L, C].
            image_of: int64 [B], the image of each question.
        Returns:
            logits [B, A] and where the image was attended to.
        """
        mask = tokens.ne(self.padding)
        x, _ = self.lstm(self.embed(tokens))
        cells = self.cnn(images) if self.cnn is not None else images.to(x.dtype)
        for layer in self.question_layers:
            x = layer(x, mask)
        y = self.project(cells)  # [U, L, H]
        for depth, layer in enumerate(self.image_layers):
            y = layer.look_at_own(y, None)
            if depth == 0:
                # So far the question had no part: computed once an image, also where many questions share it.
                y = y[image_of]  # [B, L, H]
            y = layer.finish(y, x, mask)
        reduced = self.reduce_image(y)
        return self.answer(self.norm(self.reduce_question(x, mask) + reduced.context)), reduced
