"""Document classifier by self-attention: the biLSTM of `imdb_bilstm` replaced by layers of the Transformer (Vaswani et al. 2017).

    x    = P word + position
    h    = layers of [self-attention, feed-forward] over x            each head by the mapping: the place "encoder"
    p    = mapping(w' tanh(W h_l + b)),  c = sum_l p_l h_l            as in `imdb_bilstm`: the place "attention"
    y ~ softmax(U c + d)

The weights of the self-attention are not requested, so `sa.sparse_attention` takes the path that stores no words x words matrix.
The papers have no such model; it shows what sparse attention costs over a document.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from repro.options import integer
from tasks.classification.models._words import WordModel, WordOptions
from tasks.config.files import defaults
from tasks.config.models import Place
from tasks.data.symbols import PAD
from tasks.layers.attention import AdditiveScores, Attention
from tasks.layers.transformer import Layer, LayerOptions, initialise, positions

TEXTS = 1  # per example
PLACES = {"encoder": Place(unnormalised=True), "attention": Place()}


@defaults("model/imdb_transformer_small")
class Options(WordOptions, LayerOptions):
    """Sizes for one core."""

    layers: int = integer(low=1)


class Model(WordModel):
    """Built from `Options`, an encoding (see `WordModel`) and a mapping for each of `PLACES`."""

    def __init__(self, options: Options, encoded: Any, mappings: Mapping[str, nn.Module]) -> None:
        super().__init__(options, encoded)
        H = options.hidden_dim
        self.project = nn.Linear(self.vectors.dim, H)
        self.layers = nn.ModuleList(Layer(options, mappings["encoder"]) for _ in range(options.layers))
        self.norm = nn.LayerNorm(H) if options.pre_norm else nn.Identity()
        self.attend = Attention(AdditiveScores(None, H, H), mappings["attention"])
        self.output = nn.Linear(H, len(encoded.classes))
        for part in (self.project, *self.layers):
            initialise(part)

    def forward(self, texts: list[Tensor], lengths: list[Tensor]) -> tuple[Tensor, dict[str, Any]]:
        """texts [1][B, L] padded on the right -> logits [B, C], {"attention": {"words": [B, L]}}."""
        mask = texts[0].ne(PAD)
        x, words = self.project(self.words(texts[0])), mask.sum(1)
        x = x + positions(x)
        for layer in self.layers:
            x, *_ = layer(x, words)
        context, p = self.attend(None, self.norm(x), mask=mask)
        return self.output(self.dropout(context)), {"attention": {"words": p}}
