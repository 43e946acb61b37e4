"""Translation and summarization: from pairs of texts to ids, plain torch models, beam search, scores of texts."""
