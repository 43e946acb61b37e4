"""Test the papers' claims (configs/claims) on the records of our tables: supported, contradicted or inconclusive.

    python scripts/claims.py [records=FOLDER]

    records   the folder with the records (docs/results)

Prints the outcome, effect, 95 % interval, number of seeds and power of each claim, and writes <outputs>/claims.json.
docs/claims.md shows the same with pictures.
"""

from pathlib import Path

from _entry import ROOT, command


@command
def main(*, records: Path = ROOT / "docs/results") -> int:
    from tasks.commands import claims

    return claims.write(records.resolve())
