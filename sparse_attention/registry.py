"""Register, find and build mappings.

A mapping turns scores into attention. Each mapping has a name and a description of its parameters, which is used for
configurations, docs and error messages. It comes in two forms: a function ``f(scores, dim=-1, ..., mask=None)`` and a
module ``make(name, ...)(scores, mask=None, dim=-1)``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace as changed
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .describe import DOMAINS, KINDS, OVER, Param, Spec
from .errors import Refused, meant
from .modules import Mapping, module_class
from .rows.apply import under_contract

Thing = TypeVar("Thing", bound=Callable[..., Any])
_SPECS: dict[str, Spec] = {}
_OF_SOME = {  # argument names of some mappings -> what to do with the others
    "segments": "pass a nested tensor with one row for each segment (torch.nested), loop over the segments, or "
    "use group_sparsemax, which calls them groups",
    "dtype": "convert the scores: scores.to(dtype)",
}
_OF_ROWS = ("simplex", "unnormalised")  # kinds whose functions get the contract


class UnknownMappingError(Refused, KeyError, ValueError):
    """No mapping has this name; the message suggests the nearest name and lists all names."""


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
    """Decorator that registers a function or an ``nn.Module`` class as a mapping under a name.

    A *function* of kind ``simplex`` or ``unnormalised`` is called as ``f(scores [..., n], mask [..., n], **params)`` and
    returns the attention along the last dimension. Rows of an unnormalised one need not sum to 1. A *class* is
    constructed with the parameters and called as ``m(scores, mask)``.
    The registry adds the rest of the contract: any ``dim``, zeros at masked positions and in fully masked rows, NaN
    only in its own row, and half precision computed in float32. A function with an argument ``dim`` must meet the whole
    contract itself.

    A class with ``start(mask, **inputs) -> state`` and ``step(scores, state, mask) -> (p, state)`` is *stateful*. Its
    scores and mask are ``[B, n]``, its state is a dict of batch-first tensors, and the contract is added around
    ``step``. Its kind is ``stateful``, not ``simplex``.

    Args:
        over: what the mapping works on: row, grid, sequence, matching, tree or density. The contract is added only for rows;
            a function over anything else gets its arguments unchanged.
        inputs: names of the other tensors that a call needs, besides scores and mask. They are passed to the function
            or, if the mapping is stateful, to ``start``.
        params: ranges and meanings of the parameters. Defaults come from the signature. A parameter that is not
            described here is added if its default is a number or a string.
        paper, oracle: the source of the mapping, and the reference that tests compare it with.
        summary: a one-line description; by default the first line of the docstring.
        domain: "nonnegative" if the mapping is undefined (NaN) for a row with a negative score.
        replace: replace an existing mapping of the same name.

    Raises:
        ValueError: unknown kind, over or domain; the name is already taken or is not an identifier; ``params``
            describes a parameter that does not exist; a parameter of a function has the name of an attribute of
            `Mapping`; a function with an argument ``dim`` ignores its mask.
    """
    for what, value, allowed in (("kind", kind, KINDS), ("over", over, OVER), ("domain", domain, DOMAINS)):
        Param(what, choices=allowed).check(value)
    if not name.isidentifier():
        raise ValueError(f"invalid mapping name {name!r}: use letters, digits and underscores, not a digit first")

    def decorate(thing: Thing) -> Thing:
        if name in _SPECS and not replace:
            why = f"({_SPECS[name].summary}); pass replace=True to replace it"
            raise ValueError(f"the name {name!r} is already registered {why}")
        is_class = inspect.isclass(thing) and issubclass(thing, nn.Module)
        stateful = is_class and hasattr(thing, "start") and hasattr(thing, "step")
        if not is_class and over != "density" and str(thing.__module__).partition(".")[0] == __package__:
            thing = _refusing(thing, name)
        own = not is_class and "dim" in inspect.signature(thing).parameters
        contract = kind in _OF_ROWS and over == "row" and not own
        described = _described(thing, {p.name: p for p in params}, name)
        if not is_class and (taken := [p.name for p in described if p.name in {*dir(Mapping), *vars(nn.Module())}]):
            raise ValueError(
                f"{name}: {', '.join(taken)} cannot be a parameter, since sa.Mapping has an attribute of the name"
            )
        function = None if is_class else _with_contract(thing, described) if contract else thing
        if is_class and any(p.learned for p in described):
            raise ValueError(f"{name}: a class learns its own parameters; only those of a function can be 'learned'")
        if own and kind in _OF_ROWS and over == "row":
            _check_mask(name, thing, described)
        text = summary or (inspect.getdoc(thing) or "").strip().split("\n")[0]
        sort = "stateful" if stateful and kind == "simplex" else kind
        spec = Spec(name, sort, over, tuple(inputs), stateful, described, paper, oracle, text, function, domain=domain)
        module = module_class(spec, thing, contract)
        module.spec = _SPECS[name] = changed(spec, module=module)
        return thing

    return decorate


def names(kind: str | None = None) -> list[str]:
    """The registered names, in order of registration: all names, or only those of one kind.

    Raises:
        ValueError: unknown kind.
    """
    if kind is not None:
        Param("kind", choices=KINDS).check(kind)
    return [s.name for s in _SPECS.values() if kind is None or s.kind == kind]


def spec(name: str) -> Spec:
    """The description of a mapping: its parameters, paper, function and module.

    Raises:
        UnknownMappingError: unknown name; the message suggests the nearest name and lists all names.
    """
    if not isinstance(name, str):
        raise UnknownMappingError(f"{shown(name)} is not a name", step=f"give one of {', '.join(_SPECS)}")
    if name not in _SPECS:
        known = f"the registered ones are {', '.join(_SPECS)}"
        add = "add your own with @sparse_attention.register(name)"
        raise UnknownMappingError(f"no mapping is called {name!r}{meant(name, _SPECS)}", known, add)
    return _SPECS[name]


def make(name: str, **params: Any) -> Mapping:
    """Build a mapping as a module: ``make("entmax", alpha=1.5)``.

    Raises:
        UnknownMappingError: unknown name.
        ValueError: unknown parameter, or a value out of its range.
    """
    return spec(name).module(**params)  # type: ignore[return-value]


def shown(mapping: Any) -> str:
    """What was given as a mapping, for an error message, with the name that was probably meant."""
    kind = "class" if inspect.isclass(mapping) else "module" if isinstance(mapping, torch.nn.Module) else "function"
    if kind == "function" and not callable(mapping):
        return f"mapping={mapping!r}"
    own = type(mapping) if kind == "module" else mapping
    name = getattr(own, "__name__", type(mapping).__name__)
    return f"the {kind} {name}{meant(name.lower(), _SPECS)}"


def checked(mapping: Any) -> Any:
    """A mapping that is a module or a function, called as ``f(scores, mask=keep)``. Raises TypeError if it is neither."""
    if inspect.isclass(mapping):
        raise TypeError(
            f"{shown(mapping)} must be called first: pass a module, such as {mapping.__name__}(), or a name"
        )
    if not callable(mapping):
        raise TypeError(
            f"{shown(mapping)} must be a module, a function f(scores, mask=keep) or one of the names {', '.join(_SPECS)}"
        )
    return mapping


def built(mapping: Any, params: dict[str, Any]) -> Any:
    """The mapping of a name with its parameters, as a module; a module or function is returned as it is.

    Raises:
        TypeError: it is neither (`checked`). ValueError: parameters are given together with a module or function.
    """
    if isinstance(mapping, str):
        return make(mapping, **params)
    checked(mapping)
    if params:
        raise ValueError(f"{', '.join(params)}: allowed only with a mapping's name; set them in {mapping!r} itself")
    return mapping


def public() -> dict[str, Any]:
    """The functions and modules of all mappings, by their public names."""
    found = {s.name: s.function for s in map(spec, names()) if s.function is not None}
    return {**found, **{s.module.__name__: s.module for s in map(spec, names())}}


def _described(thing: Any, given: dict[str, Param], name: str) -> tuple[Param, ...]:
    """The parameters that are described or have a number or string as default; scores, mask and dim are left out."""
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
        said = f"{name}: params describes {', '.join(given)}, which is no argument of the mapping; add it there or remove it"
        raise ValueError(said)
    return tuple(found)


def _check_mask(name: str, function: Callable[..., Tensor], described: tuple[Param, ...]) -> None:
    """Raise ValueError if a function that adds its own contract gives weight to a masked position of a small row."""
    if function.__module__.partition(".")[0] == __package__:
        return  # ours are tested, and a call here would compile the kernels on import
    scores, mask = torch.tensor([[1.0, 2.0, 0.5]], device="cpu"), torch.tensor([[True, False, True]], device="cpu")
    try:
        lost = function(scores, mask=mask, **{p.name: p.default for p in described})[~mask].sum().item()
    except Exception:
        return  # for example, a function for GPUs only; it fails again, with its own message, when it is used
    if lost != 0:
        raise ValueError(
            f"{name} gives weight {lost:.2g} to a masked position. A function with an argument dim must handle masks "
            f"itself; without dim, as {name}(scores, mask, ...), the registry adds masks and dim"
        )


def _refusing(function: Any, name: str) -> Any:
    """The function; an argument of `_OF_SOME` that it does not have is refused by name."""
    lacks = tuple(word for word in _OF_SOME if word not in inspect.signature(function).parameters)
    if not lacks:
        return function

    @functools.wraps(function)
    def refusing(*args: Any, **params: Any) -> Any:
        for word in lacks:
            if word not in params:
                continue
            known = {s.name: inspect.signature(s.function).parameters for s in _SPECS.values() if s.function}
            able = ", ".join(one for one, parameters in known.items() if word in parameters)
            said = f"{name} takes no {word}; {able} do. For {name}, {_OF_SOME[word]}"
            raise TypeError(said)
        return function(*args, **params)

    return refusing


def _with_contract(function: Callable[..., Tensor], described: tuple[Param, ...]) -> Callable[..., Tensor]:
    known = {param.name: param for param in described}

    def mapped(scores: Tensor, dim: int = -1, mask: Tensor | None = None, **params: Any) -> Tensor:
        taken = {name: known[name].take(value) if name in known else value for name, value in params.items()}
        rows = {n: x for n, x in taken.items() if isinstance(x, Tensor) and n in known and not known[n].each}
        return under_contract(function, scores, dim, mask, rows, **{n: x for n, x in taken.items() if n not in rows})

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(mapped, name, getattr(function, name))
    own = list(inspect.signature(mapped).parameters.values())[:-1]
    keywords = [inspect.Parameter(p.name, inspect.Parameter.KEYWORD_ONLY, default=p.default) for p in described]
    mapped.__signature__ = inspect.Signature(own + keywords)  # type: ignore[attr-defined]
    return mapped


__all__ = ["KINDS", "OVER", "Mapping", "Param", "Spec", "UnknownMappingError", "make", "names", "register", "spec"]
