"""Types of the package, written by `make pages`: checkers do not see what the registry makes."""

from torch import Tensor

from . import attention as attention
from . import integrations as integrations
from . import kernels as kernels
from . import losses as losses
from . import nn as nn
from . import quality as quality
from . import structured as structured
from .attention.attention import sparse_attention as sparse_attention
from .attention.cache import KeyCache as KeyCache
from .describe import Param as Param
from .describe import Spec as Spec
from .losses.fenchel_young import max_omega as max_omega
from .mappings import continuous as continuous
from .mappings.alpha_relu import alpha_relu as alpha_relu
from .mappings.constrained import constrained_softmax as constrained_softmax
from .mappings.constrained import constrained_sparsemax as constrained_sparsemax
from .mappings.constrained import sparsemap_budget as sparsemap_budget
from .mappings.continuous.transforms import continuous_biweight as continuous_biweight
from .mappings.continuous.transforms import continuous_mixture as continuous_mixture
from .mappings.continuous.transforms import continuous_softmax as continuous_softmax
from .mappings.continuous.transforms import continuous_sparsemax as continuous_sparsemax
from .mappings.continuous.transforms import continuous_triweight as continuous_triweight
from .mappings.entmax import entmax as entmax
from .mappings.entmoid import entmoid15 as entmoid15
from .mappings.entmoid import sparsemoid as sparsemoid
from .mappings.fusedmax import fusedmax as fusedmax
from .mappings.group_sparsemax import group_sparsemax as group_sparsemax
from .mappings.normalization import hardmax as hardmax
from .mappings.normalization import spherical_softmax as spherical_softmax
from .mappings.normalization import sum_normalization as sum_normalization
from .mappings.normalization import sum_normalization_pp as sum_normalization_pp
from .mappings.oscarmax import oscarmax as oscarmax
from .mappings.pnormmax import pnormmax as pnormmax
from .mappings.sigmoid import sigmoid as sigmoid
from .mappings.softmax import softmax as softmax
from .mappings.softmax1 import softmax1 as softmax1
from .mappings.sparsegen import sparsegen_exp as sparsegen_exp
from .mappings.sparsegen import sparsegen_lin as sparsegen_lin
from .mappings.sparsegen import sparsegen_sq as sparsegen_sq
from .mappings.sparsehourglass import sparsecone as sparsecone
from .mappings.sparsehourglass import sparsehourglass as sparsehourglass
from .mappings.sparsemap import softmax_sequence as softmax_sequence
from .mappings.sparsemap import sparsemap_matching as sparsemap_matching
from .mappings.sparsemap import sparsemap_sequence as sparsemap_sequence
from .mappings.sparsemap import sparsemap_tree as sparsemap_tree
from .mappings.sparsemax import sparsemax as sparsemax
from .mappings.truncated import top_k as top_k
from .mappings.tvmax import tvmax as tvmax
from .modules import Mapping as Mapping
from .registry import UnknownMappingError as UnknownMappingError
from .registry import make as make
from .registry import names as names
from .registry import register as register
from .registry import spec as spec

__version__: str

class Softmax(Mapping):
    def __init__(self, gamma: float | Tensor = 1.0, *, dim: int = -1) -> None: ...

class Sparsemax(Mapping):
    def __init__(self, gamma: float | Tensor = 1.0, *, dim: int = -1) -> None: ...

class Entmax(Mapping):
    def __init__(self, alpha: float | Tensor = 1.5, *, dim: int = -1) -> None: ...

class Pnormmax(Mapping):
    def __init__(
        self,
        p: float | Tensor = 1.5,
        gamma: float | Tensor = 1.0,
        solver: str = "exact",
        tol: float = 0.01,
        *,
        dim: int = -1,
    ) -> None: ...

class Fusedmax(Mapping):
    def __init__(self, lam: float | Tensor = 0.1, gamma: float | Tensor = 1.0, *, dim: int = -1) -> None: ...

class Oscarmax(Mapping):
    def __init__(
        self,
        lam: float | Tensor = 0.01,
        gamma: float | Tensor = 1.0,
        mode: str = "exact",
        *,
        dim: int = -1,
    ) -> None: ...

class SparsegenLin(Mapping):
    def __init__(self, lam: float | Tensor = 0.0, *, dim: int = -1) -> None: ...

class SparsegenExp(Mapping):
    def __init__(self, lam: float | Tensor = 0.0, *, dim: int = -1) -> None: ...

class SparsegenSq(Mapping):
    def __init__(self, lam: float | Tensor = 0.0, *, dim: int = -1) -> None: ...

class Sparsecone(Mapping):
    def __init__(self, q: float | Tensor = 1.0, *, dim: int = -1) -> None: ...

class Sparsehourglass(Mapping):
    def __init__(self, q: float | Tensor = 1.0, *, dim: int = -1) -> None: ...

class SumNormalization(Mapping):
    def __init__(self, *, dim: int = -1) -> None: ...

class SumNormalizationPp(Mapping):
    def __init__(self, *, dim: int = -1) -> None: ...

class SphericalSoftmax(Mapping):
    def __init__(self, *, dim: int = -1) -> None: ...

class Hardmax(Mapping):
    def __init__(self, *, dim: int = -1) -> None: ...

class ConstrainedSoftmax(Mapping):
    def __init__(
        self,
        bounds: float | Tensor | None = None,
        lower: float | Tensor | None = None,
        *,
        dim: int = -1,
    ) -> None: ...

class ConstrainedSparsemax(Mapping):
    def __init__(
        self,
        bounds: float | Tensor | None = None,
        lower: float | Tensor | None = None,
        *,
        dim: int = -1,
    ) -> None: ...

class SparsemapBudget(Mapping):
    def __init__(self, k: int = 2, *, dim: int = -1) -> None: ...

class AlphaRelu(Mapping):
    def __init__(self, alpha: float = 1.5, tau: float | Tensor = 0.0, *, dim: int = -1) -> None: ...

class Entmoid15(Mapping):
    def __init__(self, *, dim: int = -1) -> None: ...

class Sparsemoid(Mapping):
    def __init__(self, *, dim: int = -1) -> None: ...

class FertilitySoftmax(Mapping):
    def __init__(self, c: float = 0.0, *, dim: int = -1) -> None: ...

class FertilitySparsemax(Mapping):
    def __init__(self, c: float = 0.0, *, dim: int = -1) -> None: ...

class GroupSparsemax(Mapping):
    def __init__(self, groups: int | Tensor | None = None, share: float = 1.0, *, dim: int = -1) -> None: ...

class Sigmoid(Mapping):
    def __init__(self, bias: float | Tensor | None = None, *, dim: int = -1) -> None: ...

class Softmax1(Mapping):
    def __init__(self, logit: float | Tensor = 0.0, *, dim: int = -1) -> None: ...

class SparsemapSequence(Mapping):
    def __init__(self) -> None: ...

class SparsemapMatching(Mapping):
    def __init__(self) -> None: ...

class SparsemapTree(Mapping):
    def __init__(self) -> None: ...

class SoftmaxSequence(Mapping):
    def __init__(self) -> None: ...

class TopK(Mapping):
    def __init__(self, k: int | Tensor = 8, *, dim: int = -1) -> None: ...

class TopP(Mapping):
    def __init__(self, mass: float = 0.9, *, dim: int = -1) -> None: ...

def top_p(scores: Tensor, dim: int = -1, mask: Tensor | None = None, mass: float = 0.9) -> Tensor: ...

class Tvmax(Mapping):
    def __init__(self, lam: float | Tensor = 0.1, gamma: float | Tensor = 1.0) -> None: ...

class ContinuousSoftmax(Mapping):
    def __init__(self) -> None: ...

class ContinuousTriweight(Mapping):
    def __init__(self, quadrature: str = "auto") -> None: ...

class ContinuousBiweight(Mapping):
    def __init__(self, quadrature: str = "auto") -> None: ...

class ContinuousSparsemax(Mapping):
    def __init__(self, quadrature: str = "auto") -> None: ...

class ContinuousMixture(Mapping):
    def __init__(self, max_components: int = 4) -> None: ...
