"""Write a program beside an exported model that predicts without this repository, with the code that it needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.config import models
from tasks.config.options import plain
from tasks.data.cache import read_meta
from tasks.data.images import Blank
from tasks.load.standalone import library
from tasks.load.standalone.sources import PACKAGE, copied

FAMILIES = ("seq2seq", "classification", "multilabel", "vqa")
WRITTEN = ("predict.py", "model.json", "requirements.txt", PACKAGE, "*.whl")
TOKENIZERS = {"moses": "sacremoses", "ptb": "nltk", "bpe": "subword-nmt", "sentencepiece": "sentencepiece"}


def refused(config: Mapping[str, Any], encoding: Path) -> str | None:
    """Why a model cannot run without this repository, as a part of a sentence; None if it can."""
    family, model = str(config["task"]["family"]), config["model"]
    if family not in FAMILIES:
        return f"{config['task']['name']} has no output of its own; a translation model reads its fertilities"
    if model.get("fertility") == "actual":
        return "model.fertility=actual needs the reference of each source"
    image = read_meta(encoding)["image"] if family == "vqa" else {"kind": "none"}
    if image["kind"] == "features" and (tuple(image["grid"]), image["channels"]) != (Blank.grid, Blank.channels):
        return "it reads features of images, which scripts/extract_features.py makes and scripts/predict.py reads"
    return None


def write(folder: Path, config: Mapping[str, Any]) -> None:
    """Write predict.py, model.json, the code in model/, the library's wheel, and requirements.txt, which names it.

    Args:
        config: the cell's configuration with plugins relative to the folder.
    """
    family, name = str(config["task"]["family"]), config["model"]["name"]
    wanted = {}
    if family != "multilabel":
        architecture = models.architecture(family, name)
        wanted[architecture.__name__] = ["Model"]
        nodes = models.nodes_at(config["mapping"], architecture.PLACES)
        about = {
            "architecture": f"{PACKAGE}.{family}.models.{name}", "options": plain(models.options(family, config["model"])),
            "mappings": {place: {"name": n["name"], **models.parameters(n)} for place, n in nodes.items()},
            "plugins": config["plugins"], "runtime": {"tf32": bool(config["runtime"].get("tf32"))}, "decode": config["decode"],
            "batch_size": config["train"]["batch_size_valid"],
        }  # fmt: skip
        (folder / "model.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    for path, source in copied(f"tasks.load.standalone.{family}", wanted).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source, encoding="utf-8")
    shutil.copy(made := library.wheel(), folder)
    lines = [f"./{made.name}", *_requirements(config)]
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _requirements(config: Mapping[str, Any]) -> Iterator[str]:
    yield from ("torch", "numpy", "safetensors")
    for kind in (config["encode"].get("tokenizer"), config["encode"].get("subword")):
        yield from (package for prefix, package in TOKENIZERS.items() if str(kind).startswith(prefix))
    if config["task"]["family"] == "vqa":
        yield "pillow"
