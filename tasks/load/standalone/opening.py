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

import numpy as np
import safetensors.torch
import torch
from torch import nn

import sparse_attention as sa
from tasks.cells._training import set_tf32
from tasks.data.errors import DataError
from tasks.data.images import Blank, ImageError, decode
from tasks.data.ragged import Ragged
from tasks.data.symbols import UNK
from tasks.load.lines import inputs
from tasks.seq2seq.vocabulary import read_dictionary

FOLDER = Path(__file__).resolve().parents[3]  # this file is copied to FOLDER/model/load/standalone


def stored(name: str) -> Any:
    """A file of encoding/: JSON, the words of a dictionary, or an array (None if there is none)."""
    path = FOLDER / "encoding" / name
    if path.suffix == ".npy":
        return np.load(path) if path.exists() else None
    return read_dictionary(path) if path.suffix == ".txt" else json.loads(path.read_text(encoding="utf-8"))


def opened(*given: Any) -> tuple[nn.Module, dict[str, Any]]:
    """The model of the folder, on a GPU if there is one, and the content of its model.json.

    Args:
        given: what models of the family are built from besides options and mappings.
    """
    about = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
    set_tf32(about)
    for plugin in about["plugins"]:
        runpy.run_path(str(FOLDER / plugin))
    mappings = {place: sa.make(**node) for place, node in about["mappings"].items()}
    architecture = importlib.import_module(about["architecture"])
    model = architecture.Model(SimpleNamespace(**about["options"]), *given, mappings)
    safetensors.torch.load_model(model, str(FOLDER / "weights.safetensors"))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), about


def numbered(rows: Sequence[Sequence[str]], ids: dict[str, int]) -> Ragged:
    """The ids of rows of tokens; a token without one has `UNK`."""
    return Ragged(np.array([ids.get(t, UNK) for row in rows for t in row], np.int64), np.cumsum([0, *map(len, rows)]))


def pictures(files: Sequence[str], kind: str, grid: tuple[int, int]) -> tuple[Any, np.ndarray]:
    """Images as a model reads them, by row, and the row of each file [N]. Raises ValueError, naming a file it cannot read."""
    row = {file: i for i, file in enumerate(dict.fromkeys(files))}
    found = np.array([row[file] for file in files])
    if kind != "pixels":
        return Blank(list(row)), found
    pixels = []
    for file in row:
        try:
            pixels.append(decode(Path(file).read_bytes(), grid))
        except (OSError, ImageError) as error:
            raise ValueError(f"image {file!r} cannot be read: {error}") from error
    return SimpleNamespace(rows=np.array(pixels).__getitem__), found


def answer(
    predict: Callable[[list[Any]], list[tuple[str, float]]], names: Sequence[str] = ("",), features: int | None = None
) -> None:
    """Print the prediction for each line of standard input; `names` and `features` are those of `inputs`."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        return print(sys.modules["__main__"].__doc__)
    if sys.argv[1:]:
        sys.exit(f"{sys.argv[1]!r} is not used: the inputs are lines of standard input; --help explains them")
    try:
        found = predict(inputs(sys.stdin.buffer.read(), names, features))
    except (DataError, ValueError) as error:
        sys.exit(str(error))
    for output, _ in found:
        print(output)
