"""What all classifiers share: they read words through one table of vectors."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.options import flag, integer, number
from tasks.data.symbols import FIRST, UNK
from tasks.layers.words import WordVectors


@dataclass
class WordOptions:
    """Options of `WordModel`; each architecture's file states the defaults."""

    embed_dim: int = integer(low=1, help="size of word vectors; pretrained ones set their own size")
    embed_range: float = number(low=0, high=10, help="random word vectors ~ U(-r, r)")
    fixed_vectors: bool = flag(help="pretrained vectors are not trained")
    dropout: float = number(low=0, below=1, help="dropout on the word vectors and between the model's parts")


@dataclass
class PairOptions(WordOptions):
    """Options of a model of two texts."""

    word_dropout: float = number(low=0, below=1, help="share of words read as unknown in training; not in the papers")


class WordModel(nn.Module):
    """Base of the classifiers, built from `Options` and an encoding (`size`, `classes`, `vectors`)."""

    def __init__(self, options: WordOptions, encoded: Any) -> None:
        super().__init__()
        o = options
        self.vectors = WordVectors(encoded.size, o.embed_dim, o.embed_range, encoded.vectors, o.fixed_vectors)
        self.dropout = nn.Dropout(o.dropout)
        self.word_dropout = getattr(o, "word_dropout", 0.0)

    def words(self, ids: Tensor) -> Tensor:
        """Vectors [B, L, D] of ids [B, L], with dropout; in training, a share `word_dropout` of the words is replaced by unknown."""
        if self.training and self.word_dropout:
            dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(dropped & (ids >= FIRST), UNK)
        return self.dropout(self.vectors(ids))
