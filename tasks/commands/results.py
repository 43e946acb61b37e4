"""Write docs/results and docs/claims.md from the committed records and from the code.

A page is prose and sections. A section is a table with everything below it, is found by its heading, and is written
again; the prose stays. Files are written whole: docs/claims.md, other.md, pictures, and the pages and figures that the
library computes. `BY_HAND` lists every other file.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from repro.files import write_atomic
from repro.tables import render
from tasks.commands import claims, properties, records
from tasks.draw import functions

PARTS = re.compile(r"(?m)^(?=## )")  # a page is split at its second-level headings
BY_HAND = (
    "records/*.jsonl",
    "language_model.json",  # measurements, like the next
    "length.json",
    "figures/trained.md",
    "figures/*_cpu.*",  # attention of trained models, like the files below
    "figures/*_demo.*",
    "multilabel/*.png",
)
OTHER = ("sweep_*", "evidence_sparsity_*", "*_table[12]_demo")  # records with a line of other.md in place of a page
ABOUT_OTHER = """# Other runs

Short runs, on generated pairs or at demo size. They show that the commands work, and rank nothing. We keep their records.
`python scripts/reproduce.py NAME profile=PROFILE records=docs/results` prints the table of a record NAME_PROFILE.

| table | record | what it shows |
|---|---|---|
"""
_NUMBER = re.compile(r"(-?\d+\.?\d*(?:e[+-]?\d+)?)")
# name of a JSON file of measurements -> function that gives its page, or its page and its picture
Pages = Mapping[str, Callable[[Any], str | tuple[str, str]]]
_UNSTABLE = re.compile(r'base64,[^"]*|url\(#[^)]*\)|(?:id|href)="[^"]*"')


@dataclass
class Expected:
    """What a folder of results contains, as far as its records and the code determine it.

    Attributes:
        sections: (title, profile) -> (page for the section if no page has its heading, text).
        files: path relative to the folder -> content.
        drawn: like `files`, but numbers may differ by rounding.
    """

    sections: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    drawn: dict[str, str] = field(default_factory=dict)


def expected(results: Path, measured: Pages) -> Expected:
    """Compute the content of a folder of results.

    Raises StoreError if records cannot be read.
    """
    found, tables, others = Expected(), [], ""
    for path in sorted((results / records.FOLDER).glob("*.jsonl")):
        made = records.read(path)
        tables.append(made.table)
        if (results / "other.md").is_file() and any(fnmatch(path.stem, one) for one in OTHER):
            shown = " ".join(dict.fromkeys(block.finding for block in made.table.blocks if block.finding))
            others += f"| {made.table.title} | `{path.stem}` | {shown} |\n"
            continue
        text, picture = made.more or render.to_markdown(made.table), f"figures/tables/{path.stem}.svg"
        if made.picture and not made.more:
            text += f"\n![each seed's score, and the learning curves]({picture})\n"
            found.drawn[picture] = made.picture
        found.sections[_key(text)] = (f"{path.stem}.md", text)
    if others:
        found.files["other.md"] = ABOUT_OTHER + others
    if (results.parent / "claims.md").is_file():
        tested = claims.of_tables(tables)
        found.files["../claims.md"] = claims.page(tested, tables)
        found.drawn |= claims.pictures(tested)
    for name, page in measured.items():
        if (path := results / f"{name}.json").is_file():
            made = page(json.loads(path.read_text(encoding="utf-8")))
            found.files[f"{name}.md"], *pictures = (made,) if isinstance(made, str) else made
            found.drawn |= {f"figures/{name}.svg": picture for picture in pictures}
    if (results / "properties.md").is_file():
        found.drawn["properties.md"] = properties.page()
    if (results / "figures" / "README.md").is_file():
        found.files["figures/README.md"] = functions.page()
        files = (file for name in functions.FIGURES for file in functions.drawn(name).items())
        found.drawn |= {f"figures/{name}": content.decode() for name, content in files}
    return found


def write(results: Path, measured: Pages) -> int:
    """Write the content of a folder of results and say which files changed. Returns exit status 0.

    Raises:
        StoreError: as `expected`.
        ValueError: a page has a table without records or lacks its heading, or a file has no source.
            As after a StoreError, nothing is written.
    """
    of = expected(results, measured)
    pages = {path: PARTS.split(_text(path)) for path in sorted(results.rglob("*.md"))}
    shown = {_key(part) for parts in pages.values() for part in parts}
    made = {}
    for path, parts in pages.items():
        if of.sections.keys() & {*map(_key, parts)}:
            up = "../" * (len(path.relative_to(results).parts) - 1)
            texts = [of.sections.get(_key(part), ("", ""))[1] for part in parts]
            ends = ["\n"] * (len(parts) - 1) + [""]
            renewed = (text + end if text else part for part, text, end in zip(parts, texts, ends))
            made[path] = "".join(renewed).replace("](figures/", f"]({up}figures/")
    new = {results / page: (key, text) for key, (page, text) in of.sections.items() if key not in shown}
    made |= {path: text for path, (_, text) in new.items()}
    made |= {results / name: text for name, text in (of.files | of.drawn).items()}
    wrong = []
    for path, parts in pages.items():
        lost = [key for key in map(_key, parts) if key[1] and key not in of.sections]
        wrong += [f"{path}: no records give the table '## {title}', profile {profile}" for title, profile in lost]
        if path in new:
            wrong.append(f"{path}: '## {new[path][0][0]}' is on no page; add this heading where its table belongs")
    for path in sorted(results.rglob("*")):
        if path.is_file() and path not in made and not any(path.match(one) for one in BY_HAND):
            told = "nothing writes this file; if it is made by hand, list it in tasks/commands/results.py"
            wrong.append(f"{path}: {told}")
    if wrong:
        raise ValueError("\n".join(["nothing is written:", *wrong]))
    drawn = {results / name for name in of.drawn}
    changed = [path for path, text in made.items() if not (_alike if path in drawn else str.__eq__)(_text(path), text)]
    for path in changed:
        write_atomic(path, made[path].encode())
        print(f"written: {path.resolve()}")
    print(f"{len(of.sections)} tables and {len(of.files) + len(of.drawn)} files computed again, {len(changed)} changed")
    return 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _key(part: str) -> tuple[str, str]:
    """(title, profile) of a part of a page; an empty string for one that is missing."""
    title, profile = re.match(r"## (.*)", part), re.search(r"(?m)^\*profile (\w+)", part)
    return title[1] if title else "", profile[1] if profile else ""


def _alike(text: str, wanted: str) -> bool:
    """True if two texts are equal up to rounding, which differs between processors.

    In drawings, numbers may differ by a fiftieth of a point; in other texts, in the fifth digit. Numbers with an
    exponent (measured slopes of a function) may differ by half.
    """
    drawing = wanted.startswith("<?xml")
    slack = 0.02 if drawing else 0.0
    parts = [_NUMBER.split(_UNSTABLE.sub("", one)) if drawing else _NUMBER.split(one) for one in (text, wanted)]
    if len(parts[0]) != len(parts[1]) or parts[0][::2] != parts[1][::2]:
        return False
    return all(
        a == b or abs(float(a) - float(b)) <= slack + (0.5 if "e" in b else 2e-5) * abs(float(b))
        for a, b in zip(parts[0][1::2], parts[1][1::2])
    )
