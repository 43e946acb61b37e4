"""Time training steps of a self-attention classifier over documents, by mapping and path, with their memory; write docs/reference/documents.md.

    --words      per review (default 400)                 --batch     reviews (default 16)
    --turns      for each mapping and path (default 4)    --mappings  beside softmax (default: all with a fused kernel)
    --outputs    folder of the store; finished trainings of model=imdb_transformer_small there give the table of accuracy
    --output     file with the page; - only prints

python scripts/bench_documents.py --outputs outputs                   # the page: about two minutes on a quiet core
python scripts/bench_documents.py --mappings softmax sparsemax --words 200 --turns 3 --output -
"""

import os
from pathlib import Path

from _entry import ROOT, command


@command
def main(
    *, words: int = 400, batch: int = 16, turns: int = 4, mappings: list[str] = (), outputs: Path = Path("outputs"),
    output: str = str(ROOT / "docs/reference/documents.md"),
) -> None:  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    from benchmarks import commands

    commands.documents(words, batch, turns, mappings, outputs, output)
