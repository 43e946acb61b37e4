"""fairseq tasks over data that this process encoded. Their configurations hold strings only, so the data are offered by name."""

from __future__ import annotations

from typing import Any

from fairseq.tasks import FairseqTask

SPLITS = {"train": "train", "valid": "dev", "test": "test"}  # fairseq's names and ours
_OPENED: dict[str, Any] = {}


def offer(name: str, encoded: Any) -> str:
    """Make encoded data available to the tasks of this process; returns the name to put into their configuration."""
    _OPENED[name] = encoded
    return name


class OfferedTask(FairseqTask):
    """A task whose `cfg.encoded` names offered data. Raises ValueError when nothing was offered under that name."""

    def __init__(self, cfg: Any, encoded: Any) -> None:
        super().__init__(cfg)
        self.encoded = encoded

    @classmethod
    def setup_task(cls, cfg: Any, **_) -> Any:
        if cfg.encoded not in _OPENED:
            raise ValueError(f"data {cfg.encoded!r} were not offered in this process; call offer(encoded) first")
        return cls(cfg, _OPENED[cfg.encoded])

    def max_positions(self) -> Any:
        return None

    @property
    def source_dictionary(self) -> Any:
        return None

    @property
    def target_dictionary(self) -> Any:
        return None
