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
from fairseq.tasks import FairseqTask, register_task

from tasks.seq2seq.encode import Encoded, load_encoded

SPLITS = {"train": "train", "valid": "dev", "test": "test"}


@dataclass
class EncodedPairsConfig(FairseqDataclass):
    encoded: str = field(default="", metadata={"help": "folder of an encoded corpus (tasks.seq2seq.encode)"})


def dictionary(words: list[str]) -> Dictionary:
    """fairseq's Dictionary over `words`, special symbols first (<s> <pad> </s> <unk>)."""
    symbols = Dictionary()
    for word in words:
        symbols.add_symbol(word)
    return symbols


@register_task("sa_encoded_pairs", dataclass=EncodedPairsConfig)
class EncodedPairsTask(FairseqTask):
    def __init__(self, cfg: EncodedPairsConfig, encoded: Encoded) -> None:
        super().__init__(cfg)
        self.encoded = encoded
        self._source, self._target = dictionary(encoded.source_vocab), dictionary(encoded.target_vocab)

    @classmethod
    def setup_task(cls, cfg: EncodedPairsConfig, **_) -> EncodedPairsTask:
        return cls(cfg, load_encoded(cfg.encoded))

    def load_dataset(self, split: str, **_) -> None:
        if split in self.datasets:
            return
        part = self.encoded.splits[SPLITS.get(split, split)]
        source = [self._ids(row, self._source, eos=False) for row in part.source]
        target = [self._ids(row, self._target, eos=True) for row in part.target]
        self.datasets[split] = LanguagePairDataset(
            source, [len(s) for s in source], self._source, target, [len(t) for t in target], self._target,
            left_pad_source=False, left_pad_target=False, shuffle=split == "train",
        )  # fmt: skip

    @staticmethod
    def _ids(row: np.ndarray, symbols: Dictionary, eos: bool) -> torch.Tensor:
        ids = torch.from_numpy(row.astype(np.int64))
        ids = torch.where(ids < 0, symbols.unk(), ids + symbols.nspecial)
        return torch.cat((ids, ids.new_tensor([symbols.eos()]))) if eos else ids

    def max_positions(self) -> tuple[int, int]:
        return (1024, 1024)

    @property
    def source_dictionary(self) -> Dictionary:
        return self._source

    @property
    def target_dictionary(self) -> Dictionary:
        return self._target
