"""Check docs/results: pages and files against the records and code that they come from, the rest against checksums.

A table is computed from its records and compared line by line, with everything below it. These are also recomputed: the
csv files and plots of sweeps, the papers' figures, the properties of the mappings, the page of the language model, and
the numbers that README quotes. A record is compared with its own per-example scores. `checksums.json` has the sha256
of every file (for a page: of the page without its computed parts), so that changes to files that cannot be recomputed
here, or their loss, do not go unnoticed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.language_model import report
from repro.store import archive
from repro.tables import render
from sparse_attention import properties
from tasks.commands import claims, paper_figures, recorded
from tasks.commands.recorded import CHECKSUMS, RESULTS

README = "README.md"
PARTS = re.compile(r"(?m)^(?=## )")  # a page is split at its second-level headings
NOT_COVERED = (
    "Not covered: sentences outside tables and the tables made by hand (whether they follow from the numbers; in docs/results a checksum "
    "shows that they were changed, --write renews it), of README all but the speeds and the architectures that it quotes, and numbers "
    "that no per-example score determines (dev scores, zeros, support, seconds) and drawings of trained models' attention, which have a "
    "checksum alone."
)


@dataclass
class Expected:
    """The content that a folder of results must have, as far as it is determined by the records and the code.

    Attributes:
        sections: (title, profile) -> a complete section of a page.
        openings: title -> the beginning of a section; the rest of the section is prose.
        files: path relative to the folder -> exact content.
        drawn: like `files`, but numbers may differ by rounding.
        quoted: sentences that README must contain.
        wrong: contradictions within the records.
    """

    sections: dict[tuple[str, str], str] = field(default_factory=dict)
    openings: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    drawn: dict[str, str] = field(default_factory=dict)
    quoted: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass
class Checked:
    """The result of a check: one sentence for each error, and the numbers of items compared."""

    wrong: list[str] = field(default_factory=list)
    sections: int = 0
    files: int = 0
    sums: int = 0

    def text(self) -> str:
        done = f"{self.sections} tables and {self.files} files computed again, {self.sums} checksums compared: {len(self.wrong)} differences."
        return "\n".join([*(f"WRONG {one}" for one in self.wrong), done, NOT_COVERED])


# ---- the expected content


def expected(results: Path = RESULTS) -> Expected:
    """Compute the expected content of a folder of results. Raises StoreError if a file of records cannot be read."""
    found, built = Expected(wrong=contradictions(results)), []
    for path in recorded.files(results):
        made = recorded.read(path)
        built.append(made.table)
        text = render.to_markdown(made.table)
        if made.picture:
            found.drawn[f"figures/tables/{path.stem}.svg"] = made.picture
            text += f"\n![each seed's score, and the learning curves](figures/tables/{path.stem}.svg)\n"
        if made.more:  # pages show this instead of the table
            found.openings |= {_key(part)[0]: part.rstrip("\n") for part in PARTS.split(made.more) if part}
        else:
            found.sections[_key(text)] = text
        if made.sweep and (results / "sweeps" / made.sweep).is_dir():
            for name, content in made.files.items():
                (found.drawn if name.endswith(".svg") else found.files)[f"sweeps/{made.sweep}/{name}"] = content
    if (results.parent / "claims.md").is_file():
        tested = claims.of_tables(built)
        found.files["../claims.md"] = claims.page(tested)
        found.drawn |= claims.pictures(tested)
    _of_code(results, found)
    return found


def _of_code(results: Path, found: Expected) -> None:
    if (measured := results / "language_model.json").is_file():
        told = json.loads(measured.read_text(encoding="utf-8"))
        found.files["language_model.md"] = report.page(told)
        sentence = report.sentence(told)
        found.quoted += [sentence] if sentence else []
        if sentence is None and "A causal language model" in _readme(results):
            found.wrong.append(f"{README}: language_model.json does not give what is said of the causal language model")
    if (results / "properties.md").is_file():
        found.drawn["properties.md"] = properties.page()
    if (results / "figures" / README).is_file():
        found.files[f"figures/{README}"] = paper_figures.page(paper_figures.FIGURES)
        for figure in paper_figures.FIGURES:
            if (results / "figures" / f"{figure.name}.csv").is_file():
                drawn = paper_figures.drawn(figure).items()
                found.drawn |= {f"figures/{name}": content.decode() for name, content in drawn}
    models = results.parent / "guides" / "transformers_models.md"
    if models.is_file() and (passed := re.search(r"(\d+ of \d+) pass", models.read_text(encoding="utf-8"))):
        found.quoted.append(f"{passed[1]} architectures")


def contradictions(results: Path = RESULTS) -> list[str]:
    """Contradictions between a record and its own examples, between two records, and in drawn attention (sum not 1)."""
    found: list[str] = []
    known: dict[tuple[str, ...], tuple[str, str]] = {}
    for path in recorded.files(results):
        for one in archive.read(path)[1]:
            where = f"{_named(path, results)}, {one.get('training') or one['key']}"
            found += [f"{where}: {what}" for what in archive.contradictions(one)]
            for thing, key, said in _shared(one):
                first, before = known.setdefault((thing, *key), (where, said))
                if said != before:
                    found.append(f"{where}: its {thing} is not that of {first}")
    for path in sorted((results / "figures").glob("*.json")):
        for n, example in enumerate(json.loads(path.read_text(encoding="utf-8")).get("examples", ()), 1):
            for row in example["rows"]:
                weights = [*row.get("weights", ()), [s["weight"] for s in row.get("structures", ())] or [1.0]]
                if any(abs(sum(w) - 1) > 1e-4 for w in weights):
                    found.append(f"{_named(path, results)}: example {n}, {row['label']}: weights that do not sum to 1")
    return found


def _shared(one: dict) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(kind, key, value) for facts about a cell or test set that the records of several tables may share."""
    if "trained" in one:
        yield "training", (one["training"],), json.dumps(one["trained"], sort_keys=True)
    for name, test in one["tests"].items():
        if "scored" not in test:
            continue
        scored = test["scored"]
        how = json.dumps(scored["scoring"], sort_keys=True)
        told = {k: v for k, v in scored.items() if k != "baselines"}
        yield "evaluation", (one["training"], test["evaluation"]), json.dumps(told, sort_keys=True)
        test_set = (name, scored["data_sha256"], how)
        yield "test set's facts", test_set, json.dumps(scored.get("facts"), sort_keys=True)
        for system, of in (scored.get("baselines") or {}).items():  # a record may be older than a baseline
            yield f"test set's {system} baseline", test_set, json.dumps(of, sort_keys=True)


# ---- pages


def _key(part: str) -> tuple[str, str]:
    """(title, profile) of a section; an empty string for one that is missing."""
    title, profile = re.match(r"## (.*)", part), re.search(r"(?m)^\*profile (\w+)", part)
    return title[1] if title else "", profile[1] if profile else ""


def _readme(results: Path) -> str:
    path = results.parents[1] / README
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _named(path: Path, results: Path) -> str:
    return str(path.relative_to(results.parents[1]))


def _read(text: str, of: Expected) -> Iterator[tuple[tuple[str, str], str, str | None, str]]:
    """(key, computed text as it is, as it must be, prose that follows) of each part of a page.

    Nothing of a part that is neither a section nor an opening is computed: its third entry is None. An opening has as
    many paragraphs as are expected.
    """
    for part in PARTS.split(text):
        key = _key(part)
        if key in of.sections:
            yield key, part, of.sections[key], ""
        elif key[0] in of.openings:
            paragraphs, wanted = re.split(r"(?=\n\n)", part), of.openings[key[0]]
            count = len(re.split(r"(?=\n\n)", wanted))
            yield key, "".join(paragraphs[:count]), wanted, "".join(paragraphs[count:]) or "\n"
        else:
            yield key, "", None, part


def check(results: Path = RESULTS, of: Expected | None = None) -> Checked:
    """Check a folder of results, and the README two folders above it, against their expected content.

    Args:
        of: the expected content; computed if not given.
    """
    of = of or expected(results)
    done = Checked(list(of.wrong))
    seen: set[object] = set()
    for path in sorted(results.rglob("*.md")):
        for key, have, want, prose in _read(path.read_text(encoding="utf-8", errors="replace"), of):
            if want is not None:
                done.wrong += _differ(f"{_named(path, results)}: {key[0]}", have, want)
            elif re.search(r"(?m)^\*profile ", prose):
                done.wrong.append(
                    f"{_named(path, results)}: {key[0]}, profile {key[1]}: there are no records of this table"
                )
            seen |= {key, key[0]}
    lost = [key for key in of.sections if key not in seen] + [(title, "") for title in of.openings if title not in seen]
    done.wrong += [f"{' '.join(key).strip()}: it has records, but no page shows the table" for key in lost]
    done.sections, done.files = len(of.sections) + len(of.openings), len(of.files) + len(of.drawn)
    for name, content in (of.files | of.drawn).items():
        path = results / name
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if name in of.files or not alike(text, content):
            done.wrong += _differ(_named(path, results), text, content)
    readme = " ".join(_readme(results).split())
    done.wrong += [f"{README}: it must say {one!r}" for one in of.quoted if readme and one not in readme]
    changed = sums(results, of).items() ^ known(results).items()
    done.sums = len(known(results))
    done.wrong += [
        f"{name}: not as {CHECKSUMS} has it; if that is intended: scripts/verify.py --write"
        + (f" accept={name}" if measured(name) else "")
        for name in sorted({name for name, _ in changed})
    ]
    return done


def _differ(where: str, text: str, wanted: str) -> list[str]:
    """One sentence for each run of lines that differs from the expected lines."""
    have, want = text.rstrip("\n").split("\n"), wanted.rstrip("\n").split("\n")
    found = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, have, want, autojunk=False).get_opcodes():
        if kind != "equal":
            ours, theirs = "\n".join(have[a:b]), "\n".join(want[c:d])
            first = next((i for i, (x, y) in enumerate(zip(ours, theirs)) if x != y), min(len(ours), len(theirs)))
            start = max(0, first - 60)
            cut = [("..." if start else "") + x[start : first + 60] for x in (ours, theirs)]
            found.append(f"{where}, line {a + 1}: found {cut[0]!r}, expected {cut[1]!r}")
    return found


_NUMBER = re.compile(r"(-?\d+\.?\d*(?:e[+-]?\d+)?)")
_UNSTABLE = re.compile(r'base64,[^"]*|url\(#[^)]*\)|(?:id|href)="[^"]*"')


def alike(text: str, wanted: str) -> bool:
    """True if two texts are equal up to rounding.

    In drawings, numbers may differ by a fiftieth of a point; in other texts, in the fifth digit. Numbers with an
    exponent (measured slopes of a function) may differ by half.
    """
    drawing = wanted.startswith("<?xml")
    slack = 0.02 if drawing else 0.0
    parts = [_NUMBER.split(_UNSTABLE.sub("", one)) if drawing else _NUMBER.split(one) for one in (text, wanted)]
    if len(parts[0]) != len(parts[1]) or parts[0][::2] != parts[1][::2]:
        return False
    return all(
        abs(float(a) - float(b)) <= slack + (0.5 if "e" in b else 2e-5) * abs(float(b))
        for a, b in zip(parts[0][1::2], parts[1][1::2])
        if a != b
    )


# ---- checksums


def known(results: Path) -> dict[str, str]:
    """The checksums of a folder of results: path -> sha256."""
    path = results / CHECKSUMS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def sums(results: Path, of: Expected) -> dict[str, str]:
    """The checksums of the files as they are now.

    Of a page, the computed parts are left out.
    """
    found = {}
    for path in (p for p in sorted(results.rglob("*")) if p.is_file() and p.name != CHECKSUMS):
        content = path.read_bytes()
        if path.suffix == ".md":
            prose = "".join(prose for *_, prose in _read(content.decode(errors="replace"), of))
            content = prose.rstrip("\n").encode()
        found[str(path.relative_to(results))] = hashlib.sha256(content).hexdigest()
    return found


def measured(name: str) -> bool:
    """True if a file contains measurements, not prose; `--write` renews its checksum only if `accept` matches it."""
    return not name.endswith(".md")


def write(results: Path = RESULTS, accept: Sequence[str] = ()) -> list[str]:
    """Write the content computed from records and code into pages and files, and renew the checksums.

    Args:
        accept: patterns for measured files whose new content is intended, such as `records/*`.

    Returns:
        the names of the changed files.

    Raises:
        ValueError: records contradict each other, or measured files do not match their checksums; nothing is written.
    """
    of = expected(results)
    before, now = known(results), sums(results, of)
    computed = of.files.keys() | of.drawn.keys()
    foreign = sorted(
        name for name, _ in before.items() ^ now.items()
        if measured(name) and name not in computed and not any(fnmatchcase(name, one) for one in accept)
    ) if before else []  # fmt: skip
    told = [
        *of.wrong,
        *(
            f"{name} is not as {CHECKSUMS} has it; if that is intended: accept={name}"
            for name in dict.fromkeys(foreign)
        ),
    ]
    if told:
        raise ValueError("nothing is written:\n" + "\n".join(told))
    changed = []
    for path in sorted(results.rglob("*.md")):
        old = path.read_text(encoding="utf-8")
        if (new := _renewed(old, of)) != old:
            path.write_text(new, encoding="utf-8")
            changed.append(_named(path, results))
    for name, content in (of.files | of.drawn).items():
        path = results / name
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        if old != content and (name in of.files or not alike(old, content)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            changed.append(_named(path, results))
    after = sums(results, of)
    if after != before:
        (results / CHECKSUMS).write_text(json.dumps(after, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        changed += [f"checksum of {name}" for name in sorted({n for n, _ in after.items() ^ before.items()})]
    return changed


def _renewed(text: str, of: Expected) -> str:
    return "".join(
        (want or "") + ("\n" if key in of.sections and have.endswith("\n\n") else "") + prose
        for key, have, want, prose in _read(text, of)
    )
