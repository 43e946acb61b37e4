"""Attention over structures: SparseMAP for any factor that has an oracle.

    from sparse_attention.structured import Budget, sparsemap

    mu = sparsemap(Budget(3), scores, mask=mask)                # at most 3 of n
    mu = sparsemap(MyFactor(), scores, return_structures=True)  # your own: see `active_set.Factor`

``sa.sparsemap_sequence``, ``sa.sparsemap_matching`` and ``sa.sparsemap_tree`` have native kernels. The solver is in `active_set`, the oracles
are in `factors`, and `rows` provides the differentiable functions on batches.
"""

from .active_set import Factor
from .factors import Budget, Matching, Sequence, Tree, Xor
from .rows import Solution, sparsemap

__all__ = ["Budget", "Factor", "Matching", "Sequence", "Solution", "Tree", "Xor", "sparsemap"]
