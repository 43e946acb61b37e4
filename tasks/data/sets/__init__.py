"""Data sets by file name: each module has `KIND`, `Options` and `load(options, root, progress) -> DataSet`."""
