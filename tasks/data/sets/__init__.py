"""Data set loaders: each module has `SETS`: name of a data set -> `tasks.data.dataset.Loader`."""
