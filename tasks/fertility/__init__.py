"""Tagging source words with their fertilities: the tagger and its metrics; the data come from `tasks.seq2seq`."""
