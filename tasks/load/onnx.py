"""Write a classifier as one ONNX file: token ids in, log-probabilities of the classes out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparse_attention as sa
from repro.files import StoreError
from tasks.config import models
from tasks.data.cache import read_meta
from tasks.data.symbols import FIRST, PAD
from tasks.load.model import Loaded

FILE = "model.onnx"
LOOPS = {"snli_attentive": "its GRU is a loop over the words, which ONNX would fix to one length"}


def refused(config: Mapping[str, Any]) -> str | None:
    """Why a model cannot be written as ONNX, as a part of a sentence; None if its kind can."""
    family = str(config["task"]["family"])
    if family != "classification":
        return f"{config['task']['name']} is not a text classifier; only these are written as ONNX"
    if why := LOOPS.get(name := config["model"]["name"]):
        return f"the model {name} cannot be written: {why}"
    architecture = models.architecture(family, name)
    for node in models.nodes_at(config["mapping"], architecture.PLACES).values():
        if sa.spec(node["name"]).over != "row":
            return f"the mapping {node['name']} is not over rows; docs/guides/onnx.md lists those that have a formula in ONNX"
    return None


class _Classifier(nn.Module):
    """ids [B, L] for each field, padded on the right with `PAD` -> log-probabilities [B, C]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *ids: Tensor) -> Tensor:
        lengths = [text.ne(PAD).sum(1) for text in ids]
        return self.model(list(ids), lengths)[0].float().log_softmax(-1)


def write(model: Loaded, folder: Path) -> Path:
    """Write `FILE` for any number of texts of any length. Its inputs have the names of the texts, its output `log_probs`.

    Raises:
        StoreError: torch cannot write the model or its mapping, or the packages onnx and onnxscript are missing.
    """
    names = read_meta(model.encoding.folder)["fields"]
    examples = tuple(torch.full((2, 5 + i), FIRST) for i in range(len(names)))
    for text in examples:
        text[1, -1] = PAD
    free = torch.export.Dim.DYNAMIC
    shapes = (tuple({0: free, 1: free} for _ in names),)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, on its internals
            program = torch.onnx.export(
                _Classifier(model.model.cpu().eval()), examples, dynamo=True, dynamic_shapes=shapes, verbose=False,
                input_names=names, output_names=["log_probs"],
            )  # fmt: skip
            program.save(str(folder / FILE))
    except ModuleNotFoundError as error:
        raise StoreError(f"no {FILE}: the package {error.name} is missing; pip install onnx onnxscript") from error
    except RuntimeError as error:  # torch.onnx.OnnxExporterError and what a mapping's solver raises
        cause = error.__cause__ or error
        raise StoreError(f"no {FILE}: torch cannot write this model; {str(cause).splitlines()[0]}") from error
    return folder / FILE
