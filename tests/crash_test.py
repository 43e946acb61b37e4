"""Kill processes, flip bits and turn clocks back for minutes; then compare every number with an undisturbed run.

    python tests/crash_test.py [--minutes 5] [--seed 1] [--folder FOLDER]

Examples: python tests/crash_test.py; python tests/crash_test.py --minutes 1 --seed 7

It runs small cells of the toy and multilabel tasks, with two commands at a time in one store. --seed: seed of the times
and kinds of the faults. --folder: folder in which the stores are kept (default: a temporary folder). Exit status 1 if
anything differs.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "repro")]

from tasks.commands.entry import command  # noqa: E402


@command
def main(*, minutes: float = 5.0, seed: int = 1, folder: Path | None = None) -> int:
    import storm

    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        wrong = storm.run(place, 60 * minutes, seed=seed)
    print("\n".join([*wrong, f"{len(wrong)} differences from the undisturbed run"]))
    return int(bool(wrong))
