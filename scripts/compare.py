"""Finished cells side by side, from the store alone: one row a setting, mean ± sd over seeds, zeros, support, scores; plots.

    python scripts/compare.py [FILTER ...] [to=FOLDER] [paths.outputs=FOLDER]

    FILTER   task=toy  mapping=fusedmax,sparsemax  seed=1,2  profile=demo  data=multi30k  mapping.lam=0.1  optim.lr=0.01
             any key of a configuration; several values with commas
             experiment=NAME   the cells of an experiment       sweep=NAME   those of a sweep
    to       where the files go (default: outputs/compare/<filters>; of a sweep alone: its own folder)

Examples: python scripts/compare.py task=toy; python scripts/compare.py task=translation mapping=fusedmax,sparsemax profile=demo;
          python scripts/compare.py experiment=laha2018_table2 to=outputs/laha

Cells of other data, profiles or recipes are rows of their own and never averaged.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when there is nothing to compare, 2 for filters that are not possible."""
    from repro.store import StoreError
    from repro.tables.compare import FilterError
    from tasks.commands import compare
    from tasks.config import overrides

    if wrong := [a for a in arguments if "=" not in a]:
        print(__doc__, file=sys.stdout if {"-h", "--help"} & set(wrong) else sys.stderr)
        return 0 if {"-h", "--help"} & set(wrong) else 2
    try:
        return compare.main(dict(a.split("=", 1) for a in arguments))
    except (FilterError, overrides.ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (StoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
