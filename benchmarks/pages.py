"""The pages of the benchmarks and their sections, from `templates/<name>.md.jinja`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from repro.files import templates
from repro.store import provenance

PARTS = ("", "## Fused attention", "## Training and decoding")  # headings in benchmarks.md; the first part has none


def number(value: float | None, form: str, missed: bool = False, absent: str = "") -> str:
    """A number in a format, bold if it misses its target; `absent` if it is None."""
    if value is None:
        return absent
    text = format(value, form)
    return f"**{text}**" if missed else text


def renewed(old: str, heading: str, text: str) -> str:
    """benchmarks.md, whose content is `old`, with one of its PARTS replaced or added."""
    there = re.split(rf"(?m)^(?=(?:{'|'.join(PARTS[1:])})$)", old)
    parts = {one.partition("\n")[0] if one.startswith(PARTS[1:]) else "": one for one in there} | {heading: text}
    return "\n\n".join(parts[one].rstrip("\n") for one in PARTS if one in parts) + "\n"


def page(name: str, **values: Any) -> str:
    """The page or section `name` with what was measured (`values`)."""
    made = templates(Path(__file__).parent / "templates").get_template(f"{name}.md.jinja")
    known = {"number": number, "torch": torch.__version__, "threads": torch.get_num_threads()}
    return made.render(known, processor=provenance.collect()["machine"]["cpu"], **values)
