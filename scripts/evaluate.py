"""Evaluate a finished cell on another test set or with other scores; nothing is trained.

    python scripts/evaluate.py CELL [data=NAME] [data.KEY=VALUE] [decode.KEY=VALUE] [task.scores=[...]]
                                    [plugins=[FILE.py]] [paths.outputs=FOLDER]

    CELL        a folder, an id or its beginning, or TASK/MAPPING[,KEY=VALUE ...] if that matches exactly one cell
    data.path   several files or folders: A,B; each test set is named after its file or folder, or by data.name=NAME
    plugins     the Python files of CELL's own mapping; they run if they are as they were in its training

Examples: python scripts/evaluate.py summarization/sparsemax data=duc2004 decode.beam=10
          python scripts/evaluate.py translation/sparsemax,seed=1 data=files data.path=mine data.source_lang=fr data.target_lang=en
          python scripts/evaluate.py 0f3a decode.beam=1
The evaluation is stored in the cell's folder, in evaluations/; the same command reads it from there the next time.
"""

import sys

from _entry import command


@command
def main(cell: str, *, overrides: list[str], plugins: str = "", paths_outputs: str | None = None) -> None:
    from repro.plugins import listed
    from tasks import use
    from tasks.commands import compare
    from tasks.config.request import Request
    from tasks.data import Progress

    cell = str(use.find_cell(paths_outputs, cell))  # before torch is imported, which takes seconds
    from tasks.use.scoring import evaluate, one_by_one

    for each in one_by_one(Request.read(overrides).overrides):
        found = evaluate(cell, each, paths_outputs, progress=Progress(), plugins=listed(plugins))
        for test, level in found.evaluations.items():
            told = found.tests[test]
            print(compare.of_one(found, f"{test}: {told.get('provenance', '')}, {told['sizes']['test']:,} examples"))
            print(*(f"  note: {note}" for note in told["notes"]), sep="\n", file=sys.stderr)
            print(f"all scores: {level.folder}/metrics.json")
