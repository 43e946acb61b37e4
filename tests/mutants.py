"""Mutation testing: change one line of the code at a time and check that a test fails.

    python tests/mutants.py [--seed 1] [--n 200] [--workers 1] [--seconds 40] [--only TEXT] [--output FOLDER]

    --only     mutants whose `file:line` or text contains TEXT           --output   (default outputs/mutants)

Examples: python tests/mutants.py --n 40; python tests/mutants.py --seed 7 --workers 2; python tests/mutants.py --only rouge.py

A mutant is tested with the twelve nearest test files that import its module, in a copy of the repository, for up to
--seconds of processor time. It is killed if a test hangs, or fails although it passes without the mutant. Survivors
need a new test; a mutant that is equivalent to the original goes into tests/equivalent_mutants.txt with the reason and
is not counted. After an interruption, run the same command to continue; survivors are tested again. Exit status 1 if
fewer than 85 % are killed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tasks.commands.entry import command  # noqa: E402


@command
def main(
    *,
    seed: int = 1,
    n: int = 200,
    workers: int = 1,
    seconds: float = 40.0,
    only: str = "",
    output: Path = ROOT / "outputs/mutants",
) -> int:
    import mutation_runner

    return mutation_runner.tried(ROOT, seed, n, workers, seconds, only, output.resolve())
