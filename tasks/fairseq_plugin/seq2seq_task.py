"""Parallel text that we encoded ourselves, as a fairseq task: no preprocessing step by hand.

The vocabulary lists of the encoded corpus hold no special symbols; fairseq's Dictionary puts its four in front.
Sources carry no end-of-sentence symbol and are padded on the right (OpenNMT-py's convention).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task

from tasks.fairseq_plugin import offered
from tasks.fairseq_plugin.offered import SPLITS, OfferedTask
from tasks.seq2seq.encode import Encoded, Ragged


def offer(encoded: Encoded) -> str:
    """Make an encoded corpus available to the task in this process; returns the name to put into its configuration."""
    return offered.offer(str(encoded.folder), encoded)


class Rows:
    """Rows of vocabulary numbers as tensors of dictionary numbers, made on demand from the memory-mapped array.

    An empty source becomes one unknown word: every source must have something to attend to.
    """

    def __init__(self, rows: Ragged, symbols: Dictionary, eos: bool) -> None:
        self.rows, self.symbols, self.eos = rows, symbols, eos
        self.sizes = np.maximum(rows.lengths, 0 if eos else 1) + int(eos)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> torch.Tensor:
        """[size] int64"""
        ids = self.rows[i].astype(np.int64)
        ids = np.where(ids < 0, self.symbols.unk(), ids + self.symbols.nspecial)
        if self.eos:
            ids = np.append(ids, self.symbols.eos())
        elif not len(ids):
            ids = np.array([self.symbols.unk()])
        return torch.from_numpy(ids)


@dataclass
class EncodedPairsConfig(FairseqDataclass):
    encoded: str = field(default="", metadata={"help": "name given by `offer` to an encoded corpus"})


def dictionary(words: list[str]) -> Dictionary:
    """fairseq's Dictionary over `words`, special symbols first (<s> <pad> </s> <unk>)."""
    symbols = Dictionary()
    for word in words:
        symbols.add_symbol(word, overwrite=True)  # a text's own "<unk>" is a word like others and keeps its place
    return symbols


@register_task("sa_encoded_pairs", dataclass=EncodedPairsConfig)
class EncodedPairsTask(OfferedTask):
    def __init__(self, cfg: EncodedPairsConfig, encoded: Encoded) -> None:
        super().__init__(cfg, encoded)
        self._source, self._target = dictionary(encoded.source_vocab), dictionary(encoded.target_vocab)

    def load_dataset(self, split: str, **_) -> None:
        if split in self.datasets:
            return
        part = self.encoded.splits[SPLITS.get(split, split)]
        source, target = Rows(part.source, self._source, eos=False), Rows(part.target, self._target, eos=True)
        self.datasets[split] = LanguagePairDataset(
            source, source.sizes, self._source, target, target.sizes, self._target,
            left_pad_source=False, left_pad_target=False, shuffle=split == "train",
        )  # fmt: skip

    def max_positions(self) -> tuple[int, int]:
        return (1024, 1024)

    @property
    def source_dictionary(self) -> Dictionary:
        return self._source

    @property
    def target_dictionary(self) -> Dictionary:
        return self._target
