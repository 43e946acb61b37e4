"""One file an architecture: `Options`, `Model`, `PLACES` (see `tasks.config.models`)."""
