"""The Transformer (Vaswani et al. 2017), with a separate attention mapping for each of its three places.

    x   = sqrt(E) embed(word) + position                        sines and cosines, section 3.5
    h   = layers of [self-attention, feed-forward]              over the source: the place "encoder"
    g_t = layers of [self-attention, attention to h, feed-forward]    over y_<t: "decoder"; over h: "cross"
    y_t ~ softmax(W_g g_t)                                      or entmax, with `output`

Each sub-layer F has a residual connection: norm(x + F(x)), or with `pre_norm` x + F(norm(x)) and a norm at the end
(Xiong et al. 2020). A head's attention is mapping(q k / sqrt(d)). A "learned" hyperparameter of the mapping has a
separate value for every head of every layer (Correia et al. 2019, for alpha of entmax). Every layer has its own copy of
the mapping.

Training and search share the same code: the state holds the keys and values of the words so far, and teacher forcing
uses a causal mask. For a mapping over rows, masked positions and positions that do not exist yet are equivalent.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from repro.options import flag, integer
from tasks.config.files import defaults
from tasks.config.models import Place
from tasks.data.symbols import PAD
from tasks.layers.transformer import Cache, Layer, LayerOptions, initialise, positions
from tasks.seq2seq.options import output

PLACES = {"encoder": Place(unnormalised=True), "decoder": Place(unnormalised=True), "cross": Place()}
Tensors = dict[str, Tensor]  # batch-first tensors by name


@defaults("model/transformer_base")
class Options(LayerOptions):
    """Sizes of encoder and decoder; the defaults are those of the base model of Vaswani et al. 2017."""

    layers: int = integer(low=1, help="layers of the encoder, and as many of the decoder")
    share_embeddings: bool = flag(help="one matrix for both embeddings and the generator; needs encode.joint")
    share_output: bool = flag(help="one matrix for the target embedding and the generator")
    output: str | None = output()

    def problems(self) -> list[str]:
        found = super().problems()
        if self.share_embeddings and not self.share_output:
            shares = "share_embeddings=true, which shares all three matrices"
            found.append(f"share_output=false is not possible with {shares}")
        return found


class Model(nn.Module):
    """Encoder and decoder.

    Args:
        options: see `Options`.
        source_size, target_size: sizes of the vocabularies, special symbols included.
        mappings: one mapping for each of `PLACES`.
    """

    def __init__(self, options: Options, source_size: int, target_size: int, mappings: dict[str, nn.Module]) -> None:
        super().__init__()
        H = options.hidden_dim
        self.options = options
        self.source_embed = nn.Embedding(source_size, H, PAD)
        self.target_embed = nn.Embedding(target_size, H, PAD)
        self.dropout = nn.Dropout(options.dropout)
        self.encoder = nn.ModuleList(Layer(options, mappings["encoder"]) for _ in range(options.layers))
        both = mappings["decoder"], mappings["cross"]
        self.decoder = nn.ModuleList(Layer(options, *both) for _ in range(options.layers))
        norms = (nn.LayerNorm(H) if options.pre_norm else nn.Identity() for _ in range(2))
        self.encoder_norm, self.decoder_norm = norms
        self.generator = nn.Linear(H, target_size, bias=False)
        if options.share_embeddings:
            self.target_embed.weight = self.source_embed.weight
        if options.share_output:
            self.generator.weight = self.target_embed.weight
        for layer in (*self.encoder, *self.decoder):
            initialise(layer)
        for table in (self.source_embed, self.target_embed, self.generator):
            nn.init.normal_(table.weight, std=H**-0.5)
        for embedding in (self.source_embed, self.target_embed):
            nn.init.zeros_(embedding.weight[PAD])

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> Tensors:
        """Encode a batch of sources for the decoder: src_tokens [B, S], padded on the right.

        Returns:
            a dictionary with lengths [B] and, for each decoder layer i, keys.i and values.i [B, heads, S, E / heads].
        """
        lengths = src_tokens.ne(PAD).sum(1)
        x = self._embed(self.source_embed, src_tokens)
        for layer in self.encoder:
            x, *_ = layer(x, lengths)
        x = self.encoder_norm(x)
        return {"lengths": lengths, **_named(layer.cross.project(x, "kv") for layer in self.decoder)}

    def start(self, memory: Tensors) -> Tensors:
        """The decoder's initial state, without words: keys.i and values.i [B, heads, 0, E / heads]."""
        return {name: value[:, :, :0] for name, value in memory.items() if name != "lengths"}

    def step(self, tokens: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """One decoding step: tokens [B] -> logits of the next token [B, V], attention [B, S], new state."""
        features, weights, state = self._advance(tokens.unsqueeze(1), memory, state)
        return self.generator(features).squeeze(1), weights.squeeze(1), state

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher forcing: prev_output_tokens [B, T] -> logits [B, T, V], attention [B, T, S] (see `_advance`)."""
        memory = self.encode(src_tokens, src_lengths)
        features, weights, _ = self._advance(prev_output_tokens, memory, self.start(memory))
        return self.generator(features), weights

    def _embed(self, table: nn.Embedding, tokens: Tensor, first: int = 0) -> Tensor:
        """Embed tokens [B, T], the first of which has position `first` -> [B, T, E]."""
        x = table(tokens)
        return self.dropout(x * x.size(-1) ** 0.5 + positions(x, first))

    def _advance(self, tokens: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """The next words [B, T] -> features [B, T, E], weights [B, T, S] (mean of the last layer's heads), state."""
        x = self._embed(self.target_embed, tokens, state["keys.0"].size(2))
        after = []
        for i, layer in enumerate(self.decoder):
            last = layer is self.decoder[-1]
            x, cache, weights = layer(x, memory["lengths"], _at(state, i), _at(memory, i), weigh=last)
            after.append(cache)
        return self.decoder_norm(x), weights.mean(1), _named(after)


def _named(caches: Iterable[Cache]) -> Tensors:
    """The keys and values of each layer i, under the names keys.i and values.i."""
    return {f"{name}.{i}": value for i, cache in enumerate(caches) for name, value in zip(("keys", "values"), cache)}


def _at(tensors: Tensors, i: int) -> Cache:
    """Keys and values of layer i."""
    return tensors[f"keys.{i}"], tensors[f"values.{i}"]
