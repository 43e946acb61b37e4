"""The mappings, with one family per file in this folder. Importing this package imports and registers all of them."""

import importlib
import pkgutil

# These families come first in names(); the others follow alphabetically, and the densities come last.
_FIRST = ["softmax", "sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax", "sparsegen", "sparsehourglass"]
_FIRST += ["normalization", "constrained"]
_FOUND = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")} - {*_FIRST, "continuous"}

for _family in [*_FIRST, *sorted(_FOUND), "continuous"]:
    importlib.import_module(f"{__name__}.{_family}")
