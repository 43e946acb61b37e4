"""Register, find and build mappings.

A mapping turns scores into attention. Every one is known by a name, carries the description of its parameters (so that
configurations, pages and error messages are made from one place) and exists twice: as a function
``f(scores, dim=-1, ..., mask=None)`` and as a module ``make(name, ...)(scores, mask=None, dim=-1)``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace as changed
from typing import Any, TypeVar

from torch import Tensor, nn

from .describe import DOMAINS, KINDS, OVER, Param, Spec
from .rows.contract import under_contract
from .twins import Mapping, twin

Thing = TypeVar("Thing", bound=Callable[..., Any])
_SPECS: dict[str, Spec] = {}
_LATER: list[tuple[str, Callable[[], Any]]] = []


class UnknownMappingError(KeyError, ValueError):
    """The name is not registered; the message gives the nearest one and the whole list."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


def register(
    name: str,
    *,
    kind: str = "simplex",
    over: str = "row",
    inputs: tuple[str, ...] = (),
    params: Iterable[Param] = (),
    paper: str = "",
    oracle: str = "",
    summary: str = "",
    domain: str = "real",
    replace: bool = False,
) -> Callable[[Thing], Thing]:
    """Make a mapping known by name; a decorator for a function or an ``nn.Module`` class.

    A *function* of kind ``simplex`` is called as ``f(scores [..., n], mask [..., n], **params)`` with the
    attention along the last dimension; a *class* is built with the parameters and called as ``m(scores, mask)``. The
    registry adds the rest of the contract: any ``dim``, zeros at masked positions and in fully masked rows, NaN kept
    in its row, half precision computed in float32. A function with an argument ``dim`` keeps all of it by itself.

    A class with ``start(mask, **inputs) -> state`` and ``step(scores, state, mask) -> (p, state)`` is *stateful*: scores
    and mask ``[B, n]``, the state a dict of batch-first tensors. The contract is added around ``step``.

    Args:
        over: what it works over: row, grid, sequence, matching, density. The contract is that of rows; a function over
            something else is called with its arguments as they are.
        inputs: names of what a call needs besides scores and mask; handed to the function (stateful: to ``start``).
        params: ranges and meanings. Defaults are read from the signature, and so are parameters not described here
            whose default is a number or a word.
        summary: by default the first line of the docstring.
        domain: "nonnegative" when a row with a negative score has no value (NaN).
        replace: allow a name that is taken.

    Raises:
        ValueError: unknown kind, over or domain, name taken or not an identifier, a description of no parameter.
    """
    _one_of("kind", kind, KINDS)
    _one_of("over", over, OVER)
    _one_of("domain", domain, DOMAINS)
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot be a mapping's name: use letters, digits and underscores")

    def decorate(thing: Thing) -> Thing:
        if name in _SPECS and not replace:
            raise ValueError(
                f"{name!r} is already registered ({_SPECS[name].summary}); pass replace=True to replace it"
            )
        is_class = inspect.isclass(thing) and issubclass(thing, nn.Module)
        stateful = is_class and hasattr(thing, "start") and hasattr(thing, "step")
        own = not is_class and "dim" in inspect.signature(thing).parameters
        contract = kind == "simplex" and over == "row" and not own
        described = _described(thing, {p.name: p for p in params}, name)
        function = None if is_class else _with_contract(thing, described) if contract else thing
        if is_class and any(p.learned for p in described):
            raise ValueError(f"{name}: a class learns its own parameters; only a function's can be given as 'learned'")
        text = summary or (inspect.getdoc(thing) or "").strip().split("\n")[0]
        spec = Spec(name, kind, over, tuple(inputs), stateful, described, paper, oracle, text, function, domain=domain)
        module = twin(spec, thing, contract)
        module.spec = _SPECS[name] = changed(spec, module=module)
        return thing

    return decorate


def later(kind: str, load: Callable[[], Any]) -> None:
    """Call ``load`` when mappings of ``kind``, or a name that is not known, are first asked for."""
    _LATER.append((kind, load))


def _load(kind: str | None = None) -> None:
    for entry in [entry for entry in _LATER if kind in (None, entry[0])]:
        entry[1]()
        _LATER.remove(entry)


def names(kind: str | None = None) -> list[str]:
    """Registered names in order of registration, all or of one kind.

    Raises:
        ValueError: unknown kind.
    """
    if kind is not None:
        _one_of("kind", kind, KINDS)
    _load(kind)
    return [s.name for s in _SPECS.values() if kind is None or s.kind == kind]


def spec(name: str) -> Spec:
    """Everything known about one mapping.

    Raises:
        UnknownMappingError: names the nearest registered name and the list.
    """
    if name not in _SPECS:
        _load()
    if name not in _SPECS:
        near = difflib.get_close_matches(str(name), _SPECS, n=1, cutoff=0.4)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise UnknownMappingError(
            f"no mapping is called {name!r}{hint}. Registered: {', '.join(_SPECS)}. "
            "Add your own with @sparse_attention.register(name)."
        )
    return _SPECS[name]


def make(name: str, **params: Any) -> Mapping:
    """Build the module of a mapping: ``make("fusedmax", lam=0.1)``.

    Raises:
        UnknownMappingError: unknown name.
        ValueError: unknown parameter, or a value out of its range.
    """
    return spec(name).module(**params)  # type: ignore[return-value]


def public() -> dict[str, Any]:
    """Functions and modules of all mappings by the names that the package gives them."""
    found = {s.name: s.function for s in map(spec, names()) if s.function is not None}
    return {**found, **{s.module.__name__: s.module for s in map(spec, names())}}


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what}={value!r} is not one of {', '.join(allowed)}")


def _described(thing: Any, given: dict[str, Param], name: str) -> tuple[Param, ...]:
    """The parameters of a signature: those described, and numbers and words with a default; not scores, mask and dim."""
    found = []
    for parameter in inspect.signature(thing).parameters.values():
        default = parameter.default
        param = given.pop(parameter.name, None)
        if param is None:
            word = isinstance(default, str)
            if parameter.name in ("scores", "mask", "dim") or isinstance(default, bool):
                continue
            if not word and not isinstance(default, (int, float)):
                continue
            param = Param(parameter.name, choices=(default,) if word else ())
        if default is inspect.Parameter.empty:
            found.append(changed(param, required=True))
        else:
            found.append(changed(param, default=param.check(default)))
    if given:
        raise ValueError(f"{name}: params describes {', '.join(given)}, which its signature does not have")
    return tuple(found)


def _with_contract(function: Callable[..., Tensor], described: tuple[Param, ...]) -> Callable[..., Tensor]:
    def mapped(scores: Tensor, dim: int = -1, mask: Tensor | None = None, **params: Any) -> Tensor:
        return under_contract(function, scores, dim, mask, **params)

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(mapped, name, getattr(function, name))
    own = list(inspect.signature(mapped).parameters.values())[:-1]
    keywords = [inspect.Parameter(p.name, inspect.Parameter.KEYWORD_ONLY, default=p.default) for p in described]
    mapped.__signature__ = inspect.Signature(own + keywords)  # type: ignore[attr-defined]
    return mapped


__all__ = [
    "KINDS",
    "OVER",
    "Mapping",
    "Param",
    "Spec",
    "UnknownMappingError",
    "later",
    "make",
    "names",
    "register",
    "spec",
]
