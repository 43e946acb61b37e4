"""Use the mappings with other packages.

There are integrations for Hugging Face transformers, for torch's `scaled_dot_product_attention`, for code that masks
scores by filling in large negative numbers, and for code written for other libraries of sparse mappings.

    import sparse_attention as sa
    sa.integrations.transformers.register("entmax", alpha=1.5)   # then attn_implementation="sa_entmax"
    with sa.integrations.sdpa.use("sparsemax"): ...              # for code that calls torch's attention function
    attend.attn_fn = sa.integrations.treat_as_masked("entmax")     # for code that fills scores with -finfo.max

`transformers` is imported on first use, and only then needs its package to be installed.
"""

from __future__ import annotations

import importlib

from .. import masks
from ..masks import separate, treat_as_masked
from . import entmax, sdpa

__all__ = ["entmax", "sdpa", "separate", "treat_as_masked"]


def __getattr__(name: str) -> object:
    if name != "transformers":
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; it has transformers, {', '.join(__all__)}"
        )
    return importlib.import_module(".transformers", __name__)
