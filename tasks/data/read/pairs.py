"""Shared parts of the sentence-pair data sets: options, limits on the number of words, and cached rows and splits."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.options import LARGEST, choice, option
from tasks.data.cache import cached_folder, read_meta
from tasks.data.dataset import Limited
from tasks.data.errors import DataError
from tasks.data.files import remembered
from tasks.data.progress import Progress
from tasks.data.read.splits import Parts, split_by_content
from tasks.data.records import Pair

Rows = list[list[str]]
SIDES = ("source", "target")
ENGLISH = {"source_lang": "en", "target_lang": "en"}


def word_bounds(which: str) -> Any:
    """An option with the `fewest` or `most` whitespace-separated words of a text, or null for no limit.

    Its value is {source: .., target: ..}, or one number for both.
    """

    def read(value: Any) -> dict[str, int | None]:
        bounds = dict(value) if isinstance(value, Mapping) else dict.fromkeys(SIDES, value)
        whole = all(n is None or (type(n) is int and 1 <= n <= LARGEST) for n in bounds.values())
        if not whole or set(bounds) - set(SIDES):
            what = f"must be a whole number from 1 to {LARGEST:,}, null, or {{source: .., target: ..}} of these"
            raise ValueError(what)
        return {side: bounds.get(side) for side in SIDES}

    return option(dict, read, f"{which} words of a text")


def fallback() -> Any:
    """The `fallback` option of a data set that is fetched by apt."""
    return choice("toy", optional=True, help="generated pairs when the text is unavailable; null: an error")


def language(*allowed: str) -> Any:
    """An option that selects one of several languages of a data set."""
    return choice(*allowed, help="language code")


class Translated:
    """Options of a data set with `source_lang` and `target_lang`."""

    def problems(self) -> list[str]:
        """Problems of the combination of the two languages."""
        if self.source_lang != self.target_lang:
            return []
        step = "set source_lang and target_lang to two different languages"
        return [f"target_lang={self.target_lang!r} is the source's language too; {step}"]

    def about(self) -> dict[str, str]:
        """The `about` entries of a translation data set."""
        return {"source_lang": self.source_lang, "target_lang": self.target_lang}


@dataclass
class Bounded(Limited):
    """Options of a data set with `limits`, and with `min_words` and `max_words`, each {source: .., target: ..}."""

    min_words: dict = word_bounds("fewest")
    max_words: dict = word_bounds("most")

    def bounds(self) -> list[Any]:
        """The limits on the number of words, for a fingerprint."""
        return [self.min_words, self.max_words]

    def within(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs whose source and first reference have an allowed number of whitespace-separated words."""

        def fits(text: str, side: str) -> bool:
            low, high = self.min_words[side], self.max_words[side]
            n = len(text.split())
            return (low is None or n >= low) and (high is None or n <= high)

        return [p for p in pairs if fits(p.source, "source") and fits(p.references[0], "target")]

    def shortfall(self) -> list[str]:
        """A shortfall if pairs may be left out because of their number of words, otherwise an empty list."""
        each = (("at least", self.min_words), ("at most", self.max_words))
        bounds = [(what, bound[side], side) for what, bound in each for side in SIDES if bound[side] is not None]
        parts = [f"{what} {n} words a {side}" for what, n, side in bounds]
        return [f"only pairs of {', '.join(parts)}"] if parts else []


def cached_rows(
    root: Path, name: str, key: Any, make: Callable[[], tuple[Rows, dict[str, Any]]], progress: Progress
) -> tuple[Rows, dict[str, Any]]:
    """Rows of strings and their description, which `make` creates once and the cache under `root` keeps; also their `sha256`."""

    def build(folder: Path) -> dict[str, Any]:
        rows, about = make()
        if not rows:
            raise DataError(f"no text was found for {name}", str(about), "report this with the line above")
        body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "rows.jsonl").write_bytes(body.encode("utf-8", "surrogatepass"))
        return about

    folder = cached_folder(root, name, key, build, progress)
    body, about = (folder / "rows.jsonl").read_bytes().decode("utf-8", "surrogatepass"), read_meta(folder)
    return [json.loads(line) for line in body.split("\n")[:-1]], about | {"sha256": about["files"]["rows.jsonl"]}


def cached_parts(
    path: Path, key: str, progress: Progress, keys: Iterable[Any], names: Sequence[str], texts: Sequence[Sequence[str]]
) -> Parts:
    """The split of `split_by_content`, remembered at `path` for this `key`; `keys` are read only to make it."""

    def made() -> dict[str, Any]:
        progress.step(f"splitting {path.parent.name}, near-duplicates together")
        return dataclasses.asdict(split_by_content(list(keys), names, texts))

    return Parts(**remembered(path, key, made))
