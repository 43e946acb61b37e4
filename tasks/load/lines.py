"""Read inputs, one per line, and write predictions as text and attention weights as arrays.

The form of a line depends on what the model reads:

=============== ==========================================================================
one text        the text
two texts       both texts, separated by a tab
images          IMAGE, a tab, the question
features        numbers separated by white space or commas, or INDEX:VALUE pairs (INDEX from 1)
=============== ==========================================================================
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repro.files import usable, write_atomic
from tasks.classification.encode import EMPTY
from tasks.data import DataError
from tasks.data.cache import read_meta
from tasks.load import drawing
from tasks.load.model import Loaded, Prediction


def answer(
    model: Loaded, nbest: int, options: Mapping[str, str], heat: bool, attention: Path | None, drawings: Path | None
) -> None:  # fmt: skip
    """Read inputs from standard input and print the predictions; see the help of `scripts/predict.py`.

    Args:
        options: `images` for `Loaded.answer` or `digits` for `Loaded.translate`.
        heat: also draw the attention in the terminal.
        attention: file for all attention weights.
        drawings: folder for one SVG per input.

    Raises:
        ValueError: the model does not take one of the options, or has no attention to write.
        DataError: an input cannot be read.
    """
    if nbest < 1:
        raise ValueError(f"--nbest {nbest} must be at least 1")
    if wrong := [o for o in options if o != {"seq2seq": "digits", "vqa": "images"}.get(model.name)]:
        raise ValueError(f"--{wrong[0]} does not apply to a model of {model.config['task']['name']}; leave it out")
    with usable(model.folder, (DataError, ValueError, OSError)):  # these errors concern the input, not the cell
        found = model.predict(parsed(sys.stdin.buffer.read(), model), nbest=nbest, **options)
    for line in printed(found, nbest):
        print(line)
    for number, one in enumerate(found, 1):
        if heat:
            print(f"\n{number}\n{drawing.terminal(one, shutil.get_terminal_size().columns)}")
        if unknown := [word for word in dict.fromkeys(one.unknown) if word != EMPTY]:
            print(f"line {number}: unknown words: {', '.join(unknown)}", file=sys.stderr)
        if drawings:
            write_atomic(drawings / f"{number:0{len(str(len(found)))}d}.svg", drawing.svg(one).encode())
    if attention:
        write_attention(attention, found)


def parsed(raw: bytes, model: Loaded, where: str = "standard input") -> list[Any]:
    """Parse UTF-8 lines into inputs for `Loaded.predict`. Raises DataError, naming the line, if one is invalid."""
    if model.name == "multilabel":
        return inputs(raw, features=model.encoding.features, where=where)
    names = {"seq2seq": [""], "fertility": [""], "vqa": ["image", "question"]}.get(model.name)
    return inputs(raw, names or read_meta(model.encoding.folder)["fields"], where=where)


def inputs(
    raw: bytes, names: Sequence[str] = ("",), features: int | None = None, where: str = "standard input"
) -> list[Any]:
    """Parse UTF-8 lines: texts; tuples of texts if there are several `names`; vectors if `features` is their size.

    Raises DataError, naming the line, if one is invalid.
    """
    found: list[Any] = []
    for number, line in enumerate(raw.removesuffix(b"\n").split(b"\n") if raw else (), 1):
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            what, step = f"line {number} is not UTF-8 ({error.reason})", "convert it to UTF-8"
            raise DataError(what, where, step, line=number) from None
        if features is not None:
            found.append(_vector(text, number, features, where))
            continue
        if not text.strip():
            print(f"line {number} is empty: its output answers no input", file=sys.stderr)
        parts = text.split("\t")
        if len(names) > 1 and len(parts) != len(names):
            raise DataError(
                f"line {number} has {len(parts)} field(s): {text[:60]!r}", f"{where}; expected {' TAB '.join(names)}",
                "put one tab between them", value=len(parts), line=number,
            )  # fmt: skip
        found.append(text if len(names) == 1 else tuple(parts))
    return found


def _vector(text: str, number: int, size: int, where: str) -> np.ndarray:
    words = re.split(r"[\s,]+", text.strip())
    vector = np.zeros(size)
    try:
        if any(":" in word for word in words):
            places, values = zip(*(word.split(":") for word in words))
            at = np.array(places, dtype=int) - 1
            if at.min() < 0 or at.max() >= size:
                raise ValueError(f"indices are 1 to {size}")
            vector[at] = np.array(values, dtype=float)
        else:
            if len(words) != size:
                raise ValueError(f"{len(words)} numbers")
            vector[:] = np.array(words, dtype=float)
        if not np.isfinite(vector).all():
            raise ValueError("not all finite")
    except ValueError as error:
        raise DataError(
            f"line {number} cannot be read ({error}): {text[:60]!r}", f"{where}; expected {size} numbers, or INDEX:VALUE pairs",
            "correct the line", value=text, line=number,
        ) from None  # fmt: skip
    return vector


def printed(predictions: Sequence[Prediction], nbest: int) -> Iterator[str]:
    """One line per output. If `nbest` > 1: number of the input (from 1), score and output, separated by tabs."""
    for number, one in enumerate(predictions, 1):
        if nbest == 1:
            yield one.output
        else:
            yield from (f"{number}\t{score:.4f}\t{output}" for output, score in one.nbest)


def write_attention(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write a safetensors file with one array [T, S] float32 per input, named "0", "1", ...

    The metadata entry `tokens` is a JSON list with the source and output tokens of each input.

    Raises:
        ValueError: the model has no attention.
        StoreError: the file cannot be written.
    """
    from safetensors.torch import save

    if any(one.attention is None for one in predictions):
        raise ValueError("this model has no attention to write")
    arrays = {str(i): one.attention.contiguous() for i, one in enumerate(predictions) if one.attention is not None}
    tokens = [{"source": list(one.source_tokens), "output": list(one.output_tokens)} for one in predictions]
    write_atomic(path, save(arrays, {"tokens": json.dumps(tokens, ensure_ascii=False)}))
