"""Test the library on this machine's GPU, in parts of less than ten minutes each; write the results; see docs/reference/gpu.md.

    python scripts/gpu_proof.py collect|kernels|training|table [options] [overrides of scripts/reproduce.py, for table]

    --wheels    folder of wheels (made by collect); --versions: Python versions to collect for (default 3.11 3.12)
    --device    cuda or cpu (default: cuda if there is a GPU); --toy: use the smallest sizes (always on a CPU)
    --table     an experiment (default: first with data here); --results: folder for pages, cells (default outputs/gpu)

Examples: python scripts/gpu_proof.py collect --wheels wheels --versions 3.11      # with a network and .venv: make gpu-wheels
          python scripts/gpu_proof.py kernels --wheels wheels                      # with a GPU and torch: make gpu-proof PART=kernels
          python scripts/gpu_proof.py training --device cpu --toy
          python scripts/gpu_proof.py table --table laha2018_table3 columns=yeast
"""

from pathlib import Path
from typing import Literal

from _entry import ROOT, command


@command
def main(
    part: Literal["collect", "kernels", "training", "table"], *, overrides: list[str], wheels: Path | None = None,
    versions: list[str] = ("3.11", "3.12"), device: Literal["cuda", "cpu"] | None = None, toy: bool = False, table: str | None = None,
    results: Path = ROOT / "outputs/gpu",
) -> int:  # fmt: skip
    from benchmarks import wheels as collected

    if part == "collect":
        return collected.collect(wheels or ROOT / "wheels", versions)
    if wheels:
        collected.use(wheels)
    from benchmarks import gpu_proof

    return gpu_proof.main(part, device, toy, results, table, overrides)
