"""Print Table 1 of Laha et al. 2018, the properties of each mapping, with every entry checked numerically.

    python scripts/properties_table.py [--classes K] [--lam .5] [--q .4]
                                       K: length of the rows used for the checks
                                       lam: for sparsegen; q: for sparsecone and sparsehourglass

Examples: python scripts/properties_table.py
          python scripts/properties_table.py --classes 3
          python scripts/properties_table.py --lam .2 --q 1
"""

from _entry import command


@command
def main(*, classes: int = 5, lam: float = 0.5, q: float = 0.4) -> None:
    from tasks.commands.properties import page

    if classes < 2 or lam >= 1 or lam == 0 or q <= 0:
        raise ValueError(
            f"--classes {classes} --lam {lam} --q {q}: needs classes >= 2, lam < 1 and not 0 (0 is sparsemax), q > 0"
        )
    print(page(classes, lam, q), end="")
