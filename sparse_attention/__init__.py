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

Public names (for details, see `help(sa.entmax)` or `help(sa.losses)`; docs/start/library.md introduces the library):

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

from . import kernels, losses, quality, registry
from ._lazy import PUBLIC as __all__
from ._lazy import __dir__, __getattr__
from .losses import max_omega
from .mappings import FUNCTIONS, continuous
from .registry import Mapping, Param, Spec, UnknownMappingError, make, names, register, spec

__version__ = "0.3.0"

globals().update(FUNCTIONS)
del FUNCTIONS
