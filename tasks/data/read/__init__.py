"""Readers of the published formats: text, tables, JSON and parallel files; and splitting by content."""
