"""Entailment between two sentences: SNLI (Bowman et al. 2015); BoolQ stands in for it in the demo."""

from tasks import lazy

__getattr__ = lazy("tasks.classification.run")
