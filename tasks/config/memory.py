"""Estimate, before any data are read, whether a training can fit in memory.

    bytes >= 4 (P (2 + s) processes + A)       P parameters; s numbers that the optimiser keeps for each (Adam 2, SGD 0)
                                               A activations that a batch keeps for its gradients

The model's `Options.numbers` gives lower bounds of P and A: it counts only the large matrices and assumes TOKENS tokens
per text and a vocabulary of `encode.vocab_size` words (WORDS if that is not set). So a configuration that could run is
never rejected, but one that is accepted may still be too large.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tasks.config.nodes import shares

TOKENS, WORDS, BYTES, GB = 10, 1000, 4, 1e9
KEPT = {"sgd": 0, "adam": 2}
CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def problems(config: Mapping[str, Any], model: Any) -> list[str]:
    """Reasons why a configuration needs more memory than this machine has, one sentence each; empty if none is found.

    Args:
        model: the model's options; if they have no `numbers`, nothing is estimated.
    """
    if not hasattr(model, "numbers"):
        return []
    device, train, encode, decode = config["runtime"]["device"], config["train"], config["encode"], config["decode"]
    there = available(device)
    where = (
        f"{'this machine' if device == 'cpu' else 'the GPU'} has {there / GB:.1f} GB: make the largest of these smaller"
    )
    limit, (batch_size, max_tokens, _) = (config["data"].get("limits") or {}).get("train"), shares(train)
    examples = min(n for n in (batch_size, limit, max_tokens and max(max_tokens // TOKENS, 1)) if n)
    words, optim = encode.get("vocab_size") or WORDS, config["optim"]["name"]
    parameters, activations = model.numbers(examples, words, TOKENS)
    copies = BYTES * (train["processes"] if device == "cpu" else 1)
    weights, batch = copies * parameters * (2 + KEPT[optim]), copies * activations
    found = []
    if weights + batch > there:
        sizes = sorted(((v, f"model.{k}={v}") for k, v in config["model"].items() if type(v) is int), reverse=True)
        named = [text for _, text in sizes]
        named += [f"train.{k}={train[k]}" for k in ("batch_size", "max_tokens", "processes") if train[k]]
        named += [f"encode.vocab_size={words}"] if "vocab_size" in encode else []
        found.append(
            f"{', '.join(named)}: training needs at least {(weights + batch) / GB:,.1f} GB ({parameters:,.0f} parameters with gradients and "
            f"{optim}: {weights / GB:,.1f} GB; a batch of {examples} examples: {batch / GB:,.1f} GB); {where}"
        )
    if "beam" in decode and (scores := BYTES * decode["beam"] * decode["batch_size"] * words) > there:
        found.append(
            f"decode.beam={decode['beam']}, decode.batch_size={decode['batch_size']}: the scores of a step over {words} words need at "
            f"least {scores / GB:,.1f} GB; {where}"
        )
    return found


@lru_cache(2)
def available(device: str) -> float:
    """Memory in bytes of the GPU, or of the machine (or the limit of its control group); infinite if unknown."""
    if device == "cuda":
        import torch

        try:
            return float(torch.cuda.get_device_properties(0).total_memory)
        except (AssertionError, RuntimeError):  # torch without CUDA, or a driver that does not respond
            return float("inf")
    found = [float("inf")]
    if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        found.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    for path in CGROUP:
        try:
            found.append(float(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no control group, or no limit ("max")
            continue
    return min(found)
