"""Kill, flip and turn back the clocks, for minutes; then every number must be that of an undisturbed run.

    python scripts/crash_test.py [--minutes 5] [--many] [--seed 1] [--folder FOLDER]

Examples: python scripts/crash_test.py; python scripts/crash_test.py --minutes 1 --seed 7; python scripts/crash_test.py --many

Small cells of the toy and the multilabel task; two commands at a time in one store. --many: 200 quick cells at eight processes, one of
which is killed every second until all is done; none may be trained twice. Exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "repro"))


def main() -> int:
    """Exit status: 0 when everything is as it should be, 1 otherwise."""
    import storm

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of storm (default 5)")
    parser.add_argument("--many", action="store_true", help="200 quick cells and kills alone, until all is done")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when (default 1)")
    parser.add_argument("--folder", type=Path, help="where the stores stay (default: a temporary one that goes)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wrong = (
            storm.many(folder, seed=given.seed)
            if given.many
            else storm.run(folder, 60 * given.minutes, seed=given.seed)
        )
    print("\n".join([*wrong, f"{len(wrong)} differences from the undisturbed run"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
