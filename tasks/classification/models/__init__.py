"""Architectures for classification. Each file defines `Options`, `PLACES` and `Model(options, encoded, mappings)`.

`Model.forward(texts, lengths)` takes two lists with one entry per text of an example: ids [B, L], padded on the right,
and lengths [B]. It returns (logits [B, C], {"attention": {name: [B, L] over the first text}}). A model may define
`penalty()`, a term added to the mean loss in training. Its file may define `problems(config)`, which lists conflicts
between its options and other nodes of a configuration.
"""
