"""Check the tables, files and records of docs/results, and README's quotes of them, against records, code, checksums.

    python scripts/verify.py                       check (a minute); exit status 1 if something differs
    python scripts/verify.py --write               write what follows from records and code, renew its checksums, then check
    python scripts/verify.py --write accept='records/*'      accept that these measured files have changed, on purpose
    python scripts/verify.py --rerun               check, then train a random twentieth of the recorded demo cells again (minutes)

    python scripts/verify.py --rerun draw=3        draw the same cells each time
    python scripts/verify.py --rerun of=niculae2017_table2_cpu     a twentieth of that table's cells (at least one)

    in=FOLDER (docs/results)   folder of pages and records       draw=N   seed of the draw (default: a new one each day)

docs/reference/verify.md explains what is compared and how, and what is not covered. The records, docs/results/records/*.jsonl,
are written by scripts/records.py. Since machines differ, a retrained cell agrees if no score in its table differs by
more than twice its metric's tolerance.
"""

from pathlib import Path

from _entry import ROOT, command


@command
def main(
    *, write: bool = False, rerun: bool = False, accept: str = "", draw: str | None = None, of: str = "*_demo",
    in_: Path = ROOT / "docs/results",
) -> int:  # fmt: skip
    from tasks.commands import rerun as again
    from tasks.commands import verify

    if write:
        for changed in verify.write(in_.resolve(), accept.split(",")):
            print(f"written: {changed}")
    checked = verify.check(in_.resolve())
    print(checked.text())
    return int(bool(checked.wrong)) | (again.report(in_.resolve(), draw, of) if rerun else 0)
