"""What translation and summarization share: corpora, encoding, text metrics."""
