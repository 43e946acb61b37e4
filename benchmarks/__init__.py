"""Time the mappings, attention and training against torch and other packages. Run by ``scripts/bench.py``."""
