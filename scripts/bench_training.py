"""Time training and beam search of every mapping against softmax, and softmax against plain loops; write docs/benchmarks.md.

python scripts/bench_training.py                      # all: about twenty minutes on a quiet core
python scripts/bench_training.py --mappings fusedmax --output -
python scripts/bench_training.py --models 'LSTM 128' --mappings sparsemax fusedmax --turns 5 --output -
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="by default all")
    parser.add_argument("--mappings", nargs="+", help="by default all that need nothing but scores")
    parser.add_argument("--turns", type=int, default=40, help="of each contestant (default 40)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--words", type=int, default=2000, help="of the vocabulary (default 2000)")
    parser.add_argument("--batch", type=int, default=32, help="sentences (default 32)")
    parser.add_argument(
        "--output", default=str(ROOT / "docs" / "benchmarks.md"), help="page with the section, - for none"
    )
    choice = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(choice.threads)

    import torch

    import tasks.fairseq_plugin  # noqa: F401  registers the models
    from benchmarks import throughput
    from repro.store import provenance

    torch.set_num_threads(choice.threads)
    known = throughput.names()
    wanted, chosen = choice.mappings or known, choice.models or list(throughput.MODELS)
    if unknown := [m for m in wanted if m not in known] + [m for m in chosen if m not in throughput.MODELS]:
        parser.error(
            f"{', '.join(unknown)} cannot be timed; there are {', '.join(known)}; {'; '.join(throughput.MODELS)}"
        )
    sizes = throughput.Sizes(words=choice.words, batch=choice.batch)
    machine = provenance.collect()["machine"]
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            others = [m for m in wanted if m != "softmax"]
            tables += throughput.measure(
                model, others, sizes, Path(folder), choice.device, choice.turns, lambda text: print(text, file=sys.stderr, flush=True)
            )  # fmt: skip
    where = machine["gpu"] if choice.device == "cuda" else machine["cpu"]
    section = throughput.markdown(tables, sizes, choice.device, where or platform.machine())
    print(section)
    if choice.output != "-":
        page = Path(choice.output)
        page.write_text(throughput.with_section(page.read_text() if page.exists() else "# Benchmarks\n", section))
        print(f"Written to {page}. Compare with `git diff {page}`.", file=sys.stderr)


if __name__ == "__main__":
    main()
