"""A finished cell as a self-contained folder, read back by `load_cell`.

config.yaml  weights.safetensors  encoding/  metrics.json  curves.csv     as in the store, without paths of the machine
evaluations.json    what every finished evaluation measured, on what data, how it was decoded
plugins/            the Python files that the mapping comes from
fairseq/            with `sources`: a checkpoint for fairseq-generate, and the sources encoded
manifest.json       sha256 of every file above: a folder whose files differ is refused
README.md           the model card; you may edit it
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from repro import cell as cells
from repro import plugins
from repro.files import StoreError, explain, read_json, usable, without_paths, write_json
from repro.store import Entry, Evaluation
from repro.store.maintenance import levels
from tasks.data.records import Pair
from tasks.load.card import card
from tasks.load.finding import find_cell, outputs_folder
from tasks.load.model import Loaded, load_cell

LEFT = ("config.yaml", "provenance.json")  # they name the machine; the card has what matters of them


def export(
    what: str, folder: str | Path, outputs: str | Path | None = None, sources: Sequence[str] | None = None, *,
    trust_plugins: bool = False,
) -> Path:  # fmt: skip
    """Write the folder, whole or not at all.

    Args:
        what: the cell, see `find_cell`.
        sources: texts; given, fairseq-generate's checkpoint is written too, with these encoded for it.
        trust_plugins: copy, and for `sources` run, the plugins of the cell even if you never named them yourself.

    Raises:
        NoCell; StoreError: the cell is not finished, damaged or invalid, its plugins are untrusted, the folder exists already, or cannot be written.
        ValueError: `sources` for a model that generates no text.
    """
    place, to = find_cell(outputs or outputs_folder(), what), Path(folder)
    if to.exists():
        raise StoreError(f"{to} exists already; name a new folder")
    cell, entry = cells.finished(place), Entry(place)
    cells.admit(place, cell, trust_plugins)
    measured = {e.folder.name: found for e in levels(entry) if isinstance(e, Evaluation) and (found := e.read())}
    measured = measured or read_json(place / "evaluations.json") or {}
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as work,
            usable(place, (OSError, ValueError)),
        ):
            made = Path(work) / "made"
            for name in entry.files():
                if name not in LEFT:
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(place / name, made / name)
            (made / "config.yaml").write_text(_page(cell, made), encoding="utf-8")
            write_json(made / "evaluations.json", measured)
            if sources is not None:
                _for_fairseq(load_cell(place, trust_plugins=trust_plugins), sources, made / "fairseq")
            training = (read_json(entry.path("manifest.json")) or {}).get("training", cell.training_id)
            Entry(made).finish(training=training)
            told = read_json(place / "provenance.json") or {}
            (made / "README.md").write_text(card(cell, training, entry.read() or {}, measured, told), encoding="utf-8")
            made.replace(to)
            if not trust_plugins:  # then they are the user's own, and so are the copies
                for copy in sorted((to / "plugins").glob("*.py")):
                    plugins.remember(copy)
    except OSError as error:
        raise explain(error, to) from error
    return to


def _page(cell: cells.Cell, made: Path) -> str:
    """config.yaml without what only the machine of the training had; plugins are copied to `made`."""
    page = yaml.safe_load(cells.page(cell))
    copied = []
    for plugin in page["plugins"]:
        source = Path(plugin)
        if source.suffix != ".py":
            copied.append(plugin)
            continue
        (made / "plugins").mkdir(exist_ok=True)
        shutil.copyfile(source, made / "plugins" / source.name)
        copied.append(f"plugins/{source.name}")
    page |= {"plugins": copied, "paths": {"outputs": "outputs", "data": "data/cache"}, "logger": {"csv": {}}}
    page["runtime"] |= {"device": "auto"}
    for node in ("data", "encode", "further"):
        page[node] = without_paths(page[node])
    return yaml.safe_dump(page, sort_keys=False, allow_unicode=True, width=120)


def _for_fairseq(model: Loaded, sources: Sequence[str], folder: Path) -> None:
    if model.name != "seq2seq":
        raise ValueError(f"fairseq-generate writes texts; a model of {model.config['task']['name']} does not")
    from tasks.fairseq_plugin import released

    folder.mkdir()
    pairs = [Pair(text, ("",)) for text in sources]
    with model.as_test_set(pairs, "pairs", {"digits": None}) as test:
        shutil.copytree(test.folder, folder / "data")
    released.write(model.name, model.config, folder / "data", model.model.cpu(), folder / "model.pt")
