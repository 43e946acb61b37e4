"""Time training steps of a self-attention classifier over documents, by mapping and path, with their memory; write docs/reference/documents.md.

    --words      per review (default 400)                 --batch     reviews (default 16)
    --seconds    in total (default 60)                    --mappings  beside softmax (default: all with a fused kernel)
    --output     file with the page; - only prints

python scripts/bench_documents.py                     # the page: about two minutes on a quiet core
python scripts/bench_documents.py --mappings softmax sparsemax --words 200 --seconds 3 --output -
"""

import os

from _entry import ROOT, command


@command
def main(
    *, words: int = 400, batch: int = 16, seconds: float = 60.0, mappings: list[str] = (),
    output: str = str(ROOT / "docs/reference/documents.md"),
) -> None:  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    from benchmarks import commands

    commands.documents(words, batch, seconds, mappings, output)
