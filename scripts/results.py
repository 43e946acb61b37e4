"""Write docs/results (tables, pages, pictures) and docs/claims.md again, from their records and the code.

    python scripts/results.py                       half a minute; records that contradict their examples are rejected
    python scripts/results.py [EXPERIMENT ...] [sweep=NAME] [profile=demo|cpu|gpu|paper] [seeds=1,2] [paths.outputs=FOLDER]
                              [the other arguments with which the table was made] [from=FOLDER] [to=FOLDER]

    EXPERIMENT   first write the small records of its finished cells: {to}/records/EXPERIMENT_PROFILE.jsonl
    sweep        first write the records of a sweep of scripts/train.py -m: {to}/records/sweep_NAME.jsonl
    --claims     only test the papers' claims (configs/claims) on the records in {to}: prints the outcome, effect, 95 % interval,
                 number of seeds and power of each, and writes <outputs>/claims.json; docs/claims.md shows them with pictures
    from         a folder with records of the same tables from another machine (scripts/on_gpu.sh), which are added
    to           the folder of the records and pages (docs/results)

Records have scores, versions and per-example scores, but no weights and no texts. A cell that is not in the store keeps
its earlier record. No data are read. docs/reference/results.md says what is written and what is made by hand.

Examples: python scripts/results.py laha2018_table2 seeds=1,2
          python scripts/results.py niculae2017_table1 martins2020_table1 profile=cpu
          python scripts/results.py laha2018_table2 paths.outputs=/data/outputs to=/data/results
Next: git diff docs/results; python scripts/reproduce.py EXPERIMENT records=docs/results prints a table from its records
"""

import gc
from pathlib import Path

from _entry import ROOT, command


@command
def main(
    *names: str, overrides: list[str], sweep: str = "", from_: Path | None = None, to: Path = ROOT / "docs/results",
    claims: bool = False,
) -> int:  # fmt: skip
    if claims:
        from tasks.commands import claims as tested

        return tested.write(to.resolve())
    from benchmarks.language_model import report
    from benchmarks.length import report as length
    from tasks.commands import records, results
    from tasks.config.request import REPRODUCE, Request

    if (overrides or from_) and not (names or sweep):
        raise ValueError("name an experiment, or sweep=NAME; python scripts/reproduce.py lists the experiments")
    gc.set_threshold(1_000_000)  # the scores of all test examples are millions of small objects without cycles
    given = [*overrides, *([f"sweep={sweep}"] if sweep else [])]
    status = records.write(Request.read(given, (*REPRODUCE, "sweep"), names), to.resolve(), from_)
    return status or results.write(to.resolve(), {"language_model": report.page, "length": length.page})
