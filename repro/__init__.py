"""From an experiment to the table beside the published one: plan -> cell -> store -> table -> render, report.

Knows tasks only by `protocol.Family`, whose modules are handed over by name; imports neither fairseq, Hydra nor wandb.
"""
