"""Compare finished cells of the store: a table (one row per setting, mean ± sd over seeds), plots, a page with filters.

    python scripts/compare.py [FILTER ...] [to=FOLDER] [paths.outputs=FOLDER]

    FILTER   task=toy  mapping=entmax,sparsemax  seed=1,2  profile=demo  data=multi30k  mapping.alpha=1.5  optim.lr=0.01
             any configuration key; several values are separated by commas
             experiment=NAME   the cells of an experiment       sweep=NAME   the cells of a sweep
    to       folder for the files (default: outputs/compare/<filters>; for a single sweep: its own folder)

Examples: python scripts/compare.py                           all cells: outputs/compare/all/dashboard.html
          python scripts/compare.py task=toy; python scripts/compare.py task=translation mapping=entmax,sparsemax profile=demo;
          python scripts/compare.py experiment=laha2018_table2 to=outputs/laha

Cells with different data, profiles or recipes are in separate rows and are never averaged.
"""

from _entry import command


@command
def main(*, overrides: list[str]) -> int:
    from tasks.commands import compare
    from tasks.config.request import Request

    return compare.main(Request.read(overrides))
