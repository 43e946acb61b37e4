"""Architectures of the multilabel task: there is one, the linear model."""
