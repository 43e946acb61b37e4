"""Draw the attention of one prediction as a heat map, in the terminal or as an SVG file. Columns: source; rows: output.

An exact zero is a dot in the terminal and grey in the SVG; every nonzero weight, however small, is shaded. In the SVG,
neighbours of equal weight in a row form one rectangle without inner borders, so that the groups of a fused mapping are
visible.
"""

from __future__ import annotations

import re
import unicodedata
from html import escape
from typing import TYPE_CHECKING

from repro.report.heat import runs

if TYPE_CHECKING:
    from tasks.load.model import Prediction

SHADES = "░▒▓█"
LEGEND = "· exactly no weight  " + "  ".join(
    f"{shade} {'from' if i else 'above'} {i / len(SHADES):g}" for i, shade in enumerate(SHADES)
)
LABEL = 14  # most letters shown of an output token
HEAD = 12  # most letters shown of a source token
CELL = 18
CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML does not allow


def terminal(prediction: Prediction, width: int = 80) -> str:
    """The heat map as lines of text, at most `width` columns wide; a long source continues in another block below.

    Of the prediction, only the attention and the two sequences of tokens are read.

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
            lines.append(f"{_padded(_cut(name, LABEL))} {marks.rstrip()}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _shade(weight: float) -> str:
    return SHADES[min(len(SHADES) - 1, int(weight * len(SHADES)))] if weight == weight else "!"


def svg(prediction: Prediction) -> str:
    """The heat map as a standalone SVG. Raises ValueError if the model has no attention."""
    rows = _rows(prediction)
    left = 12 + 7 * max((len(_cut(t, LABEL)) for t in prediction.output_tokens), default=0)
    top = 12 + 6 * max((len(_cut(t, HEAD)) for t in prediction.source_tokens), default=0)
    across, down = len(prediction.source_tokens) * CELL, len(rows) * CELL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + across + 48}" height="{top + down + 8}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for i, token in enumerate(prediction.source_tokens):
        place = f"translate({left + i * CELL + CELL * 0.7:.1f} {top - 4}) rotate(-60)"
        parts.append(f'<text transform="{place}">{_text(token, HEAD)}</text>')
    for j, (name, row) in enumerate(zip(prediction.output_tokens, rows)):
        y = top + j * CELL
        parts.append(f'<text x="{left - 6}" y="{y + CELL * 0.7:.1f}" text-anchor="end">{_text(name, LABEL)}</text>')
        for start, end in runs(row):
            shade = f'fill="#08519c" fill-opacity="{0.08 + 0.92 * min(1.0, row[start]):.3f}"'
            colour = shade if row[start] else 'fill="#ddd"'
            words = " ".join(prediction.source_tokens[start:end])
            parts.append(
                f'<rect x="{left + start * CELL}" y="{y}" width="{(end - start) * CELL}" height="{CELL}" {colour} '
                f'stroke="#fff"><title>{_text(name)}: {_text(words)} {row[start]:.4f}</title></rect>'
            )
    return "".join(parts) + "</svg>\n"


def _rows(prediction: Prediction) -> list[list[float]]:
    if prediction.attention is None:
        raise ValueError("this model has no attention to draw")
    return prediction.attention.tolist()


def _text(token: str, most: int = 200) -> str:
    return escape(CONTROL.sub("\ufffd", _cut(token, most)))


def _cut(token: str, most: int) -> str:
    return token if len(token) <= most else token[: most - 1] + "…"


def _padded(text: str) -> str:
    """`text`, right-aligned in LABEL columns; wide East Asian characters take two columns."""
    columns = sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)
    return " " * max(0, LABEL - columns) + text
