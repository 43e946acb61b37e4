"""The OpenNMT-py 2017 encoder-decoder as a fairseq model, with any attention mapping.

    h_1..h_S = encoder(source)                                   LSTM, one- or bidirectional
    q_t      = decoder([embed(y_{t-1}); a_{t-1}])                LSTM; a_{t-1} only with input feeding
    p_t      = mapping(score(q_t, h_1..h_S))                     sums to one, zero on padding
    a_t      = dropout(tanh(W_o [sum_s p_ts h_s; q_t]))
    y_t      ~ softmax(W_g a_t + b_g)

Source: OpenNMT-py of May 2017 (the toolkit of Niculae & Blondel 2017 and Laha et al. 2018); scores after Luong et al. 2015
(general, dot) and Bahdanau et al. 2015 (additive). Without input feeding all target steps attend in one call.

The same code path serves training and incremental decoding, so both see the same mapping.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder, register_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import sparse_attention as sa

SCORES = ChoiceEnum(["general", "dot", "additive"])
State = tuple[Tensor, Tensor]


@dataclass
class Seq2SeqConfig(FairseqDataclass):
    mapping: str = field(default="softmax", metadata={"help": "registered attention mapping"})
    mapping_params: str = field(default="{}", metadata={"help": "its parameters as JSON"})
    attention: SCORES = field(default="general", metadata={"help": "score function"})
    mask_padding: bool = field(
        default=True, metadata={"help": "False: padding takes part in attention in training (OpenNMT-py of 2017)"}
    )
    input_feeding: bool = field(default=True, metadata={"help": "feed the attentional output to the next decoder step"})
    bidirectional: bool = field(default=False, metadata={"help": "bidirectional encoder"})
    embed_dim: int = field(default=500, metadata={"help": "word vector size, both sides"})
    hidden_dim: int = field(default=500, metadata={"help": "LSTM size (both directions together)"})
    layers: int = field(default=2, metadata={"help": "LSTM layers, both sides"})
    dropout: float = field(default=0.3, metadata={"help": "between LSTM layers and on the attentional output"})
    embed_dropout: float = field(default=0.0, metadata={"help": "on the word vectors (0 in OpenNMT-py)"})
    init_range: float = field(default=0.1, metadata={"help": "all parameters ~ U(-r, r)"})
    share_embeddings: bool = field(
        default=False, metadata={"help": "one matrix for both embeddings and the generator (joint vocabulary)"}
    )
    residual: bool = field(
        default=False, metadata={"help": "attend to encoder states plus word vectors: a short cut for copying"}
    )
    max_source_positions: int = field(default=1024, metadata={"help": "longest source"})
    max_target_positions: int = field(default=1024, metadata={"help": "longest target"})


class Scores(nn.Module):
    """Unnormalised attention scores [B, T, S] of queries [B, T, H] against keys [B, S, H]."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "general":
            self.query = nn.Linear(dim, dim, bias=False)
        elif kind == "additive":
            self.query = nn.Linear(dim, dim)
            self.key = nn.Linear(dim, dim, bias=False)
            self.energy = nn.Linear(dim, 1, bias=False)

    def precompute(self, keys: Tensor) -> Tensor:
        """The part that does not depend on the query: computed once per source."""
        return self.key(keys) if self.kind == "additive" else keys

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.kind == "additive":
            return self.energy(torch.tanh(self.query(queries).unsqueeze(2) + keys.unsqueeze(1))).squeeze(-1)
        if self.kind == "general":
            queries = self.query(queries)
        return torch.bmm(queries, keys.transpose(1, 2))


class Encoder(FairseqEncoder):
    def __init__(self, cfg: Seq2SeqConfig, dictionary) -> None:
        super().__init__(dictionary)
        self.pad = dictionary.pad()
        self.embed = nn.Embedding(len(dictionary), cfg.embed_dim, self.pad)
        directions = 2 if cfg.bidirectional else 1
        if cfg.hidden_dim % directions:
            raise ValueError(
                f"hidden_dim={cfg.hidden_dim} must be even with bidirectional=true: each direction gets half"
            )
        self.directions = directions
        self.embed_dropout = nn.Dropout(cfg.embed_dropout)
        self.lstm = nn.LSTM(
            cfg.embed_dim, cfg.hidden_dim // directions, cfg.layers, batch_first=True, bidirectional=cfg.bidirectional,
            dropout=cfg.dropout if cfg.layers > 1 else 0.0,
        )  # fmt: skip
        self.residual = cfg.residual
        if cfg.residual and cfg.embed_dim != cfg.hidden_dim:
            raise ValueError(f"residual=true needs embed_dim == hidden_dim, got {cfg.embed_dim} and {cfg.hidden_dim}")
        self.max_source_positions = cfg.max_source_positions

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, **_) -> dict[str, Any]:
        """src_tokens [B, S] padded on the right -> {"states" [B, S, H], "mask" [B, S], "h", "c" [layers, B, H]}"""
        x = self.embed_dropout(self.embed(src_tokens))
        packed = pack_padded_sequence(x, src_lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, (h, c) = self.lstm(packed)
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=src_tokens.size(1))
        if self.residual:
            states = states + x
        return {"states": states, "mask": src_tokens.ne(self.pad), "h": self._join(h), "c": self._join(c)}

    def _join(self, h: Tensor) -> Tensor:
        """[layers * directions, B, H / directions] -> [layers, B, H]"""
        if self.directions == 1:
            return h
        n, b, d = h.shape
        return h.view(n // 2, 2, b, d).transpose(1, 2).reshape(n // 2, b, 2 * d)

    def reorder_encoder_out(self, out: dict[str, Any], order: Tensor) -> dict[str, Any]:
        reordered = {k: out[k].index_select(0, order) for k in ("states", "mask", "keys") if k in out}
        return reordered | {k: out[k].index_select(1, order) for k in ("h", "c")}

    def max_positions(self) -> int:
        return self.max_source_positions


class Decoder(FairseqIncrementalDecoder):
    def __init__(self, cfg: Seq2SeqConfig, dictionary, mapping: nn.Module) -> None:
        super().__init__(dictionary)
        self.embed = nn.Embedding(len(dictionary), cfg.embed_dim, dictionary.pad())
        self.input_feeding = cfg.input_feeding
        self.lstm = nn.LSTM(
            cfg.embed_dim + (cfg.hidden_dim if cfg.input_feeding else 0), cfg.hidden_dim, cfg.layers, batch_first=True,
            dropout=cfg.dropout if cfg.layers > 1 else 0.0,
        )  # fmt: skip
        self.scores = Scores(str(cfg.attention), cfg.hidden_dim)
        self.mapping = mapping
        self.mask_padding = cfg.mask_padding
        self.attend_out = nn.Linear(2 * cfg.hidden_dim, cfg.hidden_dim, bias=False)
        self.dropout = nn.Dropout(cfg.dropout)
        self.embed_dropout = nn.Dropout(cfg.embed_dropout)
        self.generator = nn.Linear(cfg.hidden_dim, len(dictionary))
        self.max_target_positions = cfg.max_target_positions

    def attend(self, queries: Tensor, source: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """queries [B, T, H] -> attentional outputs [B, T, H] and attention weights [B, T, S]"""
        scores = self.scores(queries, source["keys"])
        mask = None
        if self.mask_padding or not self.training:  # the 2017 code masks in the translator only
            mask = source["mask"].unsqueeze(1).expand_as(scores)
        p = self.mapping(scores, mask=mask)
        context = torch.bmm(p, source["states"])
        return self.dropout(torch.tanh(self.attend_out(torch.cat((context, queries), -1)))), p

    def forward(self, prev_output_tokens: Tensor, encoder_out=None, incremental_state=None, **_):
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return self.generator(features), extra

    def extract_features(self, prev_output_tokens: Tensor, encoder_out=None, incremental_state=None, **_):
        """prev_output_tokens [B, T] -> attentional outputs [B, T, H], {"attn": [weights [B, T, S]]}

        With an incremental state only the last token is fed; the state holds (h, c) and, with input feeding, a_{t-1}.
        """
        source = dict(encoder_out)
        if "keys" not in source:
            source["keys"] = self.scores.precompute(source["states"])
        cached = self.get_incremental_state(incremental_state, "decoder") if incremental_state is not None else None
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
        if cached is not None:
            state: State = (cached["h"], cached["c"])
            feed = cached["feed"]
        else:
            state = (source["h"].contiguous(), source["c"].contiguous())
            feed = source["states"].new_zeros(prev_output_tokens.size(0), 1, source["states"].size(2))
        x = self.embed_dropout(self.embed(prev_output_tokens))
        if self.input_feeding:
            steps = []
            for t in range(x.size(1)):  # a_{t-1} enters the LSTM: no way around one step at a time
                query, state = self.lstm(torch.cat((x[:, t : t + 1], feed), -1), state)
                feed, p = self.attend(query, source)
                steps.append((feed, p))
            features, attention = (torch.cat(parts, 1) for parts in zip(*steps))
        else:
            queries, state = self.lstm(x, state)
            features, attention = self.attend(queries, source)
        if incremental_state is not None:
            self.set_incremental_state(incremental_state, "decoder", {"h": state[0], "c": state[1], "feed": feed})
        return features, {"attn": [attention]}

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        cached = self.get_incremental_state(incremental_state, "decoder")
        if cached is not None:
            reordered = {k: cached[k].index_select(1, new_order) for k in ("h", "c")}
            reordered["feed"] = cached["feed"].index_select(0, new_order)
            self.set_incremental_state(incremental_state, "decoder", reordered)

    def max_positions(self) -> int:
        return self.max_target_positions


def _share_embeddings(cfg: Seq2SeqConfig, model: Seq2SeqModel, task) -> None:
    if cfg.embed_dim != cfg.hidden_dim:
        raise ValueError(
            f"share_embeddings=true needs embed_dim == hidden_dim, got {cfg.embed_dim} and {cfg.hidden_dim}"
        )
    if task.source_dictionary != task.target_dictionary:
        raise ValueError("share_embeddings=true needs one vocabulary for both sides: set task.encode.joint=true")
    model.decoder.embed.weight = model.encoder.embed.weight
    model.decoder.generator.weight = model.encoder.embed.weight


@register_model("sa_seq2seq", dataclass=Seq2SeqConfig)
class Seq2SeqModel(FairseqEncoderDecoderModel):
    @classmethod
    def build_model(cls, cfg: Seq2SeqConfig, task) -> Seq2SeqModel:
        mapping = sa.make(cfg.mapping, **json.loads(cfg.mapping_params))
        model = cls(Encoder(cfg, task.source_dictionary), Decoder(cfg, task.target_dictionary, mapping))
        if cfg.share_embeddings:
            _share_embeddings(cfg, model, task)
        for name, parameter in model.named_parameters():
            if ".mapping." not in name:  # a learned lambda starts where its configuration says
                nn.init.uniform_(parameter, -cfg.init_range, cfg.init_range)
        for embedding in (model.encoder.embed, model.decoder.embed):
            nn.init.zeros_(embedding.weight[embedding.padding_idx])
        return model

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **_):
        return self.decoder(prev_output_tokens, encoder_out=self.encoder(src_tokens, src_lengths))
