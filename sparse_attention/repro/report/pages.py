"""Templates of the report and of comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def environment() -> Any:
    """Templates. Raises ModuleNotFoundError: jinja2 is not installed."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the HTML report needs jinja2: pip install 'sparse-attention[repro]' and run the command again"
        ) from error
    from sparse_attention.repro.report.figures import swatch

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["swatch"] = swatch
    return environment
