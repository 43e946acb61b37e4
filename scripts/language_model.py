"""Train a causal language model over 4,096 bytes with softmax, sparsemax and entmax 1.5; write docs/results/language_model.md.

Examples: python scripts/language_model.py                                   # all three rows one after another, speed, memory, the page
          python scripts/language_model.py --only sparsemax --seconds 60     # a row alone, from where it stopped
          python scripts/language_model.py --page --turns 9                  # of the rows that were trained: speed, memory, the page
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", help="rows to train: softmax, sparsemax, entmax15 (default: all, then the page)"
    )
    parser.add_argument("--page", action="store_true", help="train nothing: measure speed and memory, write the page")
    parser.add_argument(
        "--seconds", type=float, default=600, help="processor time of a row's training steps (default 600)"
    )
    parser.add_argument("--turns", type=int, default=5, help="timed steps of each mapping (default 5)")
    parser.add_argument(
        "--root", default=os.environ.get("SPARSE_ATTENTION_DATA", "data/cache"), help="folder of the data"
    )
    parser.add_argument("--output", default=str(ROOT / "docs" / "results"), help="folder of the page and its JSON")
    choice = parser.parse_args()

    import torch

    from benchmarks.language_model import data, measure, training
    from tasks.data import DataError

    torch.set_num_threads(1)
    if unknown := set(choice.only or ()) - set(training.MAPPINGS):
        parser.error(f"{', '.join(sorted(unknown))} is no row; there are {', '.join(training.MAPPINGS)}")
    folder = Path(choice.root) / "language_model"
    try:
        text, dev, source = data.texts(choice.root)
    except DataError as error:
        sys.exit(str(error))
    folder.mkdir(parents=True, exist_ok=True)
    for name in () if choice.page else choice.only or training.MAPPINGS:
        options = training.Options(name, seconds=choice.seconds)
        say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        model, record = training.train(options, text, dev, source, folder, say)
        training.keep_tensors(model, dev, options, folder)
        (folder / f"{name}.json").write_text(json.dumps(asdict(record)))
    if choice.only and not choice.page:
        print("Next: python scripts/language_model.py --page")
    else:
        print(f"Written to {measure.write(folder, dev, choice.turns, Path(choice.output))}")


if __name__ == "__main__":
    main()
