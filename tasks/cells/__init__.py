"""Cells: what one cell does, a module per family, each a `repro.protocol.Family`.

`train` goes through the fairseq plugin, except for multilabel models; `evaluate` needs only the cell's folder, and no fairseq.
"""
