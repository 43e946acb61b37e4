"""What the programs for all families share: open the model beside a program, and answer standard input."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch
from torch import nn

import sparse_attention as sa
from tasks.cells._training import set_tf32
from tasks.data.errors import DataError
from tasks.load.lines import inputs


def opened(folder: Path, *given: Any) -> tuple[nn.Module, dict[str, Any]]:
    """The model of an exported folder, on a GPU if there is one, and the content of its model.json.

    Args:
        given: what models of the family are built from besides options and mappings.
    """
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    set_tf32(about)
    for plugin in about["plugins"]:
        runpy.run_path(str(folder / plugin))
    mappings = {place: sa.make(**node) for place, node in about["mappings"].items()}
    architecture = importlib.import_module(about["architecture"])
    model = architecture.Model(SimpleNamespace(**about["options"]), *given, mappings)
    safetensors.torch.load_model(model, str(folder / "weights.safetensors"))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), about


def answer(
    predict: Callable[[list[Any]], list[tuple[str, float]]], names: Sequence[str] = ("",), features: int | None = None
) -> None:
    """Print the prediction for each line of standard input; `names` and `features` are those of `inputs`."""
    try:
        found = predict(inputs(sys.stdin.buffer.read(), names, features))
    except (DataError, ValueError) as error:
        sys.exit(str(error))
    for output, _ in found:
        print(output)
