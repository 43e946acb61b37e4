"""The encoder-decoder of `lstm` that passes fertilities to its mapping: limits on a source word's total attention.

    f_i    constant, or given by the word's type or by the sentence pair, or predicted          (Malaviya et al. 2018)
    f_sink = inf: a position after the source takes the attention that no word should get

The encoder reads the sink after the last word, as the symbol `<s>`, which does not occur in sources. It is the last
column of the positions that the decoder attends to; the returned attention contains only the words. With `coverage`,
the scores also depend on the attention that each position has received so far (Tu et al. 2016, like `-coverage_attn` of
OpenNMT-py): score(q_t, tanh(h_i + w sum_{t' < t} p_{t'i})). Training then adds `coverage_loss` times the coverage loss of
See et al. 2017: sum_t sum_i min(p_ti, sum_{t' < t} p_{t'i}).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repro.options import choice, flag, integer, number
from tasks.config.files import defaults
from tasks.config.models import Place, nodes_at
from tasks.data.symbols import BOS, PAD
from tasks.layers.lstm import Tagger
from tasks.seq2seq.fertility import FERTILITIES, TAGGER, TYPES
from tasks.seq2seq.models import lstm

PLACES = {"cross": Place(over=("row",), provides=("fertility",), stateful=True)}
Tensors = dict[str, Tensor]
EARLIER = {"forward_links": False}  # of cells from before this option
_ROWS = "constant; guided: largest count of the word type in training; actual: of the pair; predicted: by a tagger"


@defaults("model/lstm_fertility")
class Options(lstm.Options):
    """The options of `lstm`, and those of the fertilities."""

    fertility: str = choice(*FERTILITIES, help=f"how often a source word may be attended to: {_ROWS}")
    constant: float = number(low=0, high=1e6, help="with fertility=constant: the fertility of every word")
    sink: bool = flag(help="add a position with infinite fertility")
    forward_links: bool = flag(
        help="count links and tag as in the authors' code (not read with fertility=constant); false: links of both "
        "directions, symmetrised, and the tagger tells 0 to 10"
    )
    coverage: bool = flag(help="scores depend on the attention that a position has received")
    coverage_loss: float = number(low=0, high=1e6, help="weight of the coverage loss in training")
    tagger_dim: int = integer(low=1, help="with fertility=predicted: size of the tagger's word vectors and LSTMs")
    tagger_epochs: int = integer(low=1, help="with fertility=predicted: epochs of the tagger")


class Model(lstm.Model):
    """Like `lstm.Model`; `adopt` loads fertilities learned from the training data."""

    def __init__(self, options: Options, source_size: int, target_size: int, mappings: dict[str, nn.Module]) -> None:
        super().__init__(options, source_size, target_size, mappings)
        self.coverage_loss = options.coverage_loss
        if options.coverage:
            self.cover = nn.Linear(1, options.hidden_dim, bias=False)
            nn.init.uniform_(self.cover.weight, -options.init_range, options.init_range)
        if options.fertility == "guided":
            self.register_buffer("of_type", torch.ones(source_size))
        if options.fertility == "predicted":
            sizes, least = (source_size, options.tagger_dim, options.tagger_dim), int(options.forward_links)
            self.tagger = Tagger(*sizes, dropout=0.0, least=least).requires_grad_(False)  # it is trained already

    def adopt(self, folder: Path | None) -> None:
        """Load the fertilities of word types, or the tagger, from a folder made by `tasks.seq2seq.fertility`.
        Raises:
            ValueError: the fertilities are learned from data, or there is a coverage loss, which our own criterion adds,
                but there is no folder of encoded pairs.
        """
        kind, weight = self.options.fertility, self.options.coverage_loss
        if folder is None and (weight or kind != "constant"):
            told = f"fertility={kind} and coverage_loss={weight:g} need pairs that we encoded"
            raise ValueError(f"{told}; use scripts/train.py, or --fertility constant --coverage-loss 0")
        if kind == "guided":
            self.of_type.copy_(torch.from_numpy(np.load(folder / TYPES)))
        elif kind == "predicted":
            self.tagger.load_state_dict(safetensors.torch.load_file(folder / TAGGER))

    def encode(self, src_tokens: Tensor, src_lengths: Tensor, fertility: Tensor | None = None) -> Tensors:
        """Like `lstm.Model.encode`, with fertility [B, S] added.

        With a sink, the sink is the last column of states, keys, mask and fertility, [B, S + 1, ...].

        Args:
            fertility: [B, S], the counts of the sentence pair; used with fertility=actual.
        """
        words = self._fertilities(src_tokens, src_lengths, fertility)
        if not self.options.sink:
            return {**super().encode(src_tokens, src_lengths), "fertility": words}
        end = src_lengths.to(src_tokens.device, non_blocking=True).unsqueeze(1)  # [B, 1]
        memory = super().encode(F.pad(src_tokens, (0, 1), value=PAD).scatter(1, end, BOS), src_lengths + 1)
        mask = F.pad(src_tokens.ne(PAD), (0, 1), value=True)
        for name in ("states", "keys"):
            x = memory[name]
            sink = x.gather(1, end.unsqueeze(2).expand(-1, -1, x.size(2)))  # [B, 1, H]
            memory[name] = torch.cat((x[:, :-1], sink), 1)
        return {**memory, "mask": mask, "fertility": F.pad(words, (0, 1), value=torch.inf)}

    def _fertilities(self, src_tokens: Tensor, src_lengths: Tensor, fertility: Tensor | None) -> Tensor:
        """The fertilities of the words, [B, S]; 1 at padding."""
        kind, like = self.options.fertility, self.attend_out.weight
        if kind == "constant":
            found = like.new_full(src_tokens.shape, self.options.constant)
        elif kind == "guided":
            found = self.of_type[src_tokens]
        elif kind == "predicted":
            with torch.no_grad():
                if self.options.forward_links:
                    found = self.tagger.expected(src_tokens, src_lengths)
                else:
                    found = self.tagger(src_tokens, src_lengths).argmax(-1)
        elif fertility is None:
            raise ValueError(
                "model.fertility=actual needs the fertilities of a pair, which a source alone does not have; train with guided or predicted"
            )
        else:
            found = fertility
        return found.to(like.dtype).masked_fill(src_tokens.eq(PAD), 1.0)

    def start(self, memory: Tensors) -> Tensors:
        state = super().start(memory)
        if self.options.coverage:
            state["received"] = torch.zeros_like(memory["mask"], dtype=memory["states"].dtype)
        return state

    def step(self, tokens: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        logits, weights, state = super().step(tokens, memory, state)
        return logits, self._of_words(weights), state

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits, weights = super().forward(src_tokens, src_lengths, prev_output_tokens, **inputs)
        return logits, self._of_words(weights)

    def _of_words(self, weights: Tensor) -> Tensor:
        return weights[..., :-1] if self.options.sink else weights

    def _attend(self, queries: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensors]:
        if not self.options.coverage:
            return super()._attend(queries, memory, state)
        received, own, steps = state["received"], {}, []
        for query in queries.split(1, dim=1):
            keys = torch.tanh(memory["keys"] + self.cover(received.unsqueeze(2)))
            p, own = super()._attend(query, {**memory, "keys": keys, "scores": None}, {**state, **own})
            steps.append(p)
            received = received + p.squeeze(1)
        return torch.cat(steps, 1), {**own, "received": received}


def problems(config: Mapping[str, Any]) -> list[str]:
    """Reject fertilities from a tagger or an aligner if the mapping does not use fertilities."""
    import sparse_attention as sa

    node = nodes_at(config["mapping"], PLACES)["cross"]
    kind = config["model"]["fertility"]
    if kind != "constant" and "fertility" not in sa.spec(node["name"]).inputs:
        return [
            f"model.fertility={kind} is not read by mapping={node['name']}; use mapping=fertility_softmax or fertility_sparsemax, "
            "or leave model.fertility=constant"
        ]
    return []
