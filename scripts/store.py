"""Look after the store: what is there, whether it is whole, and how it gets to another machine.

    python scripts/store.py list   [paths.outputs=FOLDER]      every training and evaluation with its state
    python scripts/store.py verify                             check every file; names what is damaged, exit status 1
    python scripts/store.py clean                              remove what killed processes left; nothing that is finished
    python scripts/store.py du                                 how much space what takes
    python scripts/store.py export FILE.tar [TASK/MAPPING|ID ...]   finished cells, each checked
    python scripts/store.py import FILE.tar                    each checked again; what is finished here stays

Examples: python scripts/store.py verify; python scripts/store.py export cells.tar translation/fusedmax;
          python scripts/store.py import cells.tar paths.outputs=/data/outputs

Damaged cells are never deleted: the next run that needs one moves it aside and trains it again (docs/store.md).
"""

import sys
from typing import Literal

from _entry import command


@command
def main(
    what: Literal["list", "verify", "clean", "du", "export", "import"], *names: str, paths_outputs: str = ""
) -> int:
    from tasks.commands import store

    return store.main(what, names, paths_outputs)


if __name__ == "__main__":
    sys.exit(main())
