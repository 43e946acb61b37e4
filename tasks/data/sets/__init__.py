"""Data set loaders: each module has `KIND`, `Options` and `load(manifest, options, root, progress) -> DataSet`."""
