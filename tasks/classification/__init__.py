"""What the classification tasks (sentiment, entailment) share: labelled texts, their encoding, one cell's run."""
