"""Write a trained model as a folder that stands alone: weights, configuration, vocabulary, model card, checksums.

    python scripts/export.py CELL FOLDER [--fairseq SOURCES] [--trust-plugins] [paths.outputs=FOLDER]

    CELL       an id or its beginning, a folder of the store, or TASK/MAPPING[,KEY=VALUE ...]
    FOLDER     a new one; python scripts/predict.py FOLDER < input, and load_cell(FOLDER), read it back
    --fairseq  also a checkpoint for fairseq-generate, with the lines of the file SOURCES encoded for it
    --trust-plugins   copy (with --fairseq: run) the Python files that CELL names, though you never named them yourself

Examples: python scripts/export.py translation/fusedmax,seed=1 models/fusedmax
          python scripts/export.py 0f3a models/mine
          python scripts/export.py translation/softmax models/softmax --fairseq test.fr
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when it failed, 2 for arguments that are not possible."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("cell")
    parser.add_argument("folder")
    parser.add_argument("--fairseq")
    parser.add_argument("--trust-plugins", action="store_true")
    parser.add_argument("outputs", nargs="?", type=_outputs)
    asked = parser.parse_intermixed_args(arguments)

    from repro.store import StoreError
    from tasks.data import DataError
    from tasks.load import NoCell
    from tasks.load.export import export

    try:
        sources = Path(asked.fairseq).read_text(encoding="utf-8").splitlines() if asked.fairseq else None
        folder = export(asked.cell, asked.folder, asked.outputs, sources, trust_plugins=asked.trust_plugins)
    except (NoCell, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DataError, StoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{folder}\nnext: python scripts/predict.py {folder} < input")
    if sources is not None:
        print(
            f"or: fairseq-generate {folder}/fairseq/data --path {folder}/fairseq/model.pt --task sa_pairs "
            "--user-dir tasks/fairseq_plugin --required-batch-size-multiple 1"
        )
    return 0


def _outputs(text: str) -> str:
    key, _, value = text.partition("=")
    if key != "paths.outputs" or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not paths.outputs=FOLDER")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
