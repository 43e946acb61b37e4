"""The mappings, one family per file; importing this package registers them.

The continuous and the structured families register when a name of theirs is first asked for.
"""

# In the order in which names() lists them.
# isort: off
from .softmax import Softmax, softmax
from .sparsemax import Sparsemax, sparsemax
from .entmax import Entmax, entmax
from .pnormmax import Pnormmax, pnormmax
from .fusedmax import Fusedmax, fusedmax
from .oscarmax import Oscarmax, oscarmax
from .sparsegen import SparsegenExp, SparsegenLin, SparsegenSq, sparsegen_exp, sparsegen_lin, sparsegen_sq
from .sparsehourglass import Sparsecone, Sparsehourglass, sparsecone, sparsehourglass
from .normalization import (
    Hardmax,
    SphericalSoftmax,
    SumNormalization,
    SumNormalizationPP,
    hardmax,
    spherical_softmax,
    sum_normalization,
    sum_normalization_pp,
)
from .constrained import ConstrainedSoftmax, ConstrainedSparsemax, constrained_softmax, constrained_sparsemax
# isort: on

__all__ = [
    "softmax",
    "sparsemax",
    "entmax",
    "pnormmax",
    "fusedmax",
    "oscarmax",
    "sparsegen_lin",
    "sparsegen_exp",
    "sparsegen_sq",
    "sparsecone",
    "sparsehourglass",
    "sum_normalization",
    "sum_normalization_pp",
    "spherical_softmax",
    "hardmax",
    "constrained_softmax",
    "constrained_sparsemax",
    "Softmax",
    "Sparsemax",
    "Entmax",
    "Pnormmax",
    "Fusedmax",
    "Oscarmax",
    "SparsegenLin",
    "SparsegenExp",
    "SparsegenSq",
    "Sparsecone",
    "Sparsehourglass",
    "SumNormalization",
    "SumNormalizationPP",
    "SphericalSoftmax",
    "Hardmax",
    "ConstrainedSoftmax",
    "ConstrainedSparsemax",
]
