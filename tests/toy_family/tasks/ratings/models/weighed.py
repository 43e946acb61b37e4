"""A rating of the mean of a text's word vectors, weighted by attention."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from repro.options import integer
from tasks.config.files import defaults
from tasks.config.models import Place
from tasks.data.symbols import PAD

PLACES = {"attention": Place(over=("row",))}


@defaults("model/weighed")
class Options:
    """Sizes."""

    embed_dim: int = integer(low=1, help="word vector size")


class Model(nn.Module):
    """Build from `Options`, an encoding and {"attention": mapping}."""

    def __init__(self, options: Options, encoded: Any, mappings: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(encoded.size, options.embed_dim)
        self.score, self.output = (nn.Linear(options.embed_dim, 1) for _ in range(2))
        self.mapping = mappings["attention"]

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, L] -> ratings [B]."""
        x = self.words(tokens)
        p = self.mapping(self.score(x).squeeze(-1), mask=tokens.ne(PAD))
        return self.output((p.unsqueeze(1) @ x).squeeze(1)).squeeze(-1)
