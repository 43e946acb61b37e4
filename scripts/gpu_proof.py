"""Prove this machine's GPU part by part, each in less than ten minutes, and write what came out; docs/gpu.md.

Examples: python scripts/gpu_proof.py collect --wheels wheels --versions 3.11      # where there is a network and .venv: make gpu-wheels
          python scripts/gpu_proof.py kernels --wheels wheels                       # where there is a GPU and torch: make gpu-proof PART=kernels
          python scripts/gpu_proof.py training --device cpu --toy                   # the smallest sizes, without a GPU
          python scripts/gpu_proof.py table --table laha2018_table3 columns=yeast

Options after `table` of the form key=value go to scripts/reproduce.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("collect", "kernels", "training", "table"))
    parser.add_argument("rest", nargs="*", help="with table: overrides")
    parser.add_argument("--wheels", type=Path, help="folder of wheels (made by collect)")
    parser.add_argument("--versions", nargs="+", default=["3.11", "3.12"], help="of Python to collect for")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes (always on a CPU)")
    parser.add_argument("--table", help="an experiment; default: the first whose data are here")
    parser.add_argument("--results", type=Path, default=ROOT / "outputs" / "gpu", help="docs/results/gpu to keep them")
    parser.add_argument(
        "--outputs", type=Path, default=ROOT / "outputs" / "gpu" / "cells", help="store of the table's cells"
    )
    choice = parser.parse_intermixed_args()
    from benchmarks import wheels

    if choice.part == "collect":
        return wheels.collect(choice.wheels or ROOT / "wheels", choice.versions)
    if choice.wheels:
        wheels.use(choice.wheels)
    from benchmarks import gpu_proof

    page, wrong = gpu_proof.run(
        choice.part, choice.device, choice.toy, choice.results, choice.outputs, choice.table, choice.rest
    )
    print(
        page.read_text(encoding="utf-8").split("\n", 1)[0],
        f"Written to {page}.",
        *(f"FAILED: {one}" for one in wrong),
        sep="\n",
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
