"""Train a causal language model over 4,096 bytes with softmax, sparsemax and entmax 1.5; write docs/results/language_model.md.

    --only      rows to train: softmax, sparsemax, entmax15 (default: train all, then write the page)
    --page      train nothing; only measure speed and memory and write the page
    --seconds   processor time for training a row (default 600)   --turns   timed steps for each mapping (default 5)
    --root      folder of the data                                --output  folder for the page and its JSON

Examples: python scripts/language_model.py                                   # all three rows one after another, speed, memory, the page
          python scripts/language_model.py --only sparsemax --seconds 60     # one row; continues an earlier training
          python scripts/language_model.py --page --turns 9                  # speed, memory, the page of the trained rows
"""

import os
from pathlib import Path

from _entry import ROOT, command


@command
def main(
    *, only: list[str] = (), page: bool = False, seconds: float = 600, turns: int = 5,
    root: str = os.environ.get("SPARSE_ATTENTION_DATA", "data/cache"), output: Path = ROOT / "docs/results",
) -> None:  # fmt: skip
    from benchmarks import commands

    commands.language_model(only, page, seconds, turns, root, output)
