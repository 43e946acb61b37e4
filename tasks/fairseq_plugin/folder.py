"""fairseq tasks over a folder of encoded data, fairseq's DATA; opened by path, in whatever process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq.tasks import FairseqTask

SPLITS = {"valid": "dev"}  # fairseq's name and ours


class FolderTask(FairseqTask):
    """A task whose `cfg.data` is a folder that `open` reads; `dataset_of` makes fairseq's data set of one of its splits."""

    open: Callable[[str], Any]

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.encoded = type(self).open(cfg.data)

    @classmethod
    def setup_task(cls, cfg: Any, **_) -> Any:
        return cls(cfg)

    def dataset_of(self, part: Any, training: bool) -> Any:
        raise NotImplementedError

    def load_dataset(self, split: str, **_) -> None:
        if split not in self.datasets:
            self.datasets[split] = self.dataset_of(self.encoded.splits[SPLITS.get(split, split)], split == "train")

    def max_positions(self) -> Any:
        return None

    @property
    def source_dictionary(self) -> Any:
        return None

    @property
    def target_dictionary(self) -> Any:
        return None
