"""Draw a figure of a paper, as SVG and numbers: from the cells of a finished table, or from the mappings themselves.

    python scripts/figures.py FIGURE [EXPERIMENT] [--text TEXT [--with TEXT]] [--test 3,17] [--count 2] [--out FOLDER] [--png]
                              [profile=...] [seeds=2] ['rows=softmax|sparse*'] [columns=fren] [Hydra overrides of the run]
    python scripts/figures.py FIGURE|functions [--out FOLDER]     one that needs no cells, or all of them and their page
    python scripts/figures.py properties    print Table 1 of Laha et al. 2018, checked

    --text    your own text (may be repeated); --with: the second text of a pair, or the output forced on every row
    --test    numbers of test examples; --count: how many to draw (default 2). Without --text or --test: our sentence
    --out     folder (default: <paths.outputs>/figures/EXPERIMENT, or docs/results/figures); --png: also as PNG

Examples: python scripts/figures.py niculae2017_figure1
          python scripts/figures.py niculae2017_figure4 profile=cpu seeds=1 columns=fren --text "un homme joue de la guitare ."
          python scripts/figures.py martins2020_figure3 --count 6 --png; python scripts/figures.py laha2018_figure1 --out /tmp/figures
"""

from pathlib import Path

from _entry import ROOT, command


@command
def main(
    *names: str, overrides: list[str], text: list[str] = (), with_: list[str] = (), test: str = "", count: int = 2,
    out: Path | None = None, png: bool = False, help: bool = False,
) -> None:  # fmt: skip
    from tasks.config.files import check_name, values_in

    if names == ("properties",):
        from tasks.commands import properties

        print(properties.page(), end="")
    elif names and {*names} <= {"functions", *values_in("paper_figures")}:
        from tasks.draw import functions

        for made in functions.write_all([*{*names} - {"functions"}], out or ROOT / "docs/results/figures"):
            print(", ".join(map(str, made)))
    else:
        if not help:  # before torch is imported
            check_name(names[0] if 0 < len(names) < 3 else " ".join(names), "figure", "figures", "paper_figures")
            for other in names[1:]:
                check_name(other, "experiment", "experiment")
        from tasks.commands import figures

        if help:
            return print(figures.listed())
        options = figures.Options(overrides, count, test, text, with_, (".svg", ".png")[: 1 + png])
        files = figures.make(names, options, out)
        print(f"published: {figures.FIGURES[names[0]].published}\nfigures: {', '.join(map(str, files))}")
