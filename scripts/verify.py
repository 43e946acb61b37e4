"""Check the tables, files and records of docs/results, and what README quotes of them, against records, code and checksums.

    python scripts/verify.py                       check (a minute); exit status 1 when something differs
    python scripts/verify.py --write               write what records and code give into the pages and files, renew their checksums
    python scripts/verify.py --write accept='records/*'      also where measured files differ from before, on purpose
    python scripts/verify.py --rerun               check, then train a random twentieth of the recorded demo cells again (minutes)

    python scripts/verify.py --rerun draw=3        the same cells each time
    python scripts/verify.py --rerun of=niculae2017_table2_cpu     of that table's cells instead of the demo's (a twentieth, at least one)

    in=FOLDER (docs/results)   whose pages and records       draw=N   which cells --rerun draws (default: others each day)

docs/verify.md says what is compared how, and what is not covered. The records are docs/results/records/*.jsonl (scripts/records.py
writes them). A retrained cell agrees when no score of its table differs by more than twice the metric's tolerance: machines differ.
"""

import sys
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
        return verify.renew(in_.resolve(), accept.split(","))
    wrong = verify.tell(in_.resolve())
    return wrong | (again.report(in_.resolve(), draw, of) if rerun else 0)


if __name__ == "__main__":
    sys.exit(main())
