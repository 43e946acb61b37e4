"""List the cells of the store, or verify their files.

    python scripts/store.py list   [paths.outputs=FOLDER]      every training and evaluation with its state
    python scripts/store.py verify                             check every file; lists damage, exit status 1 if any

Examples: python scripts/store.py verify; python scripts/store.py list paths.outputs=/data/outputs

Damaged cells are never deleted; the next run that needs a damaged cell moves it aside and trains it again. To move a
cell to another store, copy its folder (docs/reference/store.md).
"""

from typing import Literal

from _entry import command


@command
def main(what: Literal["list", "verify"], *, paths_outputs: str = "") -> int:
    from tasks.commands import store

    return store.main(what, paths_outputs)
