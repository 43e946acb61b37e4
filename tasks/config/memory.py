"""Whether a training can fit in memory, estimated before data are read.

    bytes >= 4 (P (2 + s) processes + A)       P parameters, s numbers that the optimiser keeps of each (Adam 2, SGD 0)
                                               A activations that a batch keeps for its gradients

`Options.numbers` of the model is a lower bound of both: the large matrices only, TOKENS tokens per text, a vocabulary of
`encode.vocab_size` (WORDS where it is not set). So a configuration that could run is never refused; one that is accepted can
still be too large.
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
    """Why a configuration needs more memory than this machine has, one sentence each.

    Args:
        model: the model's options; without `numbers`, nothing is estimated.
    """
    if not hasattr(model, "numbers"):
        return []
    device, train = config["runtime"]["device"], config["train"]
    there = available(device)
    limit = (config["data"].get("limits") or {}).get("train")
    batch_size, max_tokens, _ = shares(train)
    examples = min(n for n in (batch_size, limit, max_tokens and max(max_tokens // TOKENS, 1)) if n)
    words = config["encode"].get("vocab_size") or WORDS
    parameters, activations = model.numbers(examples, words, TOKENS)
    copies = train["processes"] if device == "cpu" else 1
    weights = BYTES * parameters * (2 + KEPT[config["optim"]["name"]]) * copies
    batch = BYTES * activations * copies
    where = f"this machine has {there / GB:.1f} GB" if device == "cpu" else f"the GPU has {there / GB:.1f} GB"
    found = []
    if weights + batch > there:
        sizes = {k: v for k, v in config["model"].items() if type(v) is int}
        set_to = [f"model.{k}={v}" for k, v in sorted(sizes.items(), key=lambda size: -size[1])]
        largest = "batch_size" if train["batch_size"] else "max_tokens"
        set_to += [f"train.{largest}={train[largest]}", f"train.processes={train['processes']}"]
        if "vocab_size" in config["encode"]:
            set_to.append(f"encode.vocab_size={config['encode']['vocab_size']}")
        found.append(
            f"{', '.join(set_to)}: training needs at least {(weights + batch) / GB:,.1f} GB ({parameters:,.0f} parameters with gradients and "
            f"{config['optim']['name']}: {weights / GB:,.1f} GB; a batch of {examples} examples with {TOKENS} tokens a text: "
            f"{batch / GB:,.1f} GB); {where}; reduce the largest of these values"
        )
    decode = config["decode"]
    if "beam" in decode and (scores := BYTES * decode["beam"] * decode["batch_size"] * words) > there:
        found.append(
            f"decode.beam={decode['beam']}, decode.batch_size={decode['batch_size']}: the scores of a step over {words} words need at "
            f"least {scores / GB:,.1f} GB; {where}; reduce one of them"
        )
    return found


@lru_cache(2)
def available(device: str) -> float:
    """Bytes of memory of the machine (or of its control group), or of the GPU; infinite where it is unknown."""
    if device == "cuda":
        import torch

        try:
            return float(torch.cuda.get_device_properties(0).total_memory)
        except (AssertionError, RuntimeError):  # a torch without CUDA, a driver that does not answer
            return float("inf")
    found = [float("inf")]
    if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        found.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    for path in CGROUP:
        try:
            found.append(float(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no control group, or "max"
            continue
    return min(found)
