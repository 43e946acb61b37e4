"""Write the reproducibility summary of an experiment: scope, what was reproduced, easy, hard, deviations, cost.

    python scripts/summary.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|paper] [the arguments of its table]
                              [records=FOLDER]

    records   from the small records in FOLDER/records (docs/results has ours) instead of the store

Examples: python scripts/summary.py laha2018_table2 seeds=1,2
          python scripts/summary.py niculae2017_table1 profile=cpu records=docs/results
          python scripts/summary.py laha2018_table2 niculae2017_table2 paths.outputs=/data/outputs
Every sentence is a fact of the table and of the cells behind it; nothing is run, no data are read.
"""

import sys
from pathlib import Path

from _entry import command


@command
def main(experiment: str, *more: str, overrides: list[str], records: Path | None = None) -> None:
    from tasks.commands.summary import summarize

    for name in (experiment, *more):
        text, path = summarize(name, overrides, records and records.resolve())
        print(f"{text}\nsummary: {path}")


if __name__ == "__main__":
    sys.exit(main())
