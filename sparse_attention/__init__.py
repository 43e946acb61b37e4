"""Sparse and structured attention: mappings that replace softmax, their losses, and measures of what they look at.

    import sparse_attention as sa

    p = sa.fusedmax(scores, dim=-1, lam=0.1, mask=mask)     # mask: bool, True = keep
    m = sa.make("fusedmax", lam=0.1)                        # nn.Module: m(scores, mask=None, dim=None); also sa.Fusedmax(0.1)
    sa.names(kind="simplex"), sa.spec("fusedmax")
    out = sa.sparse_attention(q, k, v, mapping="sparsemax", causal=True)   # scores, mapping and values in one exact call

Contract of every simplex mapping: any ``dim``, any leading shape, empty batches, one position; masked positions get
exactly 0 and no gradient; a fully masked row gives zeros; -inf counts as masked; NaN stays in its row; float16 and
bfloat16 are computed in float32 and rounded once; gradients for scores and for hyperparameters given as tensors, twice
differentiable; torch.compile and torch.func.vmap work.

What there is (`help(sa.fusedmax)`, `help(sa.losses)`; a tour of 15 minutes: docs/library.md):

    rows         softmax sparsemax entmax pnormmax fusedmax oscarmax sparsegen_lin sparsegen_exp sparsegen_sq
                 sparsecone sparsehourglass sum_normalization sum_normalization_pp spherical_softmax hardmax
                 constrained_softmax constrained_sparsemax top_k top_p
    structures   sparsemap_sequence sparsemap_matching softmax_sequence tvmax
    densities    continuous_softmax continuous_triweight continuous_biweight continuous_sparsemax continuous_mixture
    modules      Softmax Sparsemax Entmax Pnormmax Fusedmax Oscarmax SparsegenLin SparsegenExp SparsegenSq Sparsecone
                 Sparsehourglass SumNormalization SumNormalizationPp SphericalSoftmax Hardmax ConstrainedSoftmax
                 ConstrainedSparsemax FertilitySoftmax FertilitySparsemax SparsemapSequence SparsemapMatching
                 SoftmaxSequence TopK TopP Tvmax ContinuousSoftmax ContinuousTriweight ContinuousBiweight
                 ContinuousSparsemax ContinuousMixture; all are a Mapping
    registry     make names spec register; Param Spec Mapping UnknownMappingError
    attention    sparse_attention KeyCache; fused (plan), nn (modules), integrations (of other packages)
    losses       losses, max_omega, prox
    no sum 1     unnormalised (alpha_relu, group_sparsemax)
    looking      quality, properties
    the rest     kernels, structured, continuous, __version__
"""

from __future__ import annotations

import importlib as _importlib

from . import kernels, losses, quality, registry
from .losses import max_omega
from .mappings import FUNCTIONS as _FUNCTIONS
from .registry import Mapping, Param, Spec, UnknownMappingError, make, names, register, spec

__version__ = "0.2.0"

# Imported when first used; with them the functions and modules of the mappings that are.
_ROOMS = {
    name: f".{name}"
    for name in (
        "fused",
        "integrations",
        "nn",
        "properties",
        "prox",
        "structured",
        "unnormalised",
    )
}
_ROOMS["continuous"] = ".mappings.continuous"
_FUSED = ("KeyCache", "sparse_attention")
globals().update(_FUNCTIONS)
__all__ = [
    "Mapping",
    "Param",
    "Spec",
    "UnknownMappingError",
    "kernels",
    "losses",
    "make",
    "max_omega",
    "names",
    "quality",
    "register",
    "spec",
    *_FUNCTIONS,
    *(spec(name).module.__name__ for name in _FUNCTIONS),
]


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return _importlib.import_module(_ROOMS[name], __name__)
    if name in _FUSED:
        return getattr(_importlib.import_module(".fused", __name__), name)
    found = {} if name.startswith("_") else registry.public()
    if name not in found:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; dir(sparse_attention) lists all")
    return found[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, *_FUSED, *registry.public(), "__version__"})
