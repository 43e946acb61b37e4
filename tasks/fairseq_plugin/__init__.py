"""The only package that imports fairseq. Importing it registers our models, tasks and criterions.

`--user-dir tasks/fairseq_plugin` imports this folder as a package named `fairseq_plugin`, with only `tasks/` on the
path. That name is then made an alias of this package, so that nothing is registered twice.
"""

import importlib
import sys
from pathlib import Path

NAME = "tasks.fairseq_plugin"

if __name__ == NAME:
    from tasks.fairseq_plugin import compat

    compat.install()

    from tasks.config.models import FAMILIES

    for family in FAMILIES:  # those that have a file here
        if Path(__file__).with_name(f"{family}.py").is_file():
            importlib.import_module(f"{NAME}.{family}")
else:
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)
    sys.modules[__name__] = importlib.import_module(NAME)
