"""List data sets, fetch them, verify them and show their contents.

python scripts/data.py list
python scripts/data.py fetch NAME [NAME ...] [--root FOLDER] [--mirror FOLDER] [--path FOLDER]
python scripts/data.py verify NAME [the same options]   compare files with checksums; contacts no web address and no hub
python scripts/data.py show NAME [the same options] [data.KEY=VALUE ...]     sizes, source and a few test records

    --root     folder for downloads (default: SPARSE_ATTENTION_DATA, otherwise data/cache)
    --mirror   folder of local copies, for data sets that are read from a mirror (default: SPARSE_ATTENTION_MIRROR)
    --path     file or folder of a data set that you downloaded by hand, or of your own data
    data.KEY   an option of the data set, as for scripts/train.py, such as data.text=review data.label=stars

Examples: python scripts/data.py fetch libreoffice_help easy_vqa; python scripts/data.py show imdb --path aclImdb.tar.gz;
          python scripts/data.py fetch multi30k --mirror /data/mirror
          python scripts/data.py show table data.path=reviews.csv data.text=review data.label=stars
Next: python scripts/train.py task=TASK data=NAME
"""

import os
from typing import Literal

from _entry import command


@command
def main(
    what: Literal["list", "fetch", "verify", "show"], *names: str, overrides: list[str],
    root: str = os.environ.get("SPARSE_ATTENTION_DATA", "data/cache"), mirror: str | None = None, path: str | None = None,
) -> int:  # fmt: skip
    from tasks.commands import data

    return data.main(what, names, root, {"mirror": mirror, "path": path}, overrides)
