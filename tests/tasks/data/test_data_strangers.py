"""Files of strangers: every loader, every kind of damage; a sentence with file and place, soon, and nothing else."""

import bz2
import gzip
import re
import time

import pytest
from strangers import ENCODINGS, LOADERS, OF_KIND, PLACES, TEXTS

from tasks.data import DataError, manifests
from tasks.data.sets import features, questions, reviews

SECONDS = 2.0
BINARY = ("tar", "zip")
# What no reader of bytes may pass, tried on every loader; the others on one loader of each reader.
FEW = {"empty", "blank", "Latin-1", "NUL", "gzip, cut", "zip", "an error page"}
WHOLE = ("gigaword source", "iwslt2017 talks", "snli highlights", "vqa2 questions", "birds", "word vectors")


def bad_files(loader):
    """what -> (change of the bytes, where the message must point), for one loader."""
    found = {} if loader.kind in BINARY else {w: t for w, t in TEXTS.items() if w in FEW or loader.name in WHOLE}
    # labels have no é; of Latin-1, every byte is a character; any text is a page or a review, and a page may be empty
    fine = {"labels": ENCODINGS, "sgml": ENCODINGS - {"NUL"}, "review": {"an error page"}}
    fine["page"] = {"an error page", "empty", "blank", "blank, Unicode's"}
    found = {what: one for what, one in found.items() if what not in fine.get(loader.kind, ())}
    found |= OF_KIND.get(loader.kind, {})
    return found | {what: (None, "") for what in PLACES if (loader.kind, what) not in FOLDERS}


FOLDERS = {("zip", "a folder"), ("tar", "a folder")}  # images may lie in a folder
CASES = [pytest.param(name, what, id=f"{name}: {what}") for name, one in LOADERS.items() for what in bad_files(one)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Name of a loader -> folder with its good files."""
    return {name: loader.lay(tmp_path_factory.mktemp("good")) for name, loader in LOADERS.items()}


@pytest.fixture
def laid(folders, monkeypatch):
    """`laid(name)`: the folder of a loader, which takes it for what it reads."""
    monkeypatch.setattr(manifests, "verify", lambda *a, **k: None)  # a mirror's files have one sha256, the good one
    monkeypatch.setattr(features, "verify", lambda *a, **k: None)
    monkeypatch.setattr(features, "TRAIN", 4)

    def laid(name):
        for module in (features, questions, reviews):
            monkeypatch.setattr(module, "fetch_wheel", lambda *a, **k: folders[name])
        return folders[name]

    return laid


def plain(loader) -> bytes:
    """The good bytes of the file that is damaged, unpacked."""
    raw = loader.files[loader.target]
    if loader.kind in BINARY:
        return raw
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else bz2.decompress(raw) if raw[:3] == b"BZh" else raw


@pytest.mark.parametrize("name", LOADERS)
def test_good_files_are_read(name, laid, tmp_path):
    found, data = LOADERS[name].read(laid(name), tmp_path)
    assert len(found) and (data is None or any(map(len, found.values())))


@pytest.mark.parametrize("name, what", CASES)
def test_bad_files_are_refused(name, what, laid, tmp_path):
    loader = LOADERS[name]
    change, where = bad_files(loader)[what]
    folder = laid(name)
    path = folder / loader.target
    path.unlink()
    try:
        path.write_bytes(change(plain(loader))) if change else PLACES[what](path)
        start = time.process_time()  # of this process: others may be busy
        with pytest.raises(DataError) as caught:
            loader.read(folder, tmp_path)
        seconds = time.process_time() - start
    finally:
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(loader.files[loader.target])
    said = str(caught.value)
    assert seconds < SECONDS
    assert path.name in said and re.search(where, said), said
    assert "\n" not in caught.value.what and caught.value.next_step and len(said) < 2000
