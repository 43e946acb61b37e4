"""Deviations from the papers, as the pages of the tasks list them."""

from __future__ import annotations

import re
from pathlib import Path

RESTRICTED = ("demo", "cpu")


def of_task(docs: Path, task: str, profile: str) -> list[str]:
    """The items under each heading of `<docs>/<task>.md` that says "deviations"; one that names profiles is of those."""
    page = docs / f"{task}.md"
    if not page.is_file():
        return []
    found = []
    section = r"^#+ ([^\n]*deviations[^\n]*)\n(.*?)(?=^#|\Z)"
    for heading, body in re.findall(section, page.read_text(encoding="utf-8"), re.M | re.S | re.I):
        named = [p for p in RESTRICTED if re.search(rf"\b{p}\b", heading, re.I)]
        if not named or profile in named:
            found += [" ".join(item.split()) for item in re.split(r"^[-*] +", body, flags=re.M)[1:]]
    return found
