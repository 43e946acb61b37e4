"""IMDB's film reviews, negative or positive (Maas et al. 2011), used in Table 1 of Martins et al. 2020."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

from repro.options import integer
from tasks.data.acquire import sources
from tasks.data.acquire.archives import tar_files
from tasks.data.dataset import DataSet, Loader, Manifest, Splits, make
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import sha256_of
from tasks.data.manifests import mirror_files
from tasks.data.progress import Progress
from tasks.data.read.formats import decode
from tasks.data.records import Example

KIND = "texts"
CLASSES = ("negative", "positive")
FIELDS = ("text",)
ABOUT = {"classes": list(CLASSES), "fields": list(FIELDS)}
_MEMBER = re.compile(r"(?:^|/)(train|test)/(neg|pos)/([^/]+)\.txt$")
_LABELS = {"neg": 0, "pos": 1}


def load_imdb(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Read the archive from `path`, else from `mirror`, else from the fetched copy."""
    counts: dict[str, int] = {}  # empty for a mirror or download: the manifest's hash shows that it is complete
    if options.path is not None:
        archive = Path(options.path)
        counts = Counter(found[1] for found, _ in tar_files(archive, _MEMBER))
    elif options.mirror is not None:
        (archive,) = mirror_files(manifest, options.mirror).values()
    elif sources.found(manifest, root) is not None:
        archive = sources.fetched(manifest, root, progress) / "aclImdb_v1.tar.gz"
    else:
        raise DataUnavailable("imdb was not fetched", str(root / "imdb"), manifest["get"])

    def read(progress: Progress) -> Splits:
        reviews: dict[str, list[tuple[str, Example]]] = {"train": [], "test": []}
        with progress.bar(50_000, f"reading {archive.name}") as bar:
            for found, raw in tar_files(archive, _MEMBER):
                text = decode(raw, archive / found.string)
                if not text.strip():
                    raise DataError(f"imdb: the review {found.string} is blank", str(archive), manifest["get"])
                split, label, name = found.groups()
                reviews[split].append((f"{label}/{name}", Example((text,), _LABELS[label])))
                bar.advance()
        if not reviews["train"] or not reviews["test"]:
            raise DataError("imdb has no reviews in train or test", str(archive), manifest["get"])
        ordered = (sorted(found, key=lambda item: item[0]) for found in reviews.values())
        train, test = ([example for _, example in found] for found in ordered)
        random.Random(options.split_seed).shuffle(train)
        random.Random(options.split_seed).shuffle(test)  # so that a limit keeps reviews of both classes
        cut = round(len(train) * options.dev_share)
        return {"train": train[cut:], "dev": train[:cut], "test": test}

    stamp, seed = sha256_of(archive), options.split_seed
    held_out = [stamp, options.dev_share, seed]
    origin = {"train": held_out, "dev": held_out, "test": [stamp, seed]}
    notes = [f"dev: {options.dev_share:.0%} of the training reviews, seed {seed}"]
    more = {"limits": options.limits, "counts": counts, "notes": notes, "about": ABOUT}
    return make(manifest, KIND, read, f"IMDB, archive {archive.name}", sources=origin, **more)


SPLIT_SEED = integer(low=0, help="seed of the choice of dev, among the reviews ordered by name")
SETS = {"imdb": Loader(KIND, load_imdb, {"split_seed": SPLIT_SEED})}
