"""Data sets: acquire them, verify them and read their published formats. Nothing in this package depends on a model.

    data = open_data({"name": "multi30k", "mirror": "FOLDER"}, root, progress)      # found and fingerprinted, not read
    splits = data.read(progress)                                                    # {"train": records, ...}

A data set consists of a loader in `tasks/data/sets`, a manifest in `data/manifests` and a set of options in
`configs/data`.
"""

from tasks.data.access import (
    fetch,
    is_own,
    open_data,
    problems,
    set_module,
    set_names,
    set_options,
    show,
    verify,
)
from tasks.data.dataset import SPLITS, DataSet, Splits, content_sha256
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.manifests import load_manifest, manifest_names
from tasks.data.progress import NullProgress, Progress
