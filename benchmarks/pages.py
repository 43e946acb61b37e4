"""The pages of the benchmarks and their sections, from `templates/<name>.md.jinja`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch


def number(value: float | None, form: str, missed: bool = False, absent: str = "") -> str:
    """A number in a format, bold if it misses its target; `absent` if it is None."""
    if value is None:
        return absent
    text = format(value, form)
    return f"**{text}**" if missed else text


def processor() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def page(name: str, **values: Any) -> str:
    """The page or section `name` with what was measured (`values`)."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals |= {"number": number, "processor": processor, "torch": torch.__version__}
    return made.get_template(f"{name}.md.jinja").render(threads=torch.get_num_threads(), **values)
