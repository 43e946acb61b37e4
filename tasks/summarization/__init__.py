"""Sentence summarization."""
