"""Score a finished cell on another test set, or by other scores; nothing is trained.

    python scripts/evaluate.py CELL [data=NAME] [data.KEY=VALUE] [decode.KEY=VALUE] [task.scores=[...]]
                                    [--trust-plugins] [paths.outputs=FOLDER]

    CELL   its folder, its id or the beginning of it, or TASK/MAPPING[,KEY=VALUE ...] that fits one
    --trust-plugins   run the Python files that CELL names (its mapping), though you never named them yourself

Examples: python scripts/evaluate.py summarization/fusedmax data=duc2004 decode.beam=10
          python scripts/evaluate.py translation/sparsemax,seed=1 data=files data.path=mine data.source_lang=fr data.target_lang=en
          python scripts/evaluate.py 0f3a decode.beam=1
The evaluation lies below the cell, in evaluations/; asked for again, it is read from there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when it failed, 2 for arguments that are not possible."""
    trust = "--trust-plugins" in arguments
    arguments = [a for a in arguments if a != "--trust-plugins"]
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2

    from repro.store import StoreError
    from tasks import load
    from tasks.config.compose import ConfigError
    from tasks.data import DataError, Progress

    what, *overrides = arguments
    outputs = next((o.partition("=")[2] for o in overrides if o.startswith("paths.outputs=")), None)
    try:
        found = load.evaluate(what, overrides, outputs, progress=Progress(), trust_plugins=trust)
    except (ConfigError, load.NoCell, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DataError, StoreError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for test, level in found.evaluations.items():
        print(f"{test}: {found.tests[test].get('provenance', '')}")
        for key in sorted(k for k in found.metrics if k.startswith(f"{test}/")):
            print(f"  {key:32s} {found.metrics[key]:.4f}")
        print(f"evaluation: {level.folder}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("stopped; the same command starts the evaluation again", file=sys.stderr)
        sys.exit(130)
