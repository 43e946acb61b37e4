"""The encoder-decoder of OpenNMT-py, May 2017, with any attention mapping.

    h_1..h_S = encoder(source)                                   LSTM, one- or bidirectional
    q_t      = decoder([embed(y_{t-1}); a_{t-1}])                LSTM; a_{t-1} only with input feeding
    p_t      = mapping(score(q_t, h_1..h_S))                     sums to one, zero on padding
    a_t      = dropout(tanh(W_o [sum_s p_ts h_s; q_t]))
    y_t      ~ softmax(W_g a_t + b_g)                           or entmax, with `output`

Source: OpenNMT-py at defffb2f (the toolkit of Niculae & Blondel 2017 and Laha et al. 2018); scores after Luong et al.
2015 (general, dot) and Bahdanau et al. 2015 (additive). Without input feeding, all target steps attend in one call.

Training and search share the same code. A stateful mapping (`start`, `step`) keeps its state in the decoder's state,
under keys that begin with "mapping."; teacher forcing also passes this state from step to step.
"""

from typing import Any

import torch
from torch import Tensor, nn

from repro.options import choice, flag, integer, number
from tasks.config.files import defaults
from tasks.config.models import Place
from tasks.data.symbols import PAD
from tasks.layers.attention import KINDS, Attention, make_scores
from tasks.layers.lstm import Lstm, packed
from tasks.layers.steps import Decoder
from tasks.seq2seq.options import output

PLACES = {"cross": Place(over=("row",), provides=("lengths",), stateful=True)}
STATE = "mapping."  # prefix of the mapping's own entries in the decoder's state
Tensors = dict[str, Tensor]  # batch-first tensors by name


@defaults("model/lstm_opennmt")
class Options:
    """OpenNMT's encoder-decoder, with its defaults of May 2017."""

    attention: str = choice(*KINDS, help="score function")
    mask_padding: bool = flag(help="false: padding takes part in training attention, as in the 2017 code")
    input_feeding: bool = flag(help="feed the attentional output to the next decoder step")
    bidirectional: bool = flag(help="encoder reads in both directions, each with half of hidden_dim")
    embed_dim: int = integer(low=1, help="size of the word vectors, both sides")
    hidden_dim: int = integer(low=1, help="size of the LSTMs (both directions together)")
    layers: int = integer(low=1, help="layers of each LSTM")
    dropout: float = number(low=0, below=1, help="between LSTM layers and on the attentional output")
    embed_dropout: float = number(low=0, below=1, help="dropout on the word vectors; 0 in OpenNMT")
    init_range: float = number(above=0, high=10, help="all parameters start uniform in [-r, r]")
    share_embeddings: bool = flag(help="one matrix for both embeddings and the generator; needs encode.joint")
    residual: bool = flag(help="attend to encoder states plus word vectors: a shortcut for copying; not in the papers")
    score_scale: float = number(above=0, high=1e6, help="factor on the attention scores; 1 in the papers")
    output: str | None = output()

    def problems(self) -> list[str]:
        found = []
        if self.bidirectional and self.hidden_dim % 2:
            found.append(f"hidden_dim={self.hidden_dim} must be even with bidirectional=true: each direction gets half")
        for name in ("residual", "share_embeddings"):
            if getattr(self, name) and self.embed_dim != self.hidden_dim:
                found.append(f"{name}=true needs embed_dim == hidden_dim, got {self.embed_dim} and {self.hidden_dim}")
        return found


class Model(nn.Module):
    """Encoder and decoder.

    Args:
        options: see `Options`.
        source_size, target_size: sizes of the vocabularies, special symbols included.
        mappings: {"cross": the attention mapping}.
    """

    def __init__(self, options: Options, source_size: int, target_size: int, mappings: dict[str, nn.Module]) -> None:
        super().__init__()
        H, E, inner = options.hidden_dim, options.embed_dim, options.dropout if options.layers > 1 else 0.0
        self.options = options
        self.source_embed = nn.Embedding(source_size, E, PAD)
        self.target_embed = nn.Embedding(target_size, E, PAD)
        both = options.bidirectional
        size = H // 2 if both else H
        self.encoder = Lstm(E, size, options.layers, batch_first=True, dropout=inner, bidirectional=both)
        fed = H if options.input_feeding else 0
        self.decoder = Lstm(E + fed, H, options.layers, batch_first=True, dropout=inner)
        self.attention = Attention(make_scores(options.attention, H), mappings["cross"])
        self.attend_out = nn.Linear(2 * H, H, bias=False)
        self.dropout = nn.Dropout(options.dropout)
        self.embed_dropout = nn.Dropout(options.embed_dropout)
        self.generator = nn.Linear(H, target_size)
        if options.share_embeddings:
            self.target_embed.weight = self.generator.weight = self.source_embed.weight
        for name, parameter in self.named_parameters():
            if ".mapping." not in name:  # a learned lambda keeps its configured initial value
                nn.init.uniform_(parameter, -options.init_range, options.init_range)
        for embedding in (self.source_embed, self.target_embed):
            nn.init.zeros_(embedding.weight[PAD])
        self.inputs, self.stateful = mappings["cross"].spec.inputs, mappings["cross"].spec.stateful

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> Tensors:
        """Encode a batch of sources for the decoder: src_tokens [B, S], padded on the right, and src_lengths [B].

        Returns:
            a dictionary with states, keys [B, S, H], mask [B, S] (True = a word), lengths [B], h, c [B, layers, H].
        """
        x = self.embed_dropout(self.source_embed(src_tokens))
        states, (h, c) = packed(self.encoder, x, src_lengths)
        if self.options.residual:
            states = states + x
        keys, lengths = self.attention.scores.precompute(states), src_lengths.to(x.device, non_blocking=True)
        encoded = {"states": states, "keys": keys, "mask": src_tokens.ne(PAD), "lengths": lengths}
        return encoded | {"h": self._join(h), "c": self._join(c)}

    def _join(self, h: Tensor) -> Tensor:
        """[layers * directions, B, H / directions] -> [B, layers, H]"""
        return h.unflatten(0, (self.options.layers, -1)).permute(2, 0, 1, 3).flatten(2)

    def start(self, memory: Tensors) -> Tensors:
        """The decoder's initial state: h, c [B, layers, H], feed [B, H] (a_{t-1}) and the state of the mapping."""
        state = {"h": memory["h"], "c": memory["c"], "feed": torch.zeros_like(memory["h"][:, 0])}
        if self.stateful:
            mask = self._mask(memory)
            mask = torch.ones_like(memory["mask"]) if mask is None else mask
            own = self.attention.mapping.start(mask, **{name: memory[name] for name in self.inputs})
            state |= {STATE + name: value for name, value in own.items()}
        return state

    def step(self, tokens: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """One decoding step: tokens [B] -> logits of the next token [B, V], attention [B, S], new state."""
        features, weights, state = self._advance(self._embed(tokens.unsqueeze(1)), memory, state)
        return self.generator(features).squeeze(1), weights.squeeze(1), state

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Teacher forcing: prev_output_tokens [B, T] -> logits [B, T, V], attention [B, T, S].

        inputs: further inputs of `encode`.
        """
        memory = self.encode(src_tokens, src_lengths, **inputs)
        x, state = self._embed(prev_output_tokens), self.start(memory)
        if self._launching(x):
            return self._stepwise(x, memory, state)
        steps, at_once = [], 1 if self.options.input_feeding else x.size(1)  # step by step if a_{t-1} enters the LSTM
        for part in x.split(at_once, dim=1):
            features, weights, state = self._advance(part, memory, state)
            steps.append((features, weights))
        features, weights = (torch.cat(parts, 1) for parts in zip(*steps))
        return self.generator(features), weights

    def _launching(self, x: Tensor) -> bool:
        """Whether the time of training goes into starting operations: on a GPU, step by step, in float32."""
        stepwise = x.is_cuda and self.options.input_feeding and torch.is_grad_enabled()
        return stepwise and not torch.is_autocast_enabled("cuda")

    def _stepwise(self, x: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        """What `forward` returns, by as few operations as possible (`tasks.layers.steps`); equal up to rounding, and to
        other random numbers of the dropout."""
        matrix, attention = self.attention.scores.matrix(memory["keys"]), []
        begin = *(state[name].transpose(0, 1) for name in ("h", "c")), state["feed"]
        share = self.dropout.p if self.training else 0.0
        loop = Decoder(self.decoder, x, begin, memory["states"], self.attend_out.weight, matrix, share)
        for _ in range(x.size(1)):
            query, scores = loop.query()
            weights, own = self._attend(query, {**memory, "scores": scores}, state)  # type: ignore[dict-item]
            loop.read(self._reading(weights, memory))
            state = {**state, **own}
            attention.append(weights)
        return self.generator(loop.features()), torch.cat(attention, 1)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.embed_dropout(self.target_embed(tokens))

    def _mask(self, memory: Tensors) -> Tensor | None:
        """Padding mask [B, S]; None in training with mask_padding=false (the 2017 code masks only when translating)."""
        return memory["mask"] if self.options.mask_padding or not self.training else None

    def _advance(self, x: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """Words x [B, T, E] (T = 1 with input feeding) -> a [B, T, H], weights [B, T, S], new state."""
        if self.options.input_feeding:
            x = torch.cat((x, state["feed"].unsqueeze(1)), -1)
        h, c = (state[name].transpose(0, 1).contiguous() for name in ("h", "c"))
        queries, (h, c) = self.decoder(x, (h, c))
        weights, own = self._attend(queries, memory, state)
        context = torch.bmm(self._reading(weights, memory), memory["states"])
        features = self.dropout(torch.tanh(self.attend_out(torch.cat((context, queries), -1))))
        return features, weights, {"h": h.transpose(0, 1), "c": c.transpose(0, 1), "feed": features[:, -1], **own}

    def _reading(self, weights: Tensor, memory: Tensors) -> Tensor:
        """Attention weights [B, T, S] -> weights of the states in the context [B, T, S]; here they are the same."""
        return weights

    def _attend(self, queries: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensors]:
        """queries [B, T, H] -> weights [B, T, S] and the mapping's entries of the new state."""
        mapping, mask = self.attention.mapping, self._mask(memory)
        scores: Any = memory.get("scores")
        if scores is None:
            scores = self.attention.scores(queries, memory["keys"])
        if self.options.score_scale != 1:
            # below 1, a sparse mapping starts with a larger support, so that more positions learn
            scores = scores * self.options.score_scale
        if not self.stateful:
            inputs = {name: memory[name].unsqueeze(1) for name in self.inputs}  # the same value for all T steps
            return mapping(scores, mask=None if mask is None else mask.unsqueeze(1), **inputs), {}
        own = {name.removeprefix(STATE): value for name, value in state.items() if name.startswith(STATE)}
        steps = []
        for row in scores.unbind(1):
            p, own = mapping.step(row, own, mask)
            steps.append(p)
        return torch.stack(steps, 1), {STATE + name: value for name, value in own.items()}
