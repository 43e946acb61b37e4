"""Run an experiment and compare its table with the published one: plan -> cell -> store -> table -> render, report.

The package sees a task only as a module that implements `protocol.Family`. It does not import fairseq, Hydra or wandb.
"""
