"""Data set loaders: a module has `KIND`, `Options` and `load`, or `SETS`: name -> `tasks.data.dataset.Loader` with these."""
