"""What sets of sentence pairs share: options, bounds on words, rows made once and kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.files import broken_seal, sealed
from tasks.config.options import LARGEST, Kind, choice
from tasks.data.errors import DataError
from tasks.data.files import publish_file
from tasks.data.progress import Progress
from tasks.data.read.lines import same_length
from tasks.data.read.splits import Parts
from tasks.data.records import Pair, clean

Rows = list[list[str]]
SIDES = ("source", "target")
ENGLISH = {"source_lang": "en", "target_lang": "en"}


def word_bounds(source: int | None, target: int | None, help: str) -> Any:
    """An option: a bound on whitespace words, as {source: .., target: ..} or one number for both; null: none."""

    def read(value: Any) -> dict[str, int | None]:
        bounds = dict(value) if isinstance(value, Mapping) else dict.fromkeys(SIDES, value)
        whole = all(n is None or (type(n) is int and 1 <= n <= LARGEST) for n in bounds.values())
        if not whole or set(bounds) - set(SIDES):
            what = f"must be a whole number from 1 to {LARGEST:,}, null, or {{source: .., target: ..}} of these"
            raise ValueError(what)
        return {side: bounds.get(side) for side in SIDES}

    default = {"source": source, "target": target}
    return dataclasses.field(default_factory=lambda: dict(default), metadata={"kind": Kind(dict, read, help)})


def language(default: str, *allowed: str) -> Any:
    """An option: a language of a set that has several."""
    return choice(default, *allowed, help="language code")


class Translated:
    """Options of a set with `source_lang` and `target_lang`."""

    def problems(self) -> list[str]:
        """What is wrong with the two languages together."""
        if self.source_lang != self.target_lang:
            return []
        step = "set source_lang and target_lang to two different languages"
        return [f"target_lang={self.target_lang!r} is the source's language too; {step}"]

    def about(self) -> dict[str, str]:
        """What `about` says of a translation set."""
        return {"source_lang": self.source_lang, "target_lang": self.target_lang}


class Bounded:
    """Options of a set with `min_words` and `max_words`, each {source: .., target: ..}."""

    def bounds(self) -> list[Any]:
        """The word bounds, for a fingerprint."""
        return [self.min_words, self.max_words]

    def within(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs whose two sides (the first reference) have an allowed number of whitespace words."""

        def fits(text: str, side: str) -> bool:
            low, high = self.min_words[side], self.max_words[side]
            n = len(text.split())
            return (low is None or n >= low) and (high is None or n <= high)

        return [p for p in pairs if fits(p.source, "source") and fits(p.references[0], "target")]

    def shortfall(self) -> list[str]:
        """A shortfall when pairs are left out by their number of words."""
        each = (("at least", self.min_words), ("at most", self.max_words))
        parts = [
            f"{what} {bound[side]} words a {side}" for what, bound in each for side in SIDES if bound[side] is not None
        ]
        return [f"only pairs of {', '.join(parts)}"] if parts else []


def parallel(files: Sequence[Path], read: Callable[[Path], Sequence[str]]) -> list[Pair]:
    """Pair what `read` gives of two files; `DataError` naming both when they differ in length."""
    source, target = map(read, files)
    same_length(files, (source, target))
    return [Pair(clean(s), (clean(t),)) for s, t in zip(source, target, strict=True)]


def cached_rows(path: Path, make: Callable[[], tuple[Rows, dict[str, Any]]], progress: Progress) -> tuple[Rows, dict]:
    """Rows of strings kept as JSON lines at `path`; the first line holds what is known about them and their sha256.

    Args:
        path: where they are kept.
        make: makes the rows and their description when `path` is absent or damaged.

    Returns:
        rows, and the description (with `sha256`).
    """
    if path.is_file():
        try:
            return _read(path)
        except (ValueError, KeyError, TypeError) as error:
            progress.say(f"{path} is damaged ({error}); making it again")
    rows, about = make()
    if not rows:
        raise DataError(f"no pair of texts was found for {path.stem}", str(about), "report this with the line above")
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogatepass")
    about = about | {"rows": len(rows), "sha256": hashlib.sha256(body).hexdigest()}
    with publish_file(path) as temporary:
        temporary.write_bytes(json.dumps(about).encode() + b"\n" + body)
    return _read(path)


def cached_parts(path: Path, key: str, make: Callable[[], Parts], progress: Progress) -> Parts:
    """A split kept at `path` for what `key` names, with its checksum; made again when `key` changed or the file is not what was written.

    What is there without a checksum, or with a wrong one, is not used: the split is made again, and another one is kept beside.
    """
    before: dict[str, Any] = {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["key"] == key:
            if not (why := broken_seal(stored)):
                return Parts(**stored["parts"])
            before = stored
            progress.say(f"{path} {why}; making it again")
    except OSError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        progress.say(f"{path} is damaged ({type(error).__name__}: {error}); making it again")
    progress.say(f"splitting {path.parent.name}, near-duplicates together")
    parts = make()
    made = sealed({"key": key, "parts": dataclasses.asdict(parts)})
    if before and before.get("parts") != made["parts"]:
        aside = path.with_name(f"{path.name}.unused")
        path.replace(aside)
        progress.say(f"it held another split, which is kept as {aside}; cells that were trained with it have other ids")
    with publish_file(path) as temporary:
        temporary.write_text(json.dumps(made), encoding="utf-8")
    return parts


def _read(path: Path) -> tuple[Rows, dict]:
    head, _, body = path.read_bytes().partition(b"\n")
    about = json.loads(head)
    found = hashlib.sha256(body).hexdigest()
    if found != about["sha256"]:
        raise ValueError(f"expected sha256 {about['sha256'][:12]}.., got {found[:12]}..")
    return [json.loads(line) for line in body.decode("utf-8", "surrogatepass").split("\n") if line], about
