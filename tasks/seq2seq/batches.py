"""Batches of encoded pairs for training, and of sources with their fertilities for the tagger."""

from typing import Any

import numpy as np
import torch

from tasks.data.examples import Examples, padded
from tasks.data.symbols import EOS
from tasks.layers.lstm import MOST
from tasks.seq2seq.fertility import actual, stored


class Pairs(Examples):
    """The pairs of a split; makes fairseq's batches directly from the encoded rows."""

    def measured(self) -> tuple[np.ndarray, np.ndarray]:
        counted = stored(self.split)
        self.fertility = None if counted is None else actual(counted)
        return self.split.source.lengths, self.split.target.lengths + 1  # including the end of sentence

    def size(self, index: int) -> tuple[int, int]:
        return int(self.lengths[0][index]), int(self.lengths[1][index])

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """As in fairseq's own batches, longest source first; for aligned pairs, net_input also has fertility [B, S]."""
        _, order = torch.tensor(self.lengths[0][samples]).long().sort(descending=True)
        rows = [samples[i] for i in order.tolist()]
        source, lengths = padded([self.split.source[i] for i in rows])
        targets = [self.split.target[i] for i in rows]
        before, _ = padded([np.concatenate(([EOS], row)) for row in targets])
        target, sizes = padded([np.concatenate((row, [EOS])) for row in targets])
        inputs = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": before}
        if self.fertility is not None:
            inputs["fertility"] = padded([self.fertility[i] for i in rows])[0]
        return {"id": torch.tensor(rows), "net_input": inputs, "target": target, "ntokens": int(sizes.sum())}


class Sources(Examples):
    """The sources of a split and their fertilities."""

    def measured(self) -> tuple[np.ndarray]:
        self.fertility = stored(self.split)
        return (self.split.source.lengths,)

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """net_input: src_tokens [B, S] and src_lengths [B]; target: [B, S], clipped at MOST."""
        tokens, lengths = padded([self.split.source[i] for i in samples])
        target = padded([self.fertility[i] for i in samples])[0].clamp(max=MOST)
        inputs = {"src_tokens": tokens, "src_lengths": lengths}
        return {"net_input": inputs, "target": target, "ntokens": int(lengths.sum())}
