"""Time training and beam search of every mapping against softmax; write docs/reference/benchmarks.md.

    --models     as in docs/reference/benchmarks.md (default all)   --mappings   (default: all that need only scores)
    --turns      for each implementation (default 40)     --device     cpu or cuda
    --words      vocabulary size (default 2000)           --batch      sentences (default 32)
    --threads    torch threads (default 1)                --output     file with the section; - only prints

python scripts/bench_training.py                      # all: about twenty minutes on a quiet core
python scripts/bench_training.py --mappings sparsemax --output -
python scripts/bench_training.py --models 'LSTM 128' --mappings sparsemax entmax --turns 5 --output -
"""

import os
from typing import Literal

from _entry import ROOT, command


@command
def main(
    *, models: list[str] = (), mappings: list[str] = (), turns: int = 40, device: Literal["cpu", "cuda"] = "cpu", threads: int = 1,
    words: int = 2000, batch: int = 32, output: str = str(ROOT / "docs/reference/benchmarks.md"),
) -> None:  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is imported
    from benchmarks import commands

    commands.training(models, mappings, turns, device, threads, words, batch, output)
