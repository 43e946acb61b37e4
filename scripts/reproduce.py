"""Run the cells an experiment still lacks and print its table beside the published one.

    python scripts/reproduce.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|paper] [seeds=1,2,3] ['rows=softmax|csparse*']
                                [columns=fren] [add=MAPPING,key=value] [records=FOLDER] [Hydra overrides] [--plan]
    python scripts/reproduce.py                       list the experiments

    profile   how large (default demo)          seeds   which seeds (default: the experiment's)
    rows      a part of the rows, by label; columns: of the columns, by name or label; | between several, * for anything
    add       a further row: a mapping of configs/mapping, or one registered by plugins=[FILE.py]; may be repeated;
              add=fusedmax,lam=[0.01,0.1]: several points (where every column selects on dev: one row, the best of them)
    records   print the tables from the small records of their cells in FOLDER/records (docs/results has ours); runs nothing
    --plan    print how many cells there are, how many are done, and the hours of the others; reads no data, runs nothing
    --help    with add=NAME or mapping=NAME: the parameters of that mapping too

Examples: python scripts/reproduce.py niculae2017_table2 seeds=1,2,3 add=entmax,alpha=1.5 runtime.workers=2
          python scripts/reproduce.py laha2018_table2 martins2020_table2 profile=cpu --plan
          python scripts/reproduce.py demo data=files data.path=mine data.source_lang=fr data.target_lang=en
Finished cells are never run again; a killed one resumes. Ctrl-C is safe.
"""

import sys
from pathlib import Path

from _entry import command


@command
def main(*names: str, overrides: list[str], records: Path | None = None, plan: bool = False, help: bool = False) -> int:
    from tasks.commands import recorded, reproduce

    if help or not names:
        print("" if help else __doc__)
        reproduce.describe(overrides)
        return 2 if overrides and not help else 0
    return recorded.show(names, overrides, records.resolve()) if records else reproduce.main(names, overrides, plan)


if __name__ == "__main__":
    sys.exit(main())
