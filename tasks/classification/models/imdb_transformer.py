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

from tasks.classification.models._words import WordModel
from tasks.config.models import Place
from tasks.config.options import defaults, flag, integer, number
from tasks.data.symbols import PAD
from tasks.layers.attention import AdditiveScores, Attention
from tasks.layers.transformer import Layer, initialise, positions

TEXTS = 1  # per example
PLACES = {"encoder": Place(unnormalised=True), "attention": Place()}


@defaults("model/imdb_transformer_small")
class Options:
    """Sizes for one core."""

    layers: int = integer(low=1, high=64)
    hidden_dim: int = integer(
        low=2, high=16384, help="units of the layers and the scores of words: even, a multiple of heads"
    )
    ff_dim: int = integer(low=1, high=131_072, help="hidden units of the feed-forward sub-layers")
    heads: int = integer(low=1, high=1024)
    embed_dim: int = integer(low=1, high=16384, help="size of word vectors; pretrained ones set their own size")
    embed_range: float = number(low=0, high=10, help="random word vectors ~ U(-r, r)")
    fixed_vectors: bool = flag(help="pretrained vectors are not trained")
    dropout: float = number(
        low=0, below=1, help="dropout on the word vectors, on what each sub-layer adds and on the context"
    )
    attention_dropout: float = number(low=0, below=1, help="dropout on the weights of the self-attention")
    relu_dropout: float = number(low=0, below=1, help="inside the feed-forward sub-layers")
    pre_norm: bool = flag(help="normalise before each sub-layer, not after: trains with less warm-up")

    def problems(self) -> list[str]:
        if self.hidden_dim % self.heads or self.hidden_dim % 2:
            return [f"hidden_dim={self.hidden_dim} must be even and a multiple of heads={self.heads}"]
        return []


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
