"""What all classifiers share: they read words through one table of vectors."""

from typing import Any

import torch
from torch import Tensor, nn

from tasks.data.symbols import FIRST, UNK
from tasks.layers.words import WordVectors


class WordModel(nn.Module):
    """Base of the classifiers, built from `Options` and an encoding (`size`, `classes`, `vectors`, `vector_rows`)."""

    def __init__(self, options: Any, encoded: Any) -> None:
        super().__init__()
        o = options
        pretrained = encoded.vectors, encoded.vector_rows, o.fixed_vectors
        self.vectors = WordVectors(encoded.size, o.embed_dim, o.embed_range, *pretrained)
        self.dropout = nn.Dropout(o.dropout)
        self.word_dropout = getattr(o, "word_dropout", 0.0)

    def words(self, ids: Tensor) -> Tensor:
        """Vectors [B, L, D] of ids [B, L], with dropout; in training, a share `word_dropout` of the words is replaced by unknown."""
        if self.training and self.word_dropout:
            dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(dropped & (ids >= FIRST), UNK)
        return self.dropout(self.vectors(ids))
