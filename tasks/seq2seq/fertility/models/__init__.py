"""One file per architecture, which defines `Options`, `Model` and `PLACES` (see `tasks.config.models`)."""
