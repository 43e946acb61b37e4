"""Architectures of the multilabel task; the linear model is the only one."""
