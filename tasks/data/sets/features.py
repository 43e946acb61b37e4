"""Features with labels: your own files, and the multi-label sets of Mulan's collection.

features      ARFF, csv, tsv or svmlight files: one file, or train, test and optionally dev
birds, emotions, scene, yeast   in Mulan's published files
yeast_river   all 2,417 genes of Yeast, from the wheel of river, with our own split
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from repro.options import listing
from repro.options import text as word
from tasks.data.acquire import sources
from tasks.data.acquire.sources import fetch_wheel
from tasks.data.dataset import SPLITS, DataSet, Loader, Manifest, fingerprint
from tasks.data.files import verify
from tasks.data.manifests import mirror_files
from tasks.data.progress import Progress
from tasks.data.read import own
from tasks.data.read.formats import damaged, read_text, table
from tasks.data.read.labelled import checked, feature, labelled_set, plain, read_arff
from tasks.data.read.splits import normalized, split_by_content, words

KIND = "features"
LAYOUTS = ((".arff",), (".csv",), (".tsv",), (".svmlight",), (".svm",))
Arrays = tuple[np.ndarray, np.ndarray]  # features [n, d], labels bool [n, K]
EXPECTED = "labels as numbers with commas, then NUMBER:VALUE, by increasing number"


def load_own(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load train and test, and dev if there is one.

    Without dev, penalties are chosen by cross-validation. A single file is split by hash: about every tenth document is
    test.
    """
    files = own.find(options.path, own.FILES if options.text else LAYOUTS, ("train", "test"))
    if "train" not in files and own.WHOLE not in files:
        expected = "train and test: features are standardised by train"
        raise damaged(files["test"][0], "a test set alone", expected, step=own.STEP)
    paths = {split: path for split, (path,) in files.items()}
    sparse = {own.ending(path) in (".svmlight", ".svm") for path in paths.values()}
    if not options.label and not options.text and False in sparse:
        path, step = next(iter(paths.values())), "set data.label=[NAME,NAME,..]"
        raise damaged(path, "it is not known which columns are labels", "names", step=step)
    read = _svmlight if True in sparse else _tables
    names, arrays = _texts(paths, options) if options.text else read(paths, options.label)
    for split, (_, y) in arrays.items():
        if not y.any():
            raise damaged(paths.get(split) or paths[own.WHOLE], "no document has a label", "labels", step=own.STEP)
    origin = own.sources(files, names, *([options.text, options.label, options.separator] if options.text else []))
    if own.WHOLE in arrays:
        x, y = arrays[own.WHOLE]
        key = [fingerprint(row.tobytes().hex()) for row in x]
        parts = split_by_content([[one] for one in key], key)
        chosen = {"train": sorted(parts.train), "test": sorted(parts.dev + parts.test)}
        own.refuse_empty(paths[own.WHOLE], "its documents with labels", {s: y[i].any() for s, i in chosen.items()})
        arrays = {s: (x[rows], y[rows]) for s, rows in chosen.items()}
    else:
        origin["test"] = [origin["train"], origin["test"]]
        origin |= {"dev": [origin["train"], origin["dev"]]} if "dev" in origin else {}
    place = Path(str(options.path)).name
    given = {s: arrays[s] for s in SPLITS if s in arrays}
    return labelled_set(manifest, f"own features, {place}", given, tuple(names), {s: origin[s] for s in given})


def _texts(paths: dict[str, Path], options: Any) -> tuple[Sequence[str], dict[str, Arrays]]:
    """Texts as tf-idf vectors of the 2,000 most frequent `words` of train; a single file is split by content."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    columns = str(options.text), *options.label, options.separator
    rows = {split: list(own.several(path, *columns)) for split, path in paths.items()}
    names = sorted({name for _, _, labels in rows.get("train", rows.get(own.WHOLE, ())) for name in labels})
    if own.WHOLE in rows:
        found = rows.pop(own.WHOLE)
        texts = [one for _, one, _ in found]
        parts = split_by_content([[normalized(one)] for one in texts], texts, [texts])
        chosen = {"train": parts.train, "test": parts.dev + parts.test}
        rows = {s: [found[i] for i in sorted(part)] for s, part in chosen.items()}
        own.refuse_empty(paths[own.WHOLE], "its texts", rows)
    vectors = TfidfVectorizer(analyzer=words, max_features=2000).fit([one for _, one, _ in rows["train"]])
    arrays = {}
    for split, found in rows.items():
        x = vectors.transform([one for _, one, _ in found]).toarray()
        y = np.zeros((len(found), len(names)), bool)
        for n, (row, _, labels) in enumerate(found):
            if unknown := [name for name in labels if name not in names]:
                raise row.wrong(f"the label {unknown[0][:40]!r}", f"one of {', '.join(names)[:400]}")
            y[n, [names.index(name) for name in labels]] = True
        arrays[split] = (x, y)
    return names, arrays


def _tables(paths: dict[str, Path], labels: Sequence[str]) -> tuple[Sequence[str], dict[str, Arrays]]:
    """Read ARFF, csv or tsv files, in which labels are columns. All splits must have the columns of the first one."""
    found: dict[str, Arrays] = {}
    columns: tuple[str, ...] = ()
    for split, path in paths.items():
        if own.ending(path) == ".arff":
            found[split] = read_arff(path, tuple(labels))
        else:
            x: list[list[float]] = []
            y: list[list[bool]] = []
            for line, row in table(path, (*labels, *columns), **own.dialect(path)):
                columns = columns or tuple(name for name in row if name not in labels)
                if "" in columns:  # several unnamed columns would be read as one
                    said, expected = "a column without a name", "a name for each column"
                    raise damaged(path, said, expected, line=1, step=own.STEP)
                if wrong := [name for name in labels if row[name].strip() not in ("0", "1")]:
                    said = f"the label {wrong[0]} is {row[wrong[0]][:40]!r}"
                    raise damaged(path, said, "0 or 1", line=line, step=own.STEP)
                y.append([row[name].strip() == "1" for name in labels])
                x.append([feature(row[name], path, line, f"{name} is ") for name in columns])
            if not columns:
                raise damaged(path, "it has only labels", "features, too", line=1, step=own.STEP)
            found[split] = np.array(x), np.array(y)
        first, here = next(iter(found.values()))[0].shape[1], found[split][0].shape[1]
        if here != first:
            raise damaged(path, f"{here:,} features", f"{first:,}, as in the file of the first split", step=own.STEP)
    return labels, found


def _svmlight(paths: dict[str, Path], labels: Sequence[str]) -> tuple[Sequence[str], dict[str, Arrays]]:
    """Read lines such as `3,7 3:0.5 17:1 # comment`, in which labels are numbers.

    Features may be numbered from 0 or 1, because a column that is constant on train is left out.
    """
    from sklearn.datasets import load_svmlight_files
    from sklearn.preprocessing import MultiLabelBinarizer

    try:
        raw = [io.BytesIO(read_text(path).encode()) for path in paths.values()]
        # if features are numbered from 1, column 0 is constant, and constant columns are left out
        read = load_svmlight_files(raw, multilabel=True, zero_based=True)
    except ValueError as error:
        path = next(iter(paths.values()))
        raise damaged(path, f"it, or a file beside it, cannot be read ({error})", EXPECTED, step=own.STEP) from error
    found = {split: [[f"{n:g}" for n in row] for row in y] for split, y in zip(paths, read[1::2])}
    names = list(labels) or sorted({n for row in next(iter(found.values())) for n in row}, key=float)
    for split, rows in found.items():
        if unknown := {n for row in rows for n in row} - {*names}:
            raise damaged(paths[split], f"the label {min(unknown)}", f"one of {', '.join(names)[:400]}", step=own.STEP)
    binary = MultiLabelBinarizer(classes=names)
    arrays = zip(paths.items(), read[::2])
    return names, {s: (checked(x.toarray(), path), binary.fit_transform(found[s]) > 0) for (s, path), x in arrays}


def load_mulan(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load <name>-train.arff and <name>-test.arff, and the names of the labels from <name>.xml."""
    name = manifest["name"]
    files, hashes = mirror_files(manifest, options.mirror or sources.found(manifest, root))
    tree = ElementTree.fromstring(read_text(files[f"{name}.xml"]))
    labels = tuple(plain(node.get("name", "")) for node in tree.iter() if node.tag.endswith("label"))
    splits = {s: read_arff(files[f"{name}-{s}.arff"], labels) for s in ("train", "test")}
    train, test = (hashes[f"{name}-{s}.arff"] for s in splits)
    return labelled_set(manifest, manifest["title"], splits, labels, {"train": train, "test": [train, test]})


# The sizes of the published split. The package has the rows in the order of Mulan's whole file, but not the split.
TRAIN, SPLIT_SEED = 1500, 0


def load_river(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load 1,500 training and 917 test genes with 14 labels."""
    folder = fetch_wheel(manifest, root, progress)
    entry = manifest["files"][0]
    path = folder / entry["path"]
    verify(path, entry["sha256"], entry["bytes"], retry=f"delete {folder} and run the same command again")
    found = [row for _, row in table(path, ())]
    header, rows = list(found[0]), [[float(cell) for cell in row.values()] for row in found]
    is_label = np.array([name.startswith("Class") for name in header])
    genes = np.array(rows)[np.random.default_rng(SPLIT_SEED).permutation(len(rows))]
    splits = {s: (t[:, ~is_label], t[:, is_label] == 1) for s, t in (("train", genes[:TRAIN]), ("test", genes[TRAIN:]))}
    names = tuple(name for name in header if name.startswith("Class"))
    return labelled_set(manifest, manifest["title"], splits, names, dict.fromkeys(splits, entry["sha256"]))


def _problems(options: Any) -> list[str]:
    if options.text is not None:
        return [f"label={options.label} must be the column of the labels"] if len(options.label) != 1 else []
    if len(set(options.label)) == len(options.label) != 1:
        return []
    return [f"label={options.label} must be at least two different names"]


OWN = {
    "label": listing(word(), help="names of the labels; [] (svmlight only): the labels of the training documents"),
    "text": word(optional=True, help="column of texts, read as vectors; label: the column of labels"),
    "separator": word(optional=True, help="separator of the labels of a text; null: the labels are lists"),
}
SETS = {name: Loader(KIND, load_mulan) for name in ("birds", "emotions", "scene", "yeast")}
SETS |= {"features": Loader(KIND, load_own, OWN, _problems), "yeast_river": Loader(KIND, load_river)}
