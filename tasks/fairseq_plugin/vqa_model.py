"""MCAN (`tasks.vqa.mcan`) as a fairseq model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor

import sparse_attention as sa
from tasks.vqa.mcan import Mcan, McanOptions, Reduced


@dataclass
class McanConfig(FairseqDataclass):
    mapping: str = field(default="softmax", metadata={"help": "registered mapping of the discrete image weights"})
    mapping_params: str = field(default="{}", metadata={"help": "its parameters, JSON"})
    options: str = field(default="{}", metadata={"help": "fields of tasks.vqa.mcan.McanOptions, JSON"})


def options_of(text: str) -> McanOptions:
    """Options from JSON. Raises ValueError naming unknown fields and the known ones."""
    given, known = json.loads(text), [f.name for f in fields(McanOptions)]
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"model.{', model.'.join(unknown)} is unknown to MCAN; allowed: {', '.join(known)}")
    return McanOptions(**given)


@register_model("sa_mcan", dataclass=McanConfig)
class McanModel(BaseFairseqModel):
    def __init__(self, net: Mcan) -> None:
        super().__init__()
        self.net = net

    @classmethod
    def build_model(cls, cfg: McanConfig, task) -> McanModel:
        encoded = task.encoded
        vectors = None if encoded.vectors is None else torch.from_numpy(encoded.vectors)
        mapping = sa.make(cfg.mapping, **json.loads(cfg.mapping_params))
        return cls(
            Mcan(
                options_of(cfg.options), task.image_spec, len(encoded.words), len(encoded.answers), mapping, 0, vectors
            )
        )

    def forward(self, tokens: Tensor, images: Tensor, image_of: Tensor, **_) -> tuple[Tensor, Reduced]:
        """See `Mcan.forward`."""
        return self.net(tokens, images, image_of)

    def max_positions(self) -> None:
        return None
