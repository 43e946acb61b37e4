"""Try sparse attention on a file of your own: guesses what it holds, trains three mappings, prints a table and pictures.

    python scripts/try.py data.path=FILE|FOLDER [OVERRIDE ...]

    FILE       csv, tsv, jsonl, json or parquet with pairs of texts, with texts and a class, or with two texts and a class; a single
               file is split into train, dev and test, a FOLDER has a file for each
    OVERRIDE   what was guessed wrong: task=summarization data=files|table data.source=COLUMN data.target=COLUMN
               data.text=COLUMN|[COLUMN,COLUMN] data.label=COLUMN; mapping=softmax,entmax  seed=1,2,3; any other
               option of scripts/train.py, such as train.max_epochs=5 data.limits.train=5000 runtime.workers=4

Examples: python scripts/try.py data.path=pairs.tsv; python scripts/try.py data.path=reviews.csv data.label=stars;
          python scripts/try.py data.path=corpus mapping=softmax,entmax seed=1,2

It takes about ten minutes on two cores. What it guesses and chooses is printed first; docs/start/my_data.md says more.
"""

from _entry import command


@command
def main(*files: str, overrides: list[str]) -> int:
    from tasks.commands import try_data
    from tasks.config.request import Request

    return try_data.main(Request.read(overrides, names=files))
