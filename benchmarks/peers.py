"""Implementations of our mappings in other packages, if these are installed. Only the benchmarks use them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

Contestant = Callable[[Tensor], Tensor]


def _entmax(name: str, **params: float) -> Contestant:
    function = getattr(importlib.import_module("entmax"), name)
    return lambda x: function(x, dim=-1, **params)


def _entmax_top(name: str) -> Contestant:
    function = getattr(importlib.import_module("entmax"), name)
    return lambda x: function(x, dim=-1, k=min(32, x.shape[-1]))


def _jaxopt() -> Contestant:
    jax, jaxopt = map(importlib.import_module, ("jax", "jaxopt"))
    project = jax.jit(jax.vmap(jaxopt.projection.projection_simplex))
    return lambda x: torch.from_dlpack(project(jax.numpy.asarray(x.detach().numpy())))


def _prox_tv() -> Contestant:
    prox, project = importlib.import_module("prox_tv").tv1_1d, _entmax("sparsemax")
    return lambda x: project(
        torch.stack([torch.from_numpy(prox(row, 0.1)) for row in x.detach().double().numpy()]).to(x.dtype)
    )


def _isotonic(package: str, name: str, **params: bool) -> Contestant:
    """oscarmax composed of a sort, another package's isotonic regression, and a simplex projection."""
    regress, project = getattr(importlib.import_module(package), name), _entmax("sparsemax")

    def oscarmax(x: Tensor) -> Tensor:
        ordered, order = torch.sort(x, dim=-1, descending=True)
        rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        return project(torch.zeros_like(x).scatter(-1, order, regress(ordered + 0.01 * rank, **params)))

    return oscarmax


# label of a case -> label of an implementation -> function that makes it, if its packages are installed
PEERS: dict[str, dict[str, Callable[[], Contestant]]] = {
    "sparsemax": {
        "- entmax.sparsemax": partial(_entmax, "sparsemax"),
        "- entmax.sparsemax k=32": partial(_entmax_top, "sparsemax"),
        "- jaxopt.projection_simplex": _jaxopt,
    },
    "entmax 1.5": {
        "- entmax.entmax15": partial(_entmax, "entmax15"),
        "- entmax.entmax15 k=32": partial(_entmax_top, "entmax15"),
    },
    "entmax 1.3": {"- entmax.entmax_bisect": partial(_entmax, "entmax_bisect", alpha=1.3)},
    "pnormmax 1.5": {"- entmax.normmax_bisect (alike, not equal)": partial(_entmax, "normmax_bisect", alpha=3.0)},
    "fusedmax .1": {"- prox_tv row by row + entmax.sparsemax": _prox_tv},
    "oscarmax .01": {
        "- sort + torchsort + entmax.sparsemax": partial(_isotonic, "torchsort", "isotonic_l2"),
        "- sort + torchisotonic + entmax.sparsemax": partial(
            _isotonic, "torchisotonic", "isotonic_regression", increasing=False
        ),
    },
}


def peers(name: str) -> dict[str, Contestant]:
    """Installed implementations for the case labelled ``name``, by label."""
    found = {}
    for label, make in PEERS.get(name, {}).items():
        with contextlib.suppress(Exception):  # compiled packages fail to import in many ways: not installed
            found[label] = make()
    return found


def versions() -> dict[str, str]:
    """Versions of torch and of every installed peer."""
    found = {}
    for package in ("torch", "entmax", "jaxopt", "prox_tv", "torchsort", "torchisotonic"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
