"""The library's public names with their signatures, as the text file docs/reference/api.txt, written by `make pages`.

A change of this file is a change for users: CONTRIBUTING.md, "Public names", says how names may change.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import sparse_attention as sa

MODULES = (
    "nn", "fused", "losses", "prox", "quality", "structured", "properties", "continuous", "kernels", "integrations",
    "integrations.sdpa", "integrations.entmax", "integrations.torchsparseattn", "integrations.transformers",
)  # fmt: skip
HEAD = "The public names of sparse_attention with their signatures; written by `make pages`.\n"


def listing() -> str:
    """One line for each name, in alphabetical order within its module."""
    own = {name: getattr(sa, name) for name in dir(sa)}
    lines = [HEAD, *_lines("sa", {n: x for n, x in own.items() if not inspect.ismodule(x) and _ours(x)})]
    for module in MODULES:
        found: Any = getattr(sa, module, None) or importlib.import_module(f"sparse_attention.{module}")
        own = {n: x for n, x in vars(found).items() if n[0] != "_" and getattr(x, "__module__", "").startswith(found.__name__)}  # fmt: skip
        names = {n: getattr(found, n) for n in getattr(found, "__all__", own)}
        lines += ["", *_lines(f"sa.{module}", {n: x for n, x in names.items() if not inspect.ismodule(x)})]
    return "\n".join(lines) + "\n"


def _ours(thing: Any) -> bool:
    """False for what a plugin or a test registered."""
    return getattr(thing, "__module__", "sparse_attention").startswith("sparse_attention")


def _lines(where: str, things: dict[str, Any]) -> list[str]:
    lines = []
    for name, thing in sorted(things.items()):
        if not callable(thing):
            lines.append(f"{where}.{name}")
            continue
        lines.append(f"{where}.{name}{_signature(thing)}")
        if inspect.isclass(thing):
            methods = {n: m for n, m in vars(thing).items() if n[0] != "_" and (inspect.isfunction(m) or isinstance(m, property))}  # fmt: skip
            lines += [f"{where}.{name}.{n}{'' if isinstance(m, property) else _signature(m)}" for n, m in sorted(methods.items())]  # fmt: skip
    return lines


class _Named:
    """A function as a default, shown by its name."""

    def __init__(self, function: Any):
        self.name = function.__name__

    def __repr__(self) -> str:
        return self.name


def _signature(thing: Any) -> str:
    """Names and defaults of the arguments; types are in the stubs."""
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    bare = [p.replace(annotation=inspect.Parameter.empty, default=_Named(p.default) if callable(p.default) and not inspect.isclass(p.default) else p.default) for p in given.parameters.values()]  # fmt: skip
    return str(given.replace(parameters=bare, return_annotation=inspect.Signature.empty))
