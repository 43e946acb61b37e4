"""Time sa.sparse_attention against torch's attention and the composition; write its section in docs/reference/benchmarks.md.

    --n             positions: 512, 1024, 4096, 8192 (default all)     --seconds   per case and direction (default 2)
    --no-memory     do not measure peak memory                         --no-decoding   skip one query on a long cache
    --trained       folder with the tensors of scripts/language_model.py (default data/cache/language_model)
    --output        file with the section (default docs/reference/benchmarks.md); - only prints

Examples: python scripts/bench_attention.py                                   # all: about ten minutes on a quiet core
          python scripts/bench_attention.py --n 512 --seconds .2 --no-memory --no-decoding --output -
          python scripts/bench_attention.py --n 4096 8192 --no-decoding --output /tmp/attention.md
"""

import os
from pathlib import Path

from _entry import ROOT, command

TRAINED = Path(os.environ.get("SPARSE_ATTENTION_DATA", "data/cache"), "language_model")


@command
def main(
    *, n: list[int] = (), seconds: float = 2.0, no_memory: bool = False, no_decoding: bool = False, trained: Path = TRAINED,
    output: str = str(ROOT / "docs/reference/benchmarks.md"),
) -> None:  # fmt: skip
    from benchmarks import commands

    commands.attention(n, seconds, not no_memory, not no_decoding, trained, output)
