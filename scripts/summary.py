"""Write the reproducibility summary of an experiment: scope, what was reproduced, easy, hard, deviations, cost.

    python scripts/summary.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|paper] [the arguments of its table]
                              [records=FOLDER]

    records   from the small records in FOLDER/records (docs/results has ours) instead of the store

Examples: python scripts/summary.py laha2018_table2 seeds=1,2
          python scripts/summary.py niculae2017_table1 profile=cpu records=docs/results
          python scripts/summary.py laha2018_table2 niculae2017_table2 paths.outputs=/data/outputs
Every sentence is a fact of the table and of the cells behind it; nothing is run, no data are read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 for damaged cells or missing records, 2 for arguments that are not possible."""
    names = [a for a in arguments if "=" not in a and not a.startswith("-")]
    if not names or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    from repro.store import StoreError
    from tasks.commands import reproduce
    from tasks.commands.summary import summarize

    folder = [Path(a.removeprefix("records=")).resolve() for a in arguments if a.startswith("records=")]
    overrides = [a for a in arguments if a not in names and not a.startswith("records=")]
    try:
        for name in names:
            text, path = summarize(name, overrides, folder[-1] if folder else None)
            print(f"{text}\nsummary: {path}")
    except (StoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
