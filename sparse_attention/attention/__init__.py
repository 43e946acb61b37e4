"""Attention with any mapping in one call: `sparse_attention`; `plan` tells you which path the computation will take.

>>> out = sa.sparse_attention(q, k, v, mapping="sparsemax", causal=True)      # q [B, H, n, d], k and v [B, G, m, d]
>>> sa.attention.plan(q, k, v, mapping="sparsemax", causal=True)
Plan(path='fused', reason='sparsemax has a fused kernel, which takes these')
"""

from .attention import plan, sparse_attention
from .cache import KeyCache
from .choice import Plan

__all__ = ["KeyCache", "Plan", "plan", "sparse_attention"]
