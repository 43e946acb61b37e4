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

import sys

from _entry import command


@command
def main(*, overrides: list[str]) -> int:
    from tasks.commands import compare

    return compare.main(dict(one.partition("=")[::2] for one in overrides))


if __name__ == "__main__":
    sys.exit(main())
