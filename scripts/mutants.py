"""Change one line of the product at a time and see which tests notice.

    python scripts/mutants.py [--seed 1] [--n 200] [--workers 1] [--seconds 40] [--only TEXT] [--output FOLDER]

    --only     mutants whose `file:line` or text contains TEXT           --output   (default outputs/mutants)

Examples: python scripts/mutants.py --n 40; python scripts/mutants.py --seed 7 --workers 2; python scripts/mutants.py --only rouge.py

A mutant is tried by the twelve nearest test files that import its module, in a copy of the tree, for up to --seconds of
processor time. Killed: a test fails, which passes without the mutant, or hangs. Survivors need a test; a mutant that nobody can tell
from the original goes to tests/equivalent_mutants.txt with the reason and is not counted. Interrupted, the same command continues;
survivors are tried again. Exit status 1 below 85 % killed.
"""

import sys
from pathlib import Path

from _entry import ROOT, command


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
    sys.path.insert(0, str(ROOT / "tests"))
    import mutation_runner

    return mutation_runner.tried(ROOT, seed, n, workers, seconds, only, output.resolve())


if __name__ == "__main__":
    sys.exit(main())
