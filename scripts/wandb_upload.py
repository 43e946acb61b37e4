"""Finished cells of the store as wandb runs, each once: a run's id is its cell's. docs/loggers.md says what a run has.

    python scripts/wandb_upload.py [FILTER ...] [logger.wandb.KEY=VALUE ...] [paths.outputs=FOLDER]

    FILTER   as of scripts/compare.py: task=toy  mapping=fusedmax  seed=1,2  mapping.lam=0.1  experiment=NAME  sweep=NAME
    KEY      project, entity, mode, timeout; WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_DIR, WANDB_TAGS go before them

Examples: python scripts/wandb_upload.py task=toy; python scripts/wandb_upload.py experiment=laha2018_table2;
          python scripts/wandb_upload.py sweep=night logger.wandb.project=attention

With experiment=NAME a run has its row and column in that experiment, whoever asked for the cell first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
OPTION = "logger.wandb."


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when nothing fits or wandb fails, 2 for filters or options that are not possible."""
    import yaml

    from repro.store import Store
    from repro.tables.compare import FilterError
    from tasks.commands import compare
    from tasks.commands import wandb_upload as upload
    from tasks.config import options, overrides
    from tasks.load import outputs_folder
    from tasks.loggers.wandb import Options as WandbOptions

    if wrong := [a for a in arguments if "=" not in a]:
        print(__doc__, file=sys.stdout if {"-h", "--help"} & set(wrong) else sys.stderr)
        return 0 if {"-h", "--help"} & set(wrong) else 2
    given = dict(a.split("=", 1) for a in arguments)
    filters = {k: v for k, v in given.items() if not k.startswith(OPTION)}
    outputs = filters.get("paths.outputs") or outputs_folder()
    try:
        own = {k.removeprefix(OPTION): yaml.safe_load(v) for k, v in given.items() if k.startswith(OPTION)}
        wandb = options.plain(options.read(WandbOptions, own, OPTION.rstrip(".")))
        found, lost = compare.select(Store(outputs), filters)
        asked = upload.origins(found, filters)
    except (FilterError, overrides.ConfigError, options.OptionsError, yaml.YAMLError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return _send(asked, outputs, wandb) or int(bool(lost or not found))


def _send(asked, outputs, options) -> int:
    from repro.store import StoreError
    from tasks.commands import wandb_upload as upload

    failed = 0
    for n, (folder, origin) in enumerate(asked.items(), 1):
        name = "/".join(folder.parts[-3:])
        try:
            print(f"[{n}/{len(asked)}] {name}: {upload.send(folder, outputs, options, origin)}", flush=True)
        except StoreError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = 1
        except ModuleNotFoundError as error:
            print(f"error: {error}; the extra [wandb] brings it", file=sys.stderr)
            return 1
        except Exception as error:  # whatever wandb raises: the next cell would meet it too
            print(
                f"error: {name} and what comes after it are not sent: {type(error).__name__}: {error}", file=sys.stderr
            )
            print("the same command goes on from there", file=sys.stderr)
            return 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
