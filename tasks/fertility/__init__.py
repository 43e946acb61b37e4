"""Tagging source words with their fertilities: data from `tasks.seq2seq`, the tagger, scores."""
