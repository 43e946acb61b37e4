"""Time every mapping against torch.softmax and other installed packages; write docs/reference/benchmarks.md.

    --only       beginnings of labels, or names of mappings, separated by commas
    --shapes     rows x length, e.g. 1280x30,64x32000  --seconds  per shape and direction (default 2)
    --no-peers   leave out other packages              --threads  torch threads (default 1; more only if idle)
    --output     file to write (default docs/reference/benchmarks.md); - only prints
    --check      instead, compare rows, attention and a training step with the ratios of this instruction set in
                 benchmarks/gate.json; fail if one is 15 % slower in every try. --record writes the ratios first

Rows are timed on the GPU if there is one. To time the CPU there: CUDA_VISIBLE_DEVICES= python scripts/bench.py

Examples: python scripts/bench.py                                                      # the whole page: about ten minutes
          python scripts/bench.py --only sparsemax,top_k --no-peers --output -         # two mappings; no page is written
          python scripts/bench.py --check --only rows,training --seconds .4            # a part of the check
"""

import os

from _entry import ROOT, command


@command
def main(
    *, only: str = "", shapes: str = "", seconds: float = 2.0, threads: int = 1, no_peers: bool = False,
    output: str = str(ROOT / "docs/reference/benchmarks.md"), check: bool = False, record: bool = False,
) -> int | None:  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is imported
    from benchmarks import commands, gate

    if check or record:
        return gate.run(only.split(","), seconds, record)
    return commands.mappings(only, shapes, seconds, threads, not no_peers, output)
