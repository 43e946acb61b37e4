"""Finished cells and exported models: found, loaded as plain torch models, used on your own input, scored, exported. No fairseq.

model = load_cell("translation/fusedmax")            # or an id, or a folder of `export`
model.translate(["Ein Hund läuft ."])[0].output      # .attention, .nbest, .unknown
found = evaluate("3f9a", ["data=duc2004", "decode.beam=2"])
"""

from __future__ import annotations

from tasks.load.finding import NoCell, find_cell, outputs_folder
from tasks.load.model import Loaded, Prediction, load_cell
from tasks.load.scoring import evaluate, evaluation_config

__all__ = [
    "Loaded", "NoCell", "Prediction", "evaluate", "evaluation_config", "find_cell", "load_cell", "outputs_folder",
]  # fmt: skip
