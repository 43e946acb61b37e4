"""Find finished cells and exported models, load them as plain torch models, and use, evaluate and export them.

Loading and predicting need neither fairseq nor Hydra. Torch is imported at the first use of anything but `find_cell`, so
that a misspelt name is answered at once.

model = load_cell("translation/sparsemax")           # or an id, or a folder that `export` wrote
model.translate(["Ein Hund läuft ."])[0].output      # .attention, .nbest, .unknown
found = evaluate("3f9a", ["data=duc2004", "decode.beam=2"])
"""

import importlib
from typing import TYPE_CHECKING, Any

from tasks.use.finding import find_cell

if TYPE_CHECKING:
    from tasks.use.model import Loaded, Prediction, load_cell
    from tasks.use.scoring import evaluate, evaluation_config

__all__ = ["Loaded", "Prediction", "evaluate", "evaluation_config", "find_cell", "load_cell"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "scoring" if name.startswith("eval") else "model"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
