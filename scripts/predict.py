"""Use a trained model: one input a line from standard input, one output a line.

    python scripts/predict.py CELL [--nbest N] [--attention FILE.safetensors] [--heat] [--svg FOLDER] [--images FOLDER]
                              [--digits SIGN] [--trust-plugins] [decode.KEY=VALUE ...] [paths.outputs=FOLDER] < INPUT

    CELL       an id or its beginning, a folder (of the store, or of scripts/export.py), or TASK/MAPPING[,KEY=VALUE ...]
    INPUT      a text; two texts separated by a tab; IMAGE, a tab, a question; or numbers, as the model reads them
    --nbest    N outputs for each input, as NUMBER, SCORE, OUTPUT separated by tabs
    --heat     the attention in the terminal;  --svg: a drawing for each input;  --attention: all weights
    --images   folder of the images, or of their features;  --digits '#': as Gigaword has its digits
    --trust-plugins   run the Python files that CELL names (its mapping), though you never named them yourself

Examples: echo "Un chien ." | python scripts/predict.py translation/fusedmax,seed=1 --heat decode.beam=10
          python scripts/predict.py models/fusedmax --attention weights.safetensors < sentences.txt
          python scripts/predict.py imdb/sparsemax --svg drawings < reviews.txt      # docs/predict.md has more
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when it failed, 2 for arguments that are not possible."""
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("cell")
    parser.add_argument("--nbest", type=int, default=1, choices=range(1, 1001), metavar="N")
    parser.add_argument("--heat", action="store_true")
    parser.add_argument("--trust-plugins", action="store_true")
    for name in ("--attention", "--svg", "--images", "--digits"):
        parser.add_argument(name)
    parser.add_argument("overrides", nargs="*")
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    asked = parser.parse_intermixed_args(arguments)

    from repro.files import usable, write_atomic
    from repro.store import StoreError
    from tasks.data import DataError
    from tasks.load import NoCell, drawing, lines, load_cell

    outputs = next((o.partition("=")[2] for o in asked.overrides if o.startswith("paths.outputs=")), None)
    options = {k: v for k in ("images", "digits") if (v := getattr(asked, k)) is not None}
    try:
        overrides = [o for o in asked.overrides if not o.startswith("paths.outputs=")]
        model = load_cell(asked.cell, outputs, overrides, trust_plugins=asked.trust_plugins)
        if wrong := [o for o in options if o != {"seq2seq": "digits", "vqa": "images"}.get(model.name)]:
            raise ValueError(f"--{wrong[0]} says nothing to a model of {model.config['task']['name']}")
        with usable(model.folder, (DataError, ValueError, OSError)):  # these are about what is given
            found = model.predict(lines.parsed(sys.stdin.buffer.read(), model), nbest=asked.nbest, **options)
        for line in lines.printed(found, asked.nbest):
            print(line)
        for number, one in enumerate(found, 1):
            if asked.heat:
                print(f"\n{number}\n{drawing.terminal(one, shutil.get_terminal_size().columns)}")
            if one.unknown:
                print(f"line {number}: unknown words: {', '.join(dict.fromkeys(one.unknown))}", file=sys.stderr)
        if asked.attention:
            lines.write_attention(Path(asked.attention), found)
        for name, one in zip(drawing.names(len(found)) if asked.svg else (), found):
            write_atomic(Path(asked.svg) / name, drawing.svg(one).encode())
    except (NoCell, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DataError, StoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
