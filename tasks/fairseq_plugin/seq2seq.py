"""Encoder-decoders through fairseq's interfaces: models, a task on our encoded pairs, and the criterion.

The models also work with fairseq's own `translation` task. Its dictionaries have the special symbols at the same ids.
It pads sources on the left; they are shifted to be padded on the right before encoding, and their attention is shifted
back to the left afterwards.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary, FairseqDataset
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from fairseq.tasks import register_task
from omegaconf import II
from torch import Tensor, nn

import sparse_attention as sa
from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import config_class, entry, register
from tasks.fairseq_plugin.bases import FOLDER, FolderTask, SummedCriterion
from tasks.layers.lstm import widened
from tasks.seq2seq import batches
from tasks.seq2seq.encode import open_encoded
from tasks.seq2seq.metrics import dev_scores
from tasks.seq2seq.search import log_probabilities, output_alpha


def padded_right(tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """tokens [B, S], padded on either side -> tokens padded on the right, and the columns [B, S] for `columns_back`.
    The columns are None if the tokens were already padded on the right.
    """
    left = tokens.ne(PAD).long().cumsum(1).eq(0).sum(1, keepdim=True)  # [B, 1]
    if not left.any():
        return tokens, None
    at = torch.arange(tokens.size(1), device=tokens.device)
    moved = tokens.gather(1, (at + left).remainder(tokens.size(1)))
    return moved, (at - left).remainder(tokens.size(1))


def columns_back(attention: Tensor, columns: Tensor | None) -> Tensor:
    """attention [B, T, S] over the right-padded source -> attention over the source in its original padding."""
    return attention if columns is None else attention.gather(2, columns.unsqueeze(1).expand_as(attention))


class Encoder(FairseqEncoder):
    def __init__(self, net: nn.Module, dictionary: Dictionary) -> None:
        super().__init__(dictionary)
        self.held = (net,)  # in a tuple, so that the parameters belong only to the model

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, **_) -> dict[str, Tensor]:
        tokens, columns = padded_right(src_tokens)
        memory = self.held[0].encode(tokens, src_lengths)
        return memory if columns is None else memory | {"columns": columns}

    def reorder_encoder_out(self, encoder_out: dict[str, Tensor], new_order: Tensor) -> dict[str, Tensor]:
        return {k: v.index_select(0, new_order) for k, v in encoder_out.items()}


class Decoder(FairseqIncrementalDecoder):
    """Adapts the model's `start` and `step`; the state is a dict of batch-first tensors, which beam search reorders."""

    def __init__(self, net: nn.Module, dictionary: Dictionary) -> None:
        super().__init__(dictionary)
        self.held = (net,)

    def forward(self, prev_output_tokens: Tensor, encoder_out=None, incremental_state=None, **_):
        """prev_output_tokens [B, T] -> logits [B, T, V], {"attn": [weights [B, T, S]]}.

        With `incremental_state`, only the last token is decoded (T = 1 in the results).
        """
        net, memory = self.held[0], dict(encoder_out)
        columns = memory.pop("columns", None)
        state = None if incremental_state is None else self.get_incremental_state(incremental_state, "state")
        if state is None:
            state = net.start(memory)
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
        steps = []
        for tokens in prev_output_tokens.unbind(1):
            logits, attention, state = net.step(tokens, memory, state)
            steps.append((logits, attention))
        if incremental_state is not None:
            self.set_incremental_state(incremental_state, "state", state)
        logits, attention = (torch.stack(parts, 1) for parts in zip(*steps))
        return logits, {"attn": [columns_back(attention, columns)]}

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        found = log_probabilities(self.held[0], net_output[0])
        return found.clamp(min=-1e4) if log_probs else found.exp()  # fairseq's search fails if nothing is finite

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        state = self.get_incremental_state(incremental_state, "state")
        if state is not None:
            state = {k: v.index_select(0, new_order) for k, v in state.items()}
            self.set_incremental_state(incremental_state, "state", state)


class PairsModel(FairseqEncoderDecoderModel):
    net_of: Callable[..., Any]  # see `DataModel`

    def __init__(self, net: nn.Module, source: Dictionary, target: Dictionary) -> None:
        super().__init__(Encoder(net, source), Decoder(net, target))
        self.net, self.padded_right = net, False

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Self:
        source, target = task.source_dictionary, task.target_dictionary
        if getattr(cfg, "share_embeddings", False) and source != target:
            told = "share_embeddings needs one vocabulary for both sides"
            raise ValueError(f"{told}: encode.joint=true, or --joined-dictionary")
        made = cls(cls.net_of(cfg, len(source), len(target)), source, target)
        if hasattr(made.net, "adopt"):
            made.net.adopt(task.encoded.folder if isinstance(task, PairsTask) else None)
        # then `forward` does not check for left padding, which would synchronise with the GPU
        made.padded_right = isinstance(task, PairsTask)
        return made

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, fertility=None, **_):
        tokens, columns = (src_tokens, None) if self.padded_right else padded_right(src_tokens)
        inputs = {} if fertility is None else {"fertility": fertility}
        logits, attention = self.net(tokens, src_lengths, prev_output_tokens, **inputs)
        return logits, {"attn": [columns_back(attention, columns)]}


register("seq2seq", PairsModel)


class Pairs(batches.Pairs, FairseqDataset):
    """Pairs as fairseq's data set."""


def dictionary(words: list[str]) -> Dictionary:
    """fairseq's Dictionary of `words`, with the special symbols first."""
    symbols = Dictionary()
    for word in words:
        symbols.add_symbol(word)
    return symbols


@register_task("sa_pairs", dataclass=FOLDER)
class PairsTask(FolderTask):
    """Pairs in our own encoding: sources without end of sentence, padded on the right (OpenNMT-py's convention)."""

    open, examples, dev_scores = staticmethod(open_encoded), Pairs, staticmethod(dev_scores)

    def __init__(self, cfg: Any, **_) -> None:
        super().__init__(cfg)
        self.source_dictionary = dictionary(self.encoded.source_vocab)
        self.target_dictionary = dictionary(self.encoded.target_vocab)


TOKENS = config_class(
    "sa_tokens",
    entry("smoothing", float, 0.0, "label smoothing: mass of the uniform distribution"),
    entry("sentence_avg", bool, II("optimization.sentence_avg")),
)


@register_criterion("sa_tokens", dataclass=TOKENS)
class Tokens(SummedCriterion):
    """Token cross-entropy that also reports token accuracy and the sparsity of the attention.

    Normalised by tokens, or by sentences as in OpenNMT-py (`optimization.sentence_avg=true`: summed NLL / batch size).
    """

    SUMMED = (*SummedCriterion.SUMMED, "zeros", "kept", "steps")
    UNIT = "ntokens"
    BITS = PERPLEXITY = True

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(task)
        self.sentence_avg, self.smoothing = cfg.sentence_avg, cfg.smoothing

    def size(self, sample: dict[str, Any]) -> int:
        return sample["nsentences" if self.sentence_avg else "ntokens"]

    def loss(self, net: nn.Module, logits: Tensor, gold: Tensor, **how: Any) -> Tensor:
        if output_alpha(net) != 1:
            raise ValueError(f"output={net.options.output} has a loss of its own: use --criterion sa_sparse_tokens")
        return F.cross_entropy(logits, gold, **how)

    def summed(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        logits, extra = model(**sample["net_input"])
        target = sample["target"]  # [B, T]
        half, gold = logits.dtype in (torch.float16, torch.bfloat16), target.flatten()
        logits = widened(logits.flatten(0, 1))
        loss = self.loss(model.net, logits, gold, ignore_index=PAD, reduction="sum", label_smoothing=self.smoothing)
        if model.training and (weight := getattr(model.net, "coverage_loss", 0.0)):
            p = extra["attn"][0] * target.ne(PAD).unsqueeze(-1)  # [B, T, S]
            loss = loss + weight * torch.minimum(p, p.cumsum(1) - p).sum()
        with torch.no_grad():
            # argmax takes six times as long as the maximum and is needed only if words tie
            said = logits.gather(1, gold.unsqueeze(1)).squeeze(1)
            right = logits.argmax(-1).eq(gold) if half else said.eq(logits.amax(-1))
            attention, steps = extra["attn"][0], target.ne(PAD)
            keep = sample["net_input"]["src_tokens"].ne(PAD).unsqueeze(1) & steps.unsqueeze(-1)
            log = {"ncorrect": (right & steps.flatten()).sum(), "zeros": (attention.eq(0) & keep).sum()}
            log |= {"kept": keep.sum(), "steps": sample["ntokens"]}
        return loss, log


@register_criterion("sa_sparse_tokens", dataclass=TOKENS)
class SparseTokens(Tokens):
    """The loss of a sparse output layer, in nats per token, not of a likelihood: the right word can have probability 0."""

    BITS = PERPLEXITY = False

    def loss(self, net: nn.Module, logits: Tensor, gold: Tensor, **how: Any) -> Tensor:
        return sa.losses.entmax_loss(logits, gold, alpha=output_alpha(net), **how)


def groups(config: Any) -> dict[str, Any]:
    """fairseq's configuration groups `task`, without its folder, and `criterion`, made from our configuration."""
    optim = config["optim"]
    averaged = {"smoothing": optim["label_smoothing"], "sentence_avg": optim["normalize"] == "sentences"}
    criterion = "sa_sparse_tokens" if config["model"].get("output") else "sa_tokens"
    return {"task": {"_name": "sa_pairs"}, "criterion": {"_name": criterion} | averaged}
