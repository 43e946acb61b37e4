"""Hold every number of the tables in README and docs/results against the records of the cells it came from.

    python scripts/verify.py                check; exit status 1 when a number differs
    python scripts/verify.py --write        put the records' tables into the pages instead
    python scripts/verify.py --rerun        then train a random twentieth of the recorded demo cells anew and compare (minutes)

    python scripts/verify.py --rerun draw=3 the same cells each time
    python scripts/verify.py --rerun of=niculae2017_table2_cpu     of that table's cells instead of the demo's (a twentieth, at least one)

    in=FOLDER (docs/results)   whose pages and records       draw=N   which cells --rerun draws (default: others each day)

The records are docs/results/records/*.jsonl (scripts/records.py writes them). Numbers in prose are counted, not checked. A cell that
is trained anew agrees when no score of its table differs by more than twice the metric's tolerance: machines differ.
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
        k for k in given if k not in ("in", "draw", "of")
    ]:
        print(
            f"error: {wrong[0]} is not for this command; it knows {', '.join(OPTIONS)}, in=, draw=, of=",
            file=sys.stderr,
        )
        return 2
    from sparse_attention.repro.store import StoreError
    from tasks import recorded, rerun

    results = Path(given.get("in", recorded.RESULTS)).resolve()
    try:
        if "--write" in arguments:
            print(
                "\n".join(
                    [
                        *(f"written: {page}" for page in recorded.write_pages(results)),
                        "the pages have the records' tables",
                    ]
                )
            )
            return 0
        checked = recorded.check(results)
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
