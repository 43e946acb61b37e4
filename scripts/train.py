"""Train and score one cell; with -m, sweep. `python scripts/train.py task=toy mapping=sparsemax`, `--help` for the choices
and the parameters of the mapping that is named.

    python scripts/train.py task=translation mapping=fusedmax mapping.lam=0.1 seed=2             one cell
    python scripts/train.py -m task=toy mapping=sparsegen_lin,fusedmax seed=1,2,3 grid=paper     each mapping over its own grid
    python scripts/train.py -m task=toy 'mapping=glob(*)' --plan                                 what it would take, nothing run
    python scripts/train.py -m experiment=laha2018_table2 seed=1,2                               a table of a paper

docs/sweeps.md has the rest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # runtime.threads decides, before torch is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def run() -> int:
    """Exit status: 0, 1 when a cell failed or the configuration is wrong, 130 after Ctrl-C."""
    from tasks.config import overrides

    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors come here
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from tasks.config import pages

        print(__doc__, pages.parameters(arguments), sep="\n", end="\n\n")
    try:
        overrides.check_arguments(arguments)  # before torch is imported
        from tasks.commands import sweep, train

        if sweep.ours(arguments):
            return sweep.main(arguments)

        return train.main(arguments, ROOT / "configs")
    except (overrides.ConfigError, *overrides.HYDRA, OSError) as error:
        print(f"error: {overrides.sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(
            130
        )  # fairseq reads ahead in a thread: inside torch, it would abort when the interpreter is taken down


if __name__ == "__main__":
    sys.exit(run())
