"""Maintain the store: list and verify its cells, clean it, and move cells to another machine.

    python scripts/store.py list   [paths.outputs=FOLDER]      every training and evaluation with its state
    python scripts/store.py verify                             check every file; lists damage, exit status 1 if any
    python scripts/store.py clean                              remove leftovers of killed processes, no finished cells
    python scripts/store.py du                                 show the space used by each kind of content
    python scripts/store.py export FILE.tar [TASK/MAPPING|ID ...]   finished cells; each is checked
    python scripts/store.py import FILE.tar                    each cell is checked again; cells finished here are kept

Examples: python scripts/store.py verify; python scripts/store.py export cells.tar translation/sparsemax;
          python scripts/store.py import cells.tar paths.outputs=/data/outputs

Damaged cells are never deleted; the next run that needs a damaged cell moves it aside and trains it again
(docs/reference/store.md).
"""

from typing import Literal

from _entry import command


@command
def main(
    what: Literal["list", "verify", "clean", "du", "export", "import"], *names: str, paths_outputs: str = ""
) -> int:
    from tasks.commands import store

    return store.main(what, names, paths_outputs)
