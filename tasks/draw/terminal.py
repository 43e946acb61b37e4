"""Draw the attention of one prediction as a heat map, in the terminal or as an SVG file. Columns: source; rows: output.

An exact zero is a dot in the terminal and grey in the SVG; every nonzero weight, however small, is shaded.
"""

import unicodedata
from typing import Any

from repro.report import draw

SHADES = "░▒▓█"
_LEAST = (f"{shade} {'from' if i else 'above'} {i / len(SHADES):g}" for i, shade in enumerate(SHADES))
LEGEND = "  ".join(["· exactly no weight", *_LEAST])
LOOK = "What to see: a mapping with zeros leaves most words of a line out; softmax gives every word some weight."
LABEL = 14  # maximum letters shown of an output token
HEAD = 12  # maximum letters shown of a source token


def terminal(prediction: Any, width: int = 80) -> str:
    """The heat map as lines of text, at most `width` columns wide; a long source continues in another block below.

    Args:
        prediction: as `tasks.use.model.Prediction`, with attention [T, S], S source_tokens and T output_tokens.

    Raises ValueError if the model has no attention.
    """
    rows = _rows(prediction)
    source = [_cut(token, HEAD) for token in prediction.source_tokens]
    most = max(1, (width - LABEL - 1) // 2)
    blocks = []
    for start in range(0, len(source), most):
        heads = source[start : start + most]
        height = max(map(len, heads))
        lines = [" " * (LABEL + 1) + "".join(f"{h.rjust(height)[k]} " for h in heads).rstrip() for k in range(height)]
        for name, row in zip(prediction.output_tokens, rows):
            marks = "".join(2 * _shade(weight) if weight else "· " for weight in row[start : start + most])
            label = _cut(name, LABEL)
            columns = sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in label)  # wide characters take two
            lines.append(f"{' ' * max(0, LABEL - columns)}{label} {marks.rstrip()}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _shade(weight: float) -> str:
    return SHADES[min(len(SHADES) - 1, int(weight * len(SHADES)))] if weight == weight else "!"


def svg(prediction: Any) -> str:
    """The heat map as a standalone SVG. Raises ValueError if the model has no attention."""
    with draw.heat_figure(_rows(prediction), prediction.output_tokens, prediction.source_tokens) as figure:
        return draw.svg(figure, "attention")


def _rows(prediction: Any) -> list[list[float]]:
    if prediction.attention is None:
        raise ValueError("this model has no attention to draw")
    return prediction.attention.tolist()


def _cut(token: str, most: int) -> str:
    return token if len(token) <= most else token[: most - 1] + "…"
