"""Translation and summarization: encoding of text pairs, models in plain torch, beam search, and text metrics."""
