"""Hold the tables, files and records of docs/results, and what README quotes of them, against records, code and checksums.

    python scripts/verify.py                       check (a minute); exit status 1 when something differs
    python scripts/verify.py --write               put what records and code give into the pages and files, renew their checksums
    python scripts/verify.py --write accept='records/*'      also where measured files are others than before, and that is meant
    python scripts/verify.py --rerun               check, then train a random twentieth of the recorded demo cells anew (minutes)

    python scripts/verify.py --rerun draw=3        the same cells each time
    python scripts/verify.py --rerun of=niculae2017_table2_cpu     of that table's cells instead of the demo's (a twentieth, at least one)

    in=FOLDER (docs/results)   whose pages and records       draw=N   which cells --rerun draws (default: others each day)

What is compared how, and what is not covered: docs/verify.md. The records are docs/results/records/*.jsonl (scripts/records.py writes
them). A cell that is trained anew agrees when no score of its table differs by more than twice the metric's tolerance: machines differ.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
OPTIONS = ("--write", "--rerun")


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when something differs, 2 for arguments that are not possible."""
    given = dict(a.split("=", 1) for a in arguments if "=" in a)
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if wrong := [a for a in arguments if "=" not in a and a not in OPTIONS] + [
        k for k in given if k not in ("in", "draw", "of", "accept")
    ]:
        print(
            f"error: {wrong[0]} is not for this command; it knows {', '.join(OPTIONS)}, in=, draw=, of=, accept=",
            file=sys.stderr,
        )
        return 2
    from repro.store import StoreError
    from tasks.commands import recorded, rerun, verify

    results = Path(given.get("in", recorded.RESULTS)).resolve()
    try:
        if "--write" in arguments:
            for changed in verify.write(results, given.get("accept", "").split(",")):
                print(f"written: {changed}")
            print("pages, files and checksums are what records and code give")
            return 0
        checked = verify.check(results)
        print(checked.text())
        again = (
            rerun.differences(results, given.get("draw"), print, given.get("of", "*_demo"))
            if "--rerun" in arguments
            else []
        )
        print("".join(f"DIFFERS {one}\n" for one in again), end="")
    except (StoreError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(bool(checked.wrong or again))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
