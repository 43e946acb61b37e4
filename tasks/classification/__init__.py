"""Classification of texts: sentiment (one text an example), entailment (two)."""
