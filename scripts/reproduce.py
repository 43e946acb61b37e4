"""Run the cells of an experiment that are not finished, and print its table next to the published numbers.

    python scripts/reproduce.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|gpu|paper] [seeds=1,2,3] ['rows=softmax|csparse*']
                  [columns=fren] [add=MAPPING,key=value] [records=FOLDER] [lease=FOLDER minutes=N] [Hydra overrides] [--plan]
    python scripts/reproduce.py                       list the experiments

    profile   size of the experiment (default demo)          seeds   seeds to run (default: those of the experiment)
    rows      only some rows, by label; columns: only some columns, by name or label; | separates several, * is anything
    add       a further row: a mapping from configs/mapping, or one registered by plugins=[FILE.py]; may be repeated;
              add=oscarmax,lam=[0.01,0.1]: several points (one row with the best of them if every column selects on dev)
    records   tables and reports from the small records of their cells in FOLDER/records (docs/results has ours); runs nothing
    lease     run what ends within N minutes, and keep its records in FOLDER; cells recorded there are done (scripts/on_gpu.sh)
    --plan    print how many cells there are, how many are done, and the hours for the rest; reads no data, runs nothing
    --help    with add=NAME or mapping=NAME: also the parameters of that mapping

Examples: python scripts/reproduce.py niculae2017_table2 seeds=1,2,3 add=entmax,alpha=1.5 runtime.workers=2 --plan
          python scripts/reproduce.py demo data=files data.path=mine data.source_lang=fr data.target_lang=en
Finished cells are never run again, and a cell that was killed resumes. Ctrl-C is safe.
"""

from pathlib import Path

from _entry import command


@command
def main(*names: str, overrides: list[str], records: Path | None = None, plan: bool = False, help: bool = False) -> int:
    from tasks.commands import reproduce
    from tasks.config.files import names_in
    from tasks.config.request import REPRODUCE, Request

    request = Request.read(overrides, REPRODUCE, names, plan)
    if overrides and not names and not help:
        raise ValueError(f"EXPERIMENT is missing; write one without a key: {', '.join(names_in('experiment'))}")
    if help or not names:
        print("" if help else __doc__)
        reproduce.describe(request)
        return 0
    if records:
        from tasks.commands.records import show

        return show(request, records.resolve())
    if request.lease and not plan:
        from tasks.commands import lease

        return lease.main(request)
    return reproduce.plan(request) if plan else reproduce.main(request)
