"""Export a finished cell as a folder of its own, which `load_cell` and `scripts/predict.py` read.

config.yaml  weights.safetensors  encoding/  metrics.json  curves.csv     as in the store, without this machine's paths
evaluations.json    metrics, data and decoding options of every finished evaluation
plugins/            the Python files that define the mapping
model.onnx          only if `onnx` is given: the model as one ONNX graph
fairseq/            only if `sources` are given: a checkpoint for fairseq-generate, and the encoded sources
manifest.json       sha256 of every file above; a folder whose files differ cannot be loaded
README.md           the model card; you may edit it
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from repro import cell as cells
from repro.errors import StoreError
from repro.files import explain, read_json, usable, without_paths, write_json
from repro.store import Entry
from tasks.data.records import Pair
from tasks.use.card import card, intervals
from tasks.use.finding import find_cell
from tasks.use.model import load_cell

# They contain machine details. config.yaml is rewritten; the model card has the relevant parts of the other file.
LEFT = ("config.yaml", "provenance.json")


def export(
    what: str,
    folder: str | Path,
    outputs: str | Path | None = None,
    sources: Sequence[str] | None = None,
    *,
    onnx: bool = False,
    plugins: Sequence[str] = (),
) -> Path:
    """Write the folder and return it; if an error occurs, nothing is left behind.

    Args:
        what: the cell; see `find_cell`.
        sources: source texts. If given, a checkpoint for fairseq-generate is written too, with these texts encoded for
            it.
        onnx: also write model.onnx (`tasks.use.onnx`).
        plugins: the Python files that define the cell's mapping, which are copied; as in `tasks.use.load_cell`.

    Raises:
        ConfigError: no cell matches `what`, or several do.
        StoreError: the cell is unfinished, damaged or invalid; its plugins are not named; or the folder already exists
            or cannot be written.
        ValueError: `sources` are given, but the model does not generate text; or `onnx`, but ONNX cannot express it.
    """
    place, to = find_cell(outputs, what), Path(folder)
    if to.exists():
        raise StoreError(f"{to} exists already; name a new folder")
    cell, entry = cells.finished(place), Entry(place)
    cell = cells.admit(place, cell, plugins)
    if onnx:
        from tasks.use import onnx as graphs

        if why := graphs.refused(cell.config):
            raise ValueError(f"no {graphs.FILE}: {why}; without --onnx the folder has the weights")
    measured = {}
    for level in entry.evaluations():
        if scores := level.read():
            ranges = intervals(cell.family.METRICS, scores, level.predictions())
            measured[level.folder.name] = scores | {"intervals": ranges}
    measured = measured or read_json(place / "evaluations.json") or {}
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        hidden = tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.")
        with hidden as work, usable(place, (OSError, ValueError)):
            made = Path(work) / "made"
            for name in entry.files():
                if name not in LEFT:
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(place / name, made / name)
            text = yaml.safe_dump(_page(cell, made), sort_keys=False, allow_unicode=True, width=120)
            (made / "config.yaml").write_text(text, encoding="utf-8")
            write_json(made / "evaluations.json", measured)
            if onnx:
                graphs.write(load_cell(place, plugins=plugins), made)
            if sources is not None:
                model = load_cell(place, plugins=plugins)
                if "translate" not in model.family.WAYS:
                    task = model.config["task"]["name"]
                    raise ValueError(f"fairseq-generate needs a model that writes texts, not {task}; drop --fairseq")
                from tasks.fairseq_plugin.parts import Parts

                with model.as_test_set([Pair(text, ("",)) for text in sources], {"digits": None}) as test:
                    shutil.copytree(test.folder, made / "fairseq" / "data")
                parts = Parts(model.config["task"]["family"], dict(model.config), made / "fairseq" / "data")
                parts.write(model.model.cpu(), made / "fairseq" / "model.pt")
            training = (read_json(entry.path("manifest.json")) or {}).get("training", cell.training_id)
            Entry(made).finish(training=training)
            told = read_json(place / "provenance.json") or {}
            text = card(cell, training, entry.read() or {}, measured, told)
            (made / "README.md").write_text(text, encoding="utf-8")
            made.replace(to)
    except OSError as error:
        raise explain(error, to) from error
    return to


def _page(cell: cells.Cell, folder: Path) -> dict[str, Any]:
    """The content of config.yaml without settings of the training machine; also copies the plugins to `folder`."""
    page = yaml.safe_load(cells.page(cell))
    copied = []
    for plugin in page["plugins"]:
        source = Path(plugin)
        if source.suffix != ".py":
            copied.append(plugin)
            continue
        (folder / "plugins").mkdir(exist_ok=True)
        shutil.copyfile(source, folder / "plugins" / source.name)
        copied.append(f"plugins/{source.name}")
    page |= {"plugins": copied, "paths": {"outputs": "outputs", "data": "data/cache"}, "logger": {"csv": {}}}
    page["runtime"] |= {"device": "auto"}
    for node in ("data", "encode", "further"):
        page[node] = without_paths(page[node])
    return page
