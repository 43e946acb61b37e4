"""Write the small records of a table's finished cells, which suffice to print and check the table.

    python scripts/records.py sweep=NAME [paths.outputs=FOLDER] [to=docs/results]         the table of a sweep of scripts/train.py -m
    python scripts/records.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|paper] [seeds=1,2] [paths.outputs=FOLDER]
                              [the other arguments with which the table was made] [to=docs/results]

The records are written to <to>/records/EXPERIMENT_PROFILE.jsonl: scores, versions and per-example scores, but no
weights and no texts. A cell that is not in the store keeps its earlier record. No data are read. `python
scripts/verify.py` checks the pages of docs/results against the records, with `--write` it puts the tables into the
pages, and `python scripts/reproduce.py EXPERIMENT records=docs/results` prints a table from its records.

Examples: python scripts/records.py laha2018_table2 seeds=1,2
          python scripts/records.py niculae2017_table1 martins2020_table1 profile=cpu
          python scripts/records.py laha2018_table2 paths.outputs=/data/outputs to=/data/results
"""

from pathlib import Path

from _entry import ROOT, command


@command
def main(*names: str, overrides: list[str], sweep: str = "", to: Path = ROOT / "docs/results") -> int:
    from tasks.commands import recorded

    return recorded.write(names, overrides, sweep, to.resolve())
