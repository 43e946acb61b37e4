"""Names of the package that are looked up at first use: modules that take time to import, and mappings that users register."""

from __future__ import annotations

import importlib

from . import registry
from .errors import meant

MODULES = ("attention", "integrations", "nn", "structured")
ATTENTION = ("KeyCache", "sparse_attention")
OTHERS = "Mapping Param Spec UnknownMappingError continuous kernels losses make max_omega names quality register spec"
PUBLIC = [*OTHERS.split(), *MODULES, *ATTENTION, *registry.public()]


def __getattr__(name: str) -> object:
    if name in (*MODULES, "fused"):
        return importlib.import_module(f".{name}", __package__)
    if name in ATTENTION:
        return getattr(importlib.import_module(".attention", __package__), name)
    known = {} if name.startswith("_") else registry.public()
    if name not in known:
        hint = meant(name, [*PUBLIC, *known])
        raise AttributeError(f"module {__package__!r} has no attribute {name!r}{hint}; dir(sparse_attention) lists all")
    return known[name]


def __dir__() -> list[str]:
    return sorted({*PUBLIC, *registry.public(), "__version__"})
