"""Time every mapping against torch.softmax and other installed packages; write docs/reference/benchmarks.md.

    --only       beginnings of labels, or names of mappings, separated by commas
    --shapes     rows x length, e.g. 1280x30,64x32000  --seconds  per shape and direction (default 2)
    --no-peers   leave out other packages              --threads  torch threads (default 1; more only if idle)
    --output     file to write (default docs/reference/benchmarks.md); - only prints

Examples: python scripts/bench.py                                                      # the whole page: about ten minutes
          python scripts/bench.py --seconds .2 --only sparsemax --shapes 1280x30 --output -
          python scripts/bench.py --only sparsemax,top_k --no-peers --output -         # two mappings; no page is written
"""

import os

from _entry import ROOT, command


@command
def main(
    *, only: str = "", shapes: str = "", seconds: float = 2.0, threads: int = 1, no_peers: bool = False,
    output: str = str(ROOT / "docs/reference/benchmarks.md"),
) -> None:  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is imported
    from benchmarks import commands

    commands.mappings(only, shapes, seconds, threads, not no_peers, output)
