"""How the rows of a finished entailment table align pairs of texts, and by what structures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from repro.store import Store
from tasks.classification.figures import Example, Panel, choose
from tasks.classification.predict import collate
from tasks.data.cache import read_meta
from tasks.data.records import Example as Pair
from tasks.load.attending import Finished
from tasks.load.model import Loaded, load_cell


def stored(of: Finished, count: int) -> list[tuple[tuple[str, str], str]]:
    """`count` test pairs that `choose` finds among those whose texts every row has stored, and their classes."""
    rows = []
    for _, cell in of.cells:
        test = cell.found(Store(of.outputs)).evaluations["test"]
        rows.append({r["index"]: r for r in test.predictions() if r["set"] == "test"})
    return [(tuple(rows[0][i]["texts"]), rows[0][i]["label"]) for i in choose(rows, count)]


def aligned(of: Finished, pairs: Sequence[tuple[tuple[str, str], str]]) -> list[Example]:
    """Pairs of texts and their classes, aligned by every row's model. Raises ValueError for a model that aligns nothing."""
    found: list[Example] = []
    for label, cell in of.cells:
        loaded = load_cell(cell.entry(Store(of.outputs)).folder)
        if not hasattr(loaded.model, "aligned"):
            raise ValueError(f"the row {label!r} is {loaded.config['model']['name']}, which aligns no words; esim does")
        for i, (tokens, panel) in enumerate(_panels(loaded, label, [texts for texts, _ in pairs])):
            if i == len(found):
                found.append(Example(tokens, pairs[i][1], []))
            found[i].panels.append(panel)  # type: ignore[attr-defined]
    return found


@torch.no_grad()
def _panels(loaded: Loaded, label: str, texts: Sequence[tuple[str, str]]):
    """(tokens of both texts, panel) of each pair."""
    meta = read_meta(loaded.encoding.folder)
    outputs = [one.output for one in loaded.classify(texts)]
    device = next(loaded.model.parameters()).device
    about = {"classes": meta["classes"], "fields": meta["fields"]}
    with loaded.as_test_set([Pair(tuple(one), 0) for one in texts], "texts", about) as test:
        split = test.splits["test"]
        for i, output in enumerate(outputs):
            ids, lengths = collate(split, [i])
            *_, (p, _), found = loaded.model.aligned([one.to(device) for one in ids], lengths, structures=True)
            weights, structures = np.zeros(0), np.zeros((0, p.size(1)), dtype=int)
            if found:
                count = int((found[0].weights[0] > 0).sum())
                weights, structures = (t[0, :count].cpu().numpy() for t in (found[0].weights, found[0].structures))
                order = np.argsort(-weights, kind="stable")
                weights, structures = weights[order], structures[order]
            panel = Panel(label, output, p[0].cpu().numpy(), weights, structures)
            yield tuple(list(field[i]) for field in split.tokens), panel
