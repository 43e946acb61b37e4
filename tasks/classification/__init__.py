"""Text classification: sentiment (one text per example) and entailment (two texts per example)."""
