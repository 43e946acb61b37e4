"""Architectures of the classification tasks, one file each: `Options`, `PLACES`, `Model(options, encoded, mappings)`.

`Model.forward(texts, lengths)` takes lists with one [B, L] of ids, padded on the right, and one [B] for each text of an
example, and returns (logits [B, C], {"attention": {name: [B, L] over the first text}}). A model may have `penalty()`, a
term added to the mean loss in training, and its file `problems(config)`, what is wrong between its options and other
nodes of a configuration.
"""
