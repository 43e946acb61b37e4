"""Change one line of the product at a time and see which tests notice.

    python scripts/mutants.py [--seed 1] [--n 200] [--workers 1] [--seconds 40] [--output FOLDER]

Examples: python scripts/mutants.py --n 40; python scripts/mutants.py --seed 7 --workers 2; python scripts/mutants.py --only rouge.py

A mutant is tried by the twelve nearest test files that import its module, in a copy of the tree, for up to --seconds of
processor time. Killed: a test fails, which passes without the mutant, or hangs. Survivors need a test; a mutant that nobody can tell
from the original goes to tests/equivalent_mutants.txt with the reason and is not counted. Interrupted, the same command continues;
survivors are tried again. Exit status 1 below 85 % killed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
GOAL = 0.85


def main() -> int:
    """Exit status: 0 when at least 85 % were killed, 1 otherwise."""
    import mutation
    import mutation_runner

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default 1)")
    parser.add_argument("--n", type=int, default=200, help="lines to change (default 200)")
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time (default 1)")
    parser.add_argument("--seconds", type=float, default=40.0, help="of processor time for a mutant (default 40)")
    parser.add_argument("--only", default="", help="mutants whose `file:line` or text contains this")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / "mutants", help="default outputs/mutants")
    given = parser.parse_args()

    folder = given.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f"seed{given.seed}.jsonl"
    chosen = mutation.sample(ROOT, given.n, given.seed, given.only)
    equivalent = mutation.equivalent(ROOT)
    counted = [m for m in chosen if m.key not in equivalent]
    results = mutation_runner.read(record)
    left = [m for m in counted if results.get(m.key, {}).get("state", "survived") == "survived"]
    mutation_runner.run(ROOT, folder, given.seconds, given.workers, left, record)

    results = mutation_runner.read(record)
    done = [(m, results[m.key]) for m in counted if m.key in results]
    for mutant, result in sorted(done, key=lambda pair: (pair[1]["state"], pair[0].path, pair[0].line)):
        said = f"{mutant.path}:{mutant.line}  {mutant.before}  ->  {mutant.after}"
        print(f"{result['state']:9}  {said}{result['by'] and '  by ' + result['by']}")
    killed = sum(result["state"] != "survived" for _, result in done)
    print(f"{killed} of {len(done)} killed ({killed / max(len(done), 1):.1%}); {len(chosen) - len(counted)} equivalent")
    (folder / f"seed{given.seed}.json").write_text(json.dumps([result for _, result in done], indent=1))
    print("next: a test for each survivor, then the same command again")
    return int(killed < GOAL * len(done))


if __name__ == "__main__":
    sys.exit(main())
