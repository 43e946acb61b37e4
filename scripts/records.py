"""Write the small records of a table's finished cells, from which it can be printed and checked without them.

    python scripts/records.py sweep=NAME [paths.outputs=FOLDER] [to=docs/results]         the table of a sweep of scripts/train.py -m
    python scripts/records.py EXPERIMENT [EXPERIMENT ...] [profile=demo|cpu|paper] [seeds=1,2] [paths.outputs=FOLDER]
                              [the other arguments that the table was made with] [to=docs/results]

The records go to <to>/records/EXPERIMENT_PROFILE.jsonl: scores, versions, per-example scores; no weights, no texts. No data are read.
`python scripts/verify.py` checks the pages of docs/results by them, `--write` puts their tables into the pages, and
`python scripts/reproduce.py EXPERIMENT records=docs/results` prints a table from them.

Examples: python scripts/records.py laha2018_table2 seeds=1,2
          python scripts/records.py niculae2017_table1 martins2020_table1 profile=cpu
          python scripts/records.py laha2018_table2 paths.outputs=/data/outputs to=/data/results
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when cells are missing or damaged, 2 for arguments that are not possible."""
    names = [a for a in arguments if "=" not in a and not a.startswith("-")]
    given = dict(a.split("=", 1) for a in arguments if "=" in a)
    if (not names and "sweep" not in given) or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    from repro.plan import PlanError
    from repro.store import StoreError
    from tasks.commands import recorded
    from tasks.config import compose
    from tasks.load import outputs_folder

    to = Path(given.get("to", recorded.RESULTS)).resolve()
    overrides = [a for a in arguments if a not in names and not a.startswith("to=")]
    status = 0
    try:
        if "sweep" in given:
            path, count = recorded.record_sweep(given["sweep"], Path(given.get("paths.outputs", outputs_folder())), to)
            print(f"{path}: {count} cells")
        for name in names:
            path, count, lost = recorded.record(name, overrides, to)
            print(
                f"{path}: {count} cells" if count else f"{name}: the store has none of its cells; nothing was written"
            )
            print("".join(f"  missing: {one}\n" for one in lost), end="")
            status |= bool(lost)
    except (compose.ConfigError, PlanError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (StoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
