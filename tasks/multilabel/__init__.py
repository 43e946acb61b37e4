"""Multilabel classification with a linear model and a sparse output mapping (Laha et al. 2018, section 5.1)."""
