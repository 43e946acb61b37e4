"""The name of `sparse_attention.attention` before 0.3."""

import warnings

from .attention import KeyCache, Plan, plan, sparse_attention

__all__ = ["KeyCache", "Plan", "plan", "sparse_attention"]
warnings.warn(
    "sparse_attention.fused is now sparse_attention.attention; 0.4 removes the old name", DeprecationWarning, 2
)
