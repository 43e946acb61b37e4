"""MCAN, the modular co-attention network (Yu et al. 2019), with a choice of attention in its last step.

    question  words -> embedding -> LSTM -> self-attention x layers                     x [B, T, H]
    image     regions -> linear -> (self-attention, attention to x) x layers            y [B, L, H]
    answer    reduce(x) + reduce(y) -> layer norm -> linear                             logits [B, A]

`reduce` (AttFlat in the authors' code) scores every word or image region with a small MLP, turns the scores into
weights, and computes the weighted sum. Martins et al. 2020, section 4, replace only the weights of the *image*. This is
the place "image", which accepts a mapping over rows, a mapping over grids, or a density (`_layers.py`). The co-attention
layers and the question keep their softmax.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sparse_attention as sa
from repro.options import choice, integer, listing, number
from sparse_attention.mappings.continuous import GaussianBasis2d
from sparse_attention.mappings.continuous.attention2d import check_quadrature
from sparse_attention.mappings.continuous.moments import MOMENT_MATCHES
from sparse_attention.mappings.continuous.regression import PAD_POSITIONS
from tasks.config.files import defaults
from tasks.config.models import Place, mappings_at, row_mappings
from tasks.data.symbols import PAD
from tasks.layers.lstm import Lstm
from tasks.layers.words import density_alpha
from tasks.vqa.models._layers import ImageReduction, Layer, QuestionReduction, Reduced, Scorer, SmallCnn

PLACES = {"image": Place(over=("row", "grid", "density"))}


@defaults("model/mcan_small")
class Options:
    """Sizes and attention; the defaults are those of the paper's MCAN small."""

    layers: int = integer(low=1, help="co-attention layers")
    hidden_dim: int = integer(low=1, help="a multiple of heads")
    heads: int = integer(low=1)
    ff_dim: int = integer(low=1)
    dropout: float = number(low=0, below=1)
    embed_dim: int = integer(low=1, help="size of word vectors; with encode.vectors, it must be theirs")
    flat_mlp_dim: int = integer(low=1, help="hidden units of the MLP that scores words and regions")
    flat_out_dim: int = integer(low=1)
    discrete: str = choice(names=row_mappings, help="discrete mapping that gives the moments of a density")
    basis_side: int = integer(low=1, high=100, help="basis functions per axis")
    basis_variance: float = number(above=0, high=100, help="covariance of the basis functions: this times the identity")
    ridge: float = number(above=0, high=1e6, help="ridge penalty of the regression on the basis functions")
    pad_positions: str = choice(*PAD_POSITIONS, help="correct: zeros fitted on [-1/2, 3/2]^2, as in the paper")
    moment_match: str = choice(*MOMENT_MATCHES)
    cnn_channels: list[int] = listing(integer(low=1), help="data.input=pixels: one convolution each")
    cnn_strides: list[int] = listing(integer(low=1), help="strides of the convolutions")

    def problems(self) -> list[str]:
        found = []
        if self.hidden_dim % self.heads:
            found.append(f"hidden_dim={self.hidden_dim} is not a multiple of heads={self.heads}")
        if len(self.cnn_channels) != len(self.cnn_strides):
            found.append(f"cnn_channels={self.cnn_channels} and cnn_strides={self.cnn_strides} must be of one length")
        return found


class Model(nn.Module):
    """Maps words and images to logits of the answers.

    Built from `Options`, an encoding (`word_count`, `answers`, `image_spec`, `vectors`) and {"image": mapping}.
    Raises ValueError if options and data do not match.
    """

    def __init__(self, options: Options, encoded: Any, mappings: Mapping[str, nn.Module]) -> None:
        super().__init__()
        o, images = options, encoded.image_spec
        self.embed = nn.Embedding(encoded.word_count, o.embed_dim, PAD)
        if encoded.vectors is not None:
            if encoded.vectors.shape != self.embed.weight.shape:
                found, expected = tuple(encoded.vectors.shape), tuple(self.embed.weight.shape)
                raise ValueError(f"word vectors {found} do not fit {expected}: set model.embed_dim={found[1]}")
            self.embed.weight.data.copy_(torch.from_numpy(np.array(encoded.vectors)))
        self.lstm = Lstm(o.embed_dim, o.hidden_dim, batch_first=True)
        self.cnn = SmallCnn(o.cnn_channels, o.cnn_strides) if images.kind == "pixels" else None
        self.grid = SmallCnn.grid(images.grid, o.cnn_strides) if self.cnn else images.grid
        self.project = nn.Linear(o.cnn_channels[-1] if self.cnn else images.channels, o.hidden_dim)
        sizes = (o.hidden_dim, o.heads, o.ff_dim, o.dropout)
        self.question_layers = nn.ModuleList(Layer(*sizes, guided=False) for _ in range(o.layers))
        self.image_layers = nn.ModuleList(Layer(*sizes, guided=True) for _ in range(o.layers))
        score = (o.hidden_dim, o.flat_mlp_dim, o.dropout)
        self.reduce_question = QuestionReduction(Scorer(*score), o.hidden_dim, o.flat_out_dim)
        fit = {"basis": GaussianBasis2d.grid(o.basis_side, o.basis_side, o.basis_variance), "ridge": o.ridge}
        fit |= {"pad_positions": o.pad_positions, "moment_match": o.moment_match}
        self.reduce_image = ImageReduction(
            Scorer(*score), o.hidden_dim, o.flat_out_dim, mappings["image"], sa.make(o.discrete), self.grid, fit
        )
        self.norm = nn.LayerNorm(o.flat_out_dim)
        self.answer = nn.Linear(o.flat_out_dim, len(encoded.answers))

    def forward(self, tokens: Tensor, images: Tensor, image_of: Tensor) -> tuple[Tensor, Reduced]:
        """Answer a batch of questions.

        Args:
            tokens: int64 [B, T], padded on the right; no row may consist only of padding.
            images: the distinct images of the batch, uint8 [U, h, w, 3] or features [U, L, C].
            image_of: int64 [B], the index of each question's image in `images`.
        Returns:
            logits [B, A] and the attention to the image.
        """
        mask = tokens.ne(PAD)
        x, _ = self.lstm(self.embed(tokens))
        cells = self.cnn(images) if self.cnn is not None else images.to(x.dtype)
        for layer in self.question_layers:
            x = layer(x, mask)
        y = self.project(cells)  # [U, L, H]
        for depth, layer in enumerate(self.image_layers):
            y = layer.look_at_own(y, None)
            # Until the first attention to a question, all is computed once per image, not once per question.
            y = layer.finish(y, x, mask, image_of if depth == 0 else None)  # [B, L, H]
        reduced = self.reduce_image(y)
        return self.answer(self.norm(self.reduce_question(x, mask) + reduced.context)), reduced


def problems(config: Mapping[str, Any]) -> list[str]:
    """Conflicts between the nodes of a configuration in which each node is valid on its own."""
    found, model = [], config["model"]
    mapping = mappings_at(config["mapping"], PLACES)["image"]
    alpha, name = density_alpha(mapping), mapping.spec.name
    if alpha is not None:
        try:
            check_quadrature(getattr(mapping, "quadrature", "auto"), GaussianBasis2d.grid(), alpha)
        except ValueError as error:
            found.append(f"mapping={name}: {error}")
    elif model["discrete"] != "softmax":
        told = f"model.discrete={model['discrete']} gives a density its moments, and mapping={name} is none"
        found.append(f"{told}: set mapping={model['discrete']}, or a continuous one")
    if config["data"].get("input") == "pixels" and not model["cnn_channels"]:
        needed = "model.cnn_channels and model.cnn_strides, for example [32, 64, 64] and [2, 2, 2]"
        found.append(f"data.input=pixels needs {needed}")
    return found
