"""Timing the mappings against torch.softmax and against what else can be installed. Run it by ``scripts/bench.py``."""

from .peers import peers
from .table import CASES, SHAPES, Case, Row, markdown, measure

__all__ = ["CASES", "SHAPES", "Case", "Row", "markdown", "measure", "peers"]
