"""A torchaudio that does not load (built for another CUDA than torch) would keep transformers from importing any model."""

import sys

try:
    import torchaudio  # noqa: F401
except (ImportError, OSError, RuntimeError):
    sys.modules["torchaudio"] = None  # type: ignore[assignment]
