"""The mappings, one family per file of this folder; importing the package imports, and so registers, them all.

The continuous family registers when a name of it is first asked for.
"""

import importlib
import pkgutil
from typing import Any

from ..registry import later, names, spec

# The order of names(); families not named here follow in that of the alphabet.
_FIRST = ["softmax", "sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax", "sparsegen", "sparsehourglass"]
_FIRST += ["normalization", "constrained"]
_FOUND = [m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg and not m.name.startswith("_")]

for _family in [*_FIRST, *sorted(set(_FOUND) - set(_FIRST))]:
    importlib.import_module(f"{__name__}.{_family}")

FUNCTIONS: dict[str, Any] = {name: f for name in names() if (f := spec(name).function) is not None}

later("continuous", lambda: importlib.import_module(f"{__name__}.continuous"))
