"""Implementation of the cells: one module per task family, each a `repro.protocol.Family`.

`train` uses the fairseq plugin, except for multilabel models. `evaluate` needs only the cell's folder and works without
fairseq.
"""
