"""Read inputs, one per line, and write predictions as text and attention weights as arrays.

The form of a line depends on what the model reads:

=============== ==========================================================================
one text        the text
two texts       both texts, separated by a tab
images          IMAGE, a tab, the question
features        numbers separated by white space or commas
=============== ==========================================================================
"""

import inspect
import io
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.files import usable, write_atomic
from tasks.data import DataError
from tasks.data.read.formats import STANDARD_INPUT, lines_of
from tasks.draw import terminal
from tasks.use.model import Loaded, Prediction


def answer(
    model: Loaded, nbest: int, options: Mapping[str, str], heat: bool, attention: Path | None, drawings: Path | None
) -> None:
    """Read inputs from standard input and print the predictions; see the help of `scripts/predict.py`.

    Args:
        options: further arguments of the family's `predict`, such as `images` or `digits`.
        heat: also draw the attention in the terminal.
        attention: file for all attention weights.
        drawings: folder for one SVG per input.

    Raises:
        ValueError: the model does not take one of the options, or has no attention to write.
        DataError: an input cannot be read.
    """
    if nbest < 1:
        raise ValueError(f"--nbest {nbest} must be at least 1")
    known = inspect.signature(model.family.predict).parameters if model.family.WAYS else ()
    if wrong := [o for o in options if o not in known]:
        raise ValueError(f"--{wrong[0]} does not apply to a model of {model.config['task']['name']}; leave it out")
    with usable(model.folder, (DataError, ValueError, OSError)):  # these errors concern the input, not the cell
        found = model.predict(parsed(sys.stdin.buffer.read(), model), nbest=nbest, **options)
    for line in printed(found, nbest):
        print(line)
    for number, one in enumerate(found, 1):
        if heat:
            print(f"\n{number}\n{terminal.terminal(one, shutil.get_terminal_size().columns)}")
        if one.unknown:
            print(f"line {number}: unknown words: {', '.join(dict.fromkeys(one.unknown))}", file=sys.stderr)
        if drawings:
            write_atomic(drawings / f"{number:0{len(str(len(found)))}d}.svg", terminal.svg(one).encode())
    if attention:
        write_attention(attention, found)


def parsed(raw: bytes, model: Loaded) -> list[Any]:
    """Parse UTF-8 lines into inputs for `Loaded.predict`.

    Raises DataError, naming the line, if one is invalid; ValueError if the family's inputs are no texts and it lacks `line`.
    """
    line, kind = getattr(model.family, "line", None), model.family.options.KIND
    if line is None and kind not in ("texts", "pairs"):
        told = f"{model.family.__name__} reads {kind}, but lacks `line`, which makes one of a line of text"
        raise ValueError(f'{told}; see the row "a family of tasks" of docs/extending.md')
    found = []
    for number, text in lines_of(io.BytesIO(raw), STANDARD_INPUT):
        if not text.strip():
            print(f"line {number} is empty, so its output has no meaning", file=sys.stderr)
        found.append(line(text, number, model.encoding) if line else text)
    return found


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
