"""From an experiment to the table beside the published one: plan -> cells -> store -> table.

Knows a task only by `protocol.Task`; imports neither fairseq, Hydra nor wandb.
"""
