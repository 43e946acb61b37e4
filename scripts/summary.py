"""Write the reproducibility summary of an experiment: scope, results, what was easy or hard, deviations, cost.

    python scripts/summary.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|paper] [the arguments of its table]
                              [records=FOLDER]

    records   use the small records in FOLDER/records (docs/results has ours) instead of the store

Examples: python scripts/summary.py laha2018_table2 seeds=1,2
          python scripts/summary.py niculae2017_table1 profile=cpu records=docs/results
          python scripts/summary.py laha2018_table2 niculae2017_table2 paths.outputs=/data/outputs
Every sentence states a fact from the table or its cells; nothing is run, and no data are read.
"""

from pathlib import Path

from _entry import command


@command
def main(experiment: str, *more: str, overrides: list[str], records: Path | None = None) -> None:
    from tasks.commands.summary import summarize

    for name in (experiment, *more):
        text, path = summarize(name, overrides, records and records.resolve())
        print(f"{text}\nsummary: {path}")
