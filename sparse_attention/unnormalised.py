"""Moved: alpha-ReLU and group-wise sparsemax are mappings of the registry, ``sa.names("unnormalised")``."""

from .moved import moved

__getattr__ = moved(
    __name__, {name: f"sparse_attention.{name}" for name in ("alpha_relu", "group_sparsemax")}, gone="0.3.0"
)
