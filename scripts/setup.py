"""Build or repair .venv; return at once if there is nothing to do. `make setup` calls this script.

    make setup                                  the packages of requirements.lock: 3 GB to fetch, 6.5 GB on disk, about 3 minutes
    make setup PYTHON=/path/to/python3.13       with this interpreter
    make setup TORCH=cpu TORCH_INDEX=ADDRESS    torch without CUDA, from an index of your choice: a tenth of that (docs/start/install.md)
    make setup LOCKED=0                         newer packages allowed by pyproject.toml; tables will say "not the locked set"

You can stop it and start it again at any time.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tasks.commands import setup

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        sys.exit(0)
    sys.exit(setup.main())
