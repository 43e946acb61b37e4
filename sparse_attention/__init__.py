"""Sparse and structured attention: mappings that replace softmax, their losses, and statistics of attention weights.

    import sparse_attention as sa

    p = sa.sparsemax(scores, dim=-1, mask=mask)                 # mask: bool, True = keep
    m = sa.make("entmax", alpha=1.5)                            # nn.Module: m(scores, mask=None, dim=None); also sa.Entmax(1.5)
    sa.names(kind="simplex"), sa.spec("entmax")                 # list the mappings; describe one of them
    out = sa.sparse_attention(q, k, v, mapping="sparsemax", causal=True)   # exact attention with a mapping, in one call

All simplex mappings, and the unnormalised ones (whose weights need not sum to 1), follow one contract. They accept any
``dim`` and any leading shape, including empty batches and single positions. Masked positions get exactly 0 and no
gradient; a fully masked row gives zeros; a score of -inf counts as masked; a NaN affects only its own row. float16 and
bfloat16 inputs are computed in float32 and rounded once. Scores have gradients, and so do hyperparameters given as
tensors; these gradients can be differentiated again. torch.compile and torch.func.vmap work.

Public names (for details, see `help(sa.entmax)` or `help(sa.losses)`; docs/start/my_model.md introduces the library):

    rows         softmax sparsemax entmax pnormmax fusedmax oscarmax sparsegen_lin sparsegen_exp sparsegen_sq
                 sparsecone sparsehourglass sum_normalization sum_normalization_pp spherical_softmax hardmax
                 constrained_softmax constrained_sparsemax top_k top_p
    unnormalised sparsemap_budget alpha_relu entmoid15 sparsemoid group_sparsemax sigmoid softmax1
    structures   sparsemap_sequence sparsemap_matching sparsemap_tree softmax_sequence tvmax
    densities    continuous_softmax continuous_triweight continuous_biweight continuous_sparsemax continuous_mixture
    modules      Softmax Sparsemax Entmax Pnormmax Fusedmax Oscarmax SparsegenLin SparsegenExp SparsegenSq Sparsecone
                 Sparsehourglass SumNormalization SumNormalizationPp SphericalSoftmax Hardmax ConstrainedSoftmax
                 ConstrainedSparsemax SparsemapBudget AlphaRelu Entmoid15 Sparsemoid FertilitySoftmax
                 FertilitySparsemax GroupSparsemax Sigmoid Softmax1 SparsemapSequence SparsemapMatching SparsemapTree
                 SoftmaxSequence TopK TopP Tvmax ContinuousSoftmax ContinuousTriweight ContinuousBiweight
                 ContinuousSparsemax ContinuousMixture; each is a Mapping
    registry     make names spec register; Param Spec Mapping UnknownMappingError
    attention    sparse_attention KeyCache; attention (plan), nn (modules), integrations (with other packages)
    losses       losses, max_omega
    analysis     quality
    other        kernels, structured, continuous, __version__
"""

import warnings

from . import attention, integrations, kernels, losses, nn, quality, registry, structured
from .attention import KeyCache, sparse_attention
from .errors import meant
from .losses import max_omega
from .mappings import continuous
from .registry import Mapping, Param, Spec, UnknownMappingError, make, names, register, spec

__version__ = "0.3.0"
__all__ = [
    *"KeyCache Mapping Param Spec UnknownMappingError attention continuous integrations kernels losses make".split(),
    *"max_omega names nn quality register sparse_attention spec structured".split(),
    *registry.public(),
]
globals().update(registry.public())  # with a line for each, a new mapping would need one here, too


def __getattr__(name: str) -> object:
    """A mapping that was registered since, and the name that `attention` had before 0.3."""
    if name == "fused":
        warnings.warn("sa.fused is now sa.attention; 0.4 removes the old name", DeprecationWarning, stacklevel=2)
        return attention
    known = {} if name.startswith("_") else registry.public()
    if name not in known:
        hint = meant(name, [*__all__, *known])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}; dir(sparse_attention) lists all")
    return known[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *registry.public(), "__version__"})
