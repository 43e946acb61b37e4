"""Time the mappings against torch.softmax and other installed packages. Run by ``scripts/bench.py``."""

from benchmarks.continuous import (
    CONTINUOUS_CASES,
    ContinuousCase,
    ContinuousRow,
    markdown_continuous,
    measure_continuous,
)
from benchmarks.peers import peers
from benchmarks.structured import (
    STRUCTURED_CASES,
    StructuredCase,
    StructuredRow,
    markdown_structured,
    measure_structured,
)
from benchmarks.table import CASES, SHAPES, Case, Row, keep_freed_memory, markdown, measure

__all__ = [
    "CASES",
    "CONTINUOUS_CASES",
    "SHAPES",
    "STRUCTURED_CASES",
    "Case",
    "ContinuousCase",
    "ContinuousRow",
    "Row",
    "StructuredCase",
    "StructuredRow",
    "keep_freed_memory",
    "markdown",
    "markdown_continuous",
    "markdown_structured",
    "measure",
    "measure_continuous",
    "measure_structured",
    "peers",
]
