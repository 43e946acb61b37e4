"""Sparse and structured attention: mappings that replace softmax, their losses, and measures of what they look at.

    import sparse_attention as sa

    p = sa.fusedmax(scores, dim=-1, lam=0.1, mask=mask)     # mask: bool, True = keep
    m = sa.make("fusedmax", lam=0.1)                        # nn.Module: m(scores, mask=None, dim=-1)
    sa.names(kind="simplex"), sa.spec("fusedmax")

Contract of every simplex mapping: any ``dim``, any leading shape, empty batches, one position; masked positions get
exactly 0 and no gradient; a fully masked row gives zeros; -inf counts as masked; NaN stays in its row; float16 and
bfloat16 are computed in float32 and rounded once; gradients for scores and for hyperparameters given as tensors, twice
differentiable; torch.compile and torch.func.vmap work.
"""

from __future__ import annotations

from typing import Any

from . import kernels, losses, quality
from .losses import max_omega
from .mappings import *  # noqa: F403
from .mappings import __all__ as _mappings
from .registry import Mapping, Param, Spec, UnknownMappingError, make, names, register, spec

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The attention modules and the continuous and structured families, imported when first used."""
    import importlib
    import importlib.util

    if name in ("attention", "repro"):
        return importlib.import_module(f"{__name__}.{name}")
    if not name.startswith("_"):
        for family in ("continuous", "sparsemap"):
            full = f"{__name__}.mappings.{family}"
            if importlib.util.find_spec(full) is not None:
                module = importlib.import_module(full)
                if name == family:
                    return module
                if hasattr(module, name):
                    return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    *_mappings,
    "Mapping",
    "Param",
    "Spec",
    "UnknownMappingError",
    "make",
    "names",
    "register",
    "spec",
    "kernels",
    "losses",
    "max_omega",
    "quality",
]
