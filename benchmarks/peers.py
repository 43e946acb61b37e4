"""Implementations of our mappings in other packages, if these are installed. Only the benchmarks use them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import torch
from torch import Tensor

Contestant = Callable[[Tensor], Tensor]


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # compiled packages fail to import in many ways; any failure means "not installed"
        return None


def _entmax(name: str) -> dict[str, Contestant]:
    entmax = _module("entmax")
    if entmax is None:
        return {}
    if name == "sparsemax":
        return {
            "- entmax.sparsemax": lambda x: entmax.sparsemax(x, dim=-1),
            "- entmax.sparsemax k=32": lambda x: entmax.sparsemax(x, dim=-1, k=min(32, x.shape[-1])),
        }
    if name == "entmax 1.5":
        return {
            "- entmax.entmax15": lambda x: entmax.entmax15(x, dim=-1),
            "- entmax.entmax15 k=32": lambda x: entmax.entmax15(x, dim=-1, k=min(32, x.shape[-1])),
        }
    if name == "entmax 1.3":
        return {"- entmax.entmax_bisect": lambda x: entmax.entmax_bisect(x, alpha=1.3, dim=-1)}
    if name == "pnormmax 1.5" and hasattr(entmax, "normmax_bisect"):
        return {"- entmax.normmax_bisect (alike, not equal)": lambda x: entmax.normmax_bisect(x, alpha=3.0, dim=-1)}
    return {}


def _jaxopt(name: str) -> dict[str, Contestant]:
    jaxopt, jax = _module("jaxopt"), _module("jax")
    if name != "sparsemax" or jaxopt is None or jax is None:
        return {}
    project = jax.jit(jax.vmap(jaxopt.projection.projection_simplex))
    return {"- jaxopt.projection_simplex": lambda x: torch.from_dlpack(project(jax.numpy.asarray(x.detach().numpy())))}


def _projected(prox: Contestant) -> Contestant | None:
    entmax = _module("entmax")
    return None if entmax is None else lambda x: entmax.sparsemax(prox(x), dim=-1)


def _prox_tv(name: str) -> dict[str, Contestant]:
    prox_tv = _module("prox_tv")
    if name != "fusedmax .1" or prox_tv is None:
        return {}

    def prox(x: Tensor) -> Tensor:
        rows = [torch.from_numpy(prox_tv.tv1_1d(row, 0.1)) for row in x.detach().double().numpy()]
        return torch.stack(rows).to(x.dtype)

    whole = _projected(prox)
    return {"- prox_tv row by row + entmax.sparsemax": whole} if whole else {}


def _isotonic(name: str) -> dict[str, Contestant]:
    """oscarmax composed of a sort, another package's isotonic regression, and a simplex projection."""
    if name != "oscarmax .01":
        return {}
    found: dict[str, Contestant] = {}
    torchsort, torchisotonic = _module("torchsort"), _module("torchisotonic")
    regressions: dict[str, Contestant] = {}
    if torchsort is not None and hasattr(torchsort, "isotonic_l2"):
        regressions["torchsort"] = torchsort.isotonic_l2
    if torchisotonic is not None and hasattr(torchisotonic, "isotonic_regression"):
        regressions["torchisotonic"] = lambda y: torchisotonic.isotonic_regression(y, increasing=False)
    for label, regress in regressions.items():

        def prox(x: Tensor, regress: Contestant = regress) -> Tensor:
            ordered, order = torch.sort(x, dim=-1, descending=True)
            rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
            return torch.zeros_like(x).scatter(-1, order, regress(ordered + 0.01 * rank))

        whole = _projected(prox)
        if whole is not None:
            found[f"- sort + {label} + entmax.sparsemax"] = whole
    return found


def peers(name: str) -> dict[str, Contestant]:
    """Installed implementations for the case labelled ``name``, by label."""
    return _entmax(name) | _jaxopt(name) | _prox_tv(name) | _isotonic(name)


def versions() -> dict[str, str]:
    """Versions of torch and of every installed peer."""
    found = {}
    for package in ("torch", "entmax", "jaxopt", "prox_tv", "torchsort", "torchisotonic"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
