"""Templates of the report and of comparisons."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup


def prose(text: str) -> Markup:
    """Text with what stands between backticks as code; everything is escaped."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def environment() -> Any:
    """Templates. Raises ModuleNotFoundError: jinja2 is not installed."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the HTML report needs jinja2: pip install 'sparse-attention[repro]' and run the command again"
        ) from error
    from repro.report.figures import swatch

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["swatch"] = swatch
    environment.filters["prose"] = prose
    return environment
