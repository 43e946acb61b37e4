"""From an experiment to the table beside the published one: plan -> cell -> store -> table -> render, report.

It knows tasks only as modules that fit `protocol.Family`, and imports neither fairseq, Hydra nor wandb.
"""
