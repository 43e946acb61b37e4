"""Our own training of models: the loop, an update, checkpoints, several processes. It does not import fairseq."""
