"""Other people's code: Hugging Face transformers, masks by filling, the names of other libraries of sparse mappings.

    import sparse_attention as sa
    sa.integrations.transformers.register("fusedmax", lam=0.1)   # then attn_implementation="sa_fusedmax"
    attend.attn_fn = sa.integrations.treat_as_masked("entmax")     # for code that fills scores with -finfo.max

Each is imported when it is first used, and needs its package only then.
"""

from __future__ import annotations

import importlib as _importlib
import pkgutil as _pkgutil

from .masks import separate, treat_as_masked

_ROOMS = {found.name for found in _pkgutil.iter_modules(__path__)}
__all__ = ["separate", "treat_as_masked"]


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; dir(sparse_attention.integrations) lists all"
        )
    return _importlib.import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
