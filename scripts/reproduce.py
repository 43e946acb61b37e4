"""Run the cells an experiment still lacks and print its table beside the published one.

    python scripts/reproduce.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|paper] [seeds=1,2,3] ['rows=softmax|csparse*']
                                [columns=fren] [add=MAPPING,key=value] [records=FOLDER] [Hydra overrides] [--plan]
    python scripts/reproduce.py                       list the experiments

    profile   how large (default demo)          seeds   which seeds (default: the experiment's)
    rows      a part of the rows, by their labels  columns   a part of the columns, by name or label; | between, * for anything
    add       a further row: a mapping of configs/mapping, or one registered by plugins=[FILE.py]; may be repeated;
              add=fusedmax,lam=[0.01,0.1]: several points (where every column selects on dev: one row, the best of them)
    records   print the tables from the small records of their cells in FOLDER/records (docs/results has ours); runs nothing
    --plan    say how many cells there are, how many are done, and the hours of the others; reads no data, runs nothing
    --help    with add=NAME or mapping=NAME: the parameters of that mapping too

Examples: python scripts/reproduce.py niculae2017_table2 seeds=1,2,3 add=entmax,alpha=1.5 runtime.workers=2
          python scripts/reproduce.py laha2018_table2 martins2020_table2 profile=cpu --plan
          python scripts/reproduce.py demo data=files data.path=mine data.source_lang=fr data.target_lang=en
Finished cells are never run again; a killed one resumes. Ctrl-C is safe.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    from repro.store import StoreError
    from tasks.commands import recorded, reproduce

    names = [a for a in arguments if "=" not in a and not a.startswith(("-", "+", "~"))]
    overrides = [a for a in arguments if a not in names]
    if not names or "--help" in overrides or "-h" in overrides:
        print(__doc__)
        if "--help" in overrides or "-h" in overrides:
            from tasks.config import pages

            print(pages.parameters(overrides), end="\n\n")
        print("experiments:")
        for name, title in reproduce.experiments().items():
            print(f"  {name:24s} {title}")
        return 2 if overrides and not {"--help", "-h"} & set(overrides) else 0
    try:
        if kept := [a.removeprefix("records=") for a in overrides if a.startswith("records=")]:
            rest = [a for a in overrides if not a.startswith("records=")]
            return recorded.show(names, rest, Path(kept[-1]).resolve())
        return reproduce.main(names, overrides)
    except (StoreError, OSError) as error:  # a folder that cannot be written, a full disk
        print(f"error: {error}", file=sys.stderr)
        return 1
    except reproduce.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("stopped before anything was run", file=sys.stderr)
        sys.exit(130)
