"""Timing the mappings against torch.softmax and against what else can be installed. Run it by ``scripts/bench.py``."""

from .continuous import CONTINUOUS_CASES, ContinuousCase, ContinuousRow, markdown_continuous, measure_continuous
from .peers import peers
from .table import CASES, SHAPES, Case, Row, markdown, measure

__all__ = [
    "CASES",
    "CONTINUOUS_CASES",
    "SHAPES",
    "Case",
    "ContinuousCase",
    "ContinuousRow",
    "Row",
    "markdown",
    "markdown_continuous",
    "measure",
    "measure_continuous",
    "peers",
]
