"""Use a trained model: reads one input per line from standard input and prints one output per line.

    python scripts/predict.py CELL [--nbest N] [--attention FILE.safetensors] [--heat] [--svg FOLDER] [--images FOLDER]
                              [--digits SIGN] [plugins=[FILE.py]] [decode.KEY=VALUE ...] [paths.outputs=FOLDER] < INPUT

    CELL       an id or its beginning, a folder (of the store, or an exported one), or TASK/MAPPING[,KEY=VALUE ...]
    INPUT      depending on the model: a text; two texts separated by a tab; IMAGE, a tab, a question; or numbers
    --nbest    N outputs for each input, as NUMBER, SCORE, OUTPUT separated by tabs
    --heat     draw the attention in the terminal;  --svg: a drawing for each input;  --attention: write all weights
    --images   folder of the images, or of their features;  --digits '#': the character Gigaword has instead of digits
    plugins    the Python files of CELL's own mapping; they run if they are as they were in its training

Examples: echo "Un chien ." | python scripts/predict.py translation/sparsemax,seed=1 --heat decode.beam=10
          python scripts/predict.py models/sparsemax --attention weights.safetensors < sentences.txt
          python scripts/predict.py imdb/sparsemax --svg drawings < reviews.txt      # docs/guides/predict.md has more
"""

from pathlib import Path

from _entry import command


@command
def main(
    cell: str, *, overrides: list[str], nbest: int = 1, heat: bool = False, attention: Path | None = None, svg: Path | None = None,
    images: str | None = None, digits: str | None = None, plugins: str = "", paths_outputs: str | None = None,
) -> None:  # fmt: skip
    from repro.plugins import listed
    from tasks.use import find_cell

    folder = find_cell(paths_outputs, cell)  # before torch is imported, which takes seconds
    from tasks.use import lines, load_cell

    model = load_cell(folder, paths_outputs, overrides, plugins=listed(plugins))
    given = {name: value for name, value in (("images", images), ("digits", digits)) if value is not None}
    lines.answer(model, nbest, given, heat, attention, svg)
