"""Find finished cells and exported models, load them as plain torch models, and use, evaluate and export them.

Needs no fairseq.

model = load_cell("translation/sparsemax")           # or an id, or a folder that `export` wrote
model.translate(["Ein Hund läuft ."])[0].output      # .attention, .nbest, .unknown
found = evaluate("3f9a", ["data=duc2004", "decode.beam=2"])
"""

from __future__ import annotations

from tasks.load.finding import NoCell, find_cell
from tasks.load.model import Loaded, Prediction, load_cell
from tasks.load.scoring import evaluate, evaluation_config

__all__ = ["Loaded", "NoCell", "Prediction", "evaluate", "evaluation_config", "find_cell", "load_cell"]
