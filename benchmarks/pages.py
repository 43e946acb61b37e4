"""The pages of the benchmarks and their sections, from `templates/<name>.md.jinja`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from repro.files import templates


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
    made = templates(Path(__file__).parent / "templates").get_template(f"{name}.md.jinja")
    known = {"number": number, "processor": processor, "torch": torch.__version__, "threads": torch.get_num_threads()}
    return made.render(known, **values)
