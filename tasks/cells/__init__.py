"""Cells: what is trained and scored once, a file a family, each as `repro.protocol.Family` asks.

`prepare` and `train` of what is trained by gradients go through fairseq; `evaluate` needs the cell's folder alone and no fairseq.
"""
