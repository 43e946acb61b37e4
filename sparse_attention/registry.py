"""Register, find and build mappings.

A mapping turns scores into attention. Every one is known by a name, carries the description of its parameters (so that
configurations, pages and error messages are made from one place) and exists twice: as a function
``f(scores, dim=-1, ..., mask=None)`` and as a module ``make(name, ...)(scores, mask=None, dim=-1)``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

KINDS = ("simplex", "constrained", "structured", "continuous")

# Families that are only imported when somebody asks for a name that is not known yet, or for the whole list.
_LAZY_FAMILIES = ("sparse_attention.mappings.continuous", "sparse_attention.mappings.sparsemap")


class UnknownMappingError(KeyError, ValueError):
    """The name is not registered; the message gives the nearest one and the whole list."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


@dataclass(frozen=True)
class Param:
    """One hyperparameter: what it means and where it may lie.

    ``low`` and ``high`` are open ends unless ``closed_low`` / ``closed_high``; ``choices`` replaces them for words;
    ``tensor`` says that a tensor (a learned value, per head or per row) is accepted as well as a number; ``grid`` is
    what the paper sweeps or what we suggest.
    """

    name: str
    default: Any = None
    low: float = -math.inf
    high: float = math.inf
    closed_low: bool = False
    closed_high: bool = False
    choices: tuple[str, ...] = ()
    tensor: bool = True
    required: bool = False
    meaning: str = ""
    grid: tuple[Any, ...] = ()

    @property
    def range(self) -> str:
        """The allowed set in words, e.g. ``lam >= 0`` or ``1 < p <= 2``."""
        if self.choices:
            return f"{self.name} in {{{', '.join(self.choices)}}}"
        left = "" if self.low == -math.inf else f"{self.low:g} {'<=' if self.closed_low else '<'} "
        right = "" if self.high == math.inf else f" {'<=' if self.closed_high else '<'} {self.high:g}"
        if left and not right:
            return f"{self.name} {'>=' if self.closed_low else '>'} {self.low:g}"
        return f"{left}{self.name}{right}" if left or right else f"any finite {self.name}"

    def check(self, value: Any) -> Any:
        """Return the value as it will be used, or raise ``ValueError`` naming the range and the value."""
        if type(value) is float and self.low < value < self.high:
            return value  # on the path of every call
        if self.choices:
            if value not in self.choices:
                raise ValueError(f"{self.name}={value!r} is not possible: {self.range}")
            return value
        if isinstance(value, Tensor):
            if not self.tensor:
                raise ValueError(f"{self.name} must be a number, not a tensor of shape {tuple(value.shape)}")
            return value
        if self.required and value is None:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self.name}={value!r} is not a number; allowed: {self.range}")
        number = float(value)
        above = number > self.low or (self.closed_low and number == self.low)
        below = number < self.high or (self.closed_high and number == self.high)
        if not (above and below and math.isfinite(number)):
            raise ValueError(f"{self.name}={value!r} is out of range: {self.range}")
        return number


@dataclass(frozen=True)
class Spec:
    """What is known about a mapping: ``sa.spec(name)``."""

    name: str
    kind: str
    params: tuple[Param, ...]
    paper: str
    oracle: str
    summary: str
    function: Callable[..., Tensor] | None = field(repr=False, default=None)
    module: type[nn.Module] | None = field(repr=False, default=None)
    # Only set for classes registered from outside: the module that `Mapping` wraps.
    inner: type[nn.Module] | None = field(repr=False, default=None)

    @property
    def defaults(self) -> dict[str, Any]:
        return {p.name: p.default for p in self.params if not p.required}

    def check(self, given: dict[str, Any]) -> dict[str, Any]:
        """All parameters, validated; every mistake is reported at once.

        Raises:
            ValueError: unknown parameter names or values out of range.
        """
        known = {p.name: p for p in self.params}
        mistakes = []
        for name in given:
            if name not in known:
                allowed = ", ".join(known) or "none"
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                mistakes.append(f"{self.name} has no parameter {name!r}{hint}; it takes: {allowed}")
        values = {}
        for name, param in known.items():
            if name not in given and param.required:
                continue
            try:
                values[name] = param.check(given.get(name, param.default))
            except ValueError as error:
                mistakes.append(f"{self.name}: {error}")
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return values


_SPECS: dict[str, Spec] = {}


class Mapping(nn.Module):
    """A mapping with its parameters fixed: ``m(scores, mask=None, dim=-1)``.

    Numbers are kept as they are; tensors become buffers and ``nn.Parameter`` s become parameters, so that a learned
    ``lam`` moves with the model and is seen by the optimiser.

    Call shapes:
        scores ``[..., n, ...]`` with ``n`` at ``dim``; mask bool, broadcastable to scores, ``True`` = keep.
        Returns the same shape as scores. Further keyword arguments (``bounds`` of the constrained mappings) are passed
        to the function.
    """

    mapping_name: str = ""

    def __init__(self, *, _name: str = "", **params: Any):
        super().__init__()
        self._name = _name or self.mapping_name
        spec = self.spec
        self._numbers: dict[str, Any] = {}
        self._learned: list[str] = []
        if spec.inner is not None:
            self._numbers = spec.check(params)
            self.inner = spec.inner(**self._numbers)
            return
        for name, value in spec.check(params).items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
                self._learned.append(name)
            elif isinstance(value, Tensor):
                self.register_buffer(name, value)
                self._learned.append(name)
            else:
                self._numbers[name] = value

    @property
    def spec(self) -> Spec:
        return spec(self._name)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters by name, numbers and tensors together."""
        values = dict(self._numbers)
        for name in self._learned:
            values[name] = getattr(self, name)
        return values

    def forward(self, scores: Tensor, mask: Tensor | None = None, dim: int = -1, **inputs: Tensor) -> Tensor:
        known = _SPECS.get(self._name) or spec(self._name)
        if known.inner is not None:
            from .mappings._contract import under_contract

            return under_contract(self.inner, scores, dim, mask)
        assert known.function is not None
        values = self._numbers if not self._learned else self.params
        return known.function(scores, dim=dim, mask=mask, **values, **inputs)

    def extra_repr(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self._numbers.items()]
        shown += [
            f"{name}=<{'learned' if getattr(self, name).requires_grad else 'fixed'} {tuple(getattr(self, name).shape)}>"
            for name in self._learned
        ]
        # A mapping registered from outside has no class of its own to show its name.
        return ", ".join(([self._name] if type(self) is Mapping else []) + shown)


def register(
    name: str,
    *,
    kind: str = "simplex",
    params: tuple[Param, ...] | list[Param] | None = None,
    paper: str = "",
    oracle: str = "",
    summary: str = "",
    replace: bool = False,
    complete: bool = False,
) -> Callable[[Any], Any]:
    """Make a mapping known by name; a decorator for a function or an ``nn.Module`` class.

    A *function* of kind ``simplex`` is called as ``f(scores [..., n], mask [..., n], **params)`` with the
    attention along the last dimension; a *class* is built with the parameters and called as ``m(scores, mask)``. The
    registry adds the rest of the contract: any ``dim``, zeros at masked positions and in fully masked rows, NaN kept
    in its row, half precision computed in float32.

    Args:
        params: descriptions; by default read from the signature's numeric defaults.
        replace: allow a name that is taken.
        complete: the function keeps the whole contract itself, ``f(scores, dim=, mask=, **params)``.

    Raises:
        ValueError: unknown kind, name taken or not an identifier.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot be a mapping's name: use letters, digits and underscores")

    def decorate(thing: Any) -> Any:
        if name in _SPECS and not replace:
            raise ValueError(
                f"{name!r} is already registered ({_SPECS[name].summary}); pass replace=True to replace it"
            )
        described = tuple(params) if params is not None else _params_from_signature(thing)
        text = summary or (inspect.getdoc(thing) or "").strip().split("\n")[0]
        is_class = inspect.isclass(thing) and issubclass(thing, nn.Module)
        function, module, inner = None, None, None
        if is_class and kind == "simplex" and not complete:
            inner, module = thing, Mapping
        elif is_class:
            module = thing
        elif complete or kind != "simplex":
            function = thing
        else:
            function = _with_contract(thing)
        _SPECS[name] = Spec(name, kind, described, paper, oracle, text, function, module, inner)
        return thing

    return decorate


def set_module(name: str, module: type[nn.Module]) -> None:
    """Say which class ``make`` builds for a registered function (its named twin, e.g. ``Fusedmax``)."""
    from dataclasses import replace as changed

    _SPECS[name] = changed(_SPECS[name], module=module)


def names(kind: str | None = None) -> list[str]:
    """Registered names in order of registration, all or of one kind.

    Raises:
        ValueError: unknown kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    if kind not in ("simplex", "constrained"):
        _load_lazy_families()
    return [s.name for s in _SPECS.values() if kind is None or s.kind == kind]


def spec(name: str) -> Spec:
    """Everything known about one mapping.

    Raises:
        UnknownMappingError: names the nearest registered name and the list.
    """
    found = _SPECS.get(name)
    if found is None:
        _load_lazy_families()
        found = _SPECS.get(name)
    if found is None:
        near = difflib.get_close_matches(str(name), _SPECS, n=1, cutoff=0.4)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise UnknownMappingError(
            f"no mapping is called {name!r}{hint}. Registered: {', '.join(_SPECS)}. "
            "Add your own with @sparse_attention.register(name)."
        )
    return found


def make(name: str, **params: Any) -> nn.Module:
    """Build the module of a mapping: ``make("fusedmax", lam=0.1)``.

    Raises:
        UnknownMappingError: unknown name.
        ValueError: unknown parameter, or a value out of its range.
    """
    found = spec(name)
    if found.module is None or found.module is Mapping:
        return Mapping(_name=name, **params)
    if issubclass(found.module, Mapping):
        found.check(params)  # names and ranges together, before a constructor would stumble over the first
    return found.module(**params)


def _load_lazy_families() -> None:
    for family in _LAZY_FAMILIES:
        if importlib.util.find_spec(family) is not None:
            importlib.import_module(family)


def _params_from_signature(thing: Any) -> tuple[Param, ...]:
    """Numbers and words with a default become parameters; the scores, the mask and ``dim`` do not."""
    found = []
    for parameter in inspect.signature(thing).parameters.values():
        default = parameter.default
        if parameter.name in ("scores", "mask", "dim", "self") or default is inspect.Parameter.empty:
            continue
        if isinstance(default, str):
            found.append(Param(parameter.name, default, choices=(default,)))
        elif isinstance(default, (int, float)) and not isinstance(default, bool):
            found.append(Param(parameter.name, float(default)))
    return tuple(found)


def _with_contract(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mapped(scores: Tensor, dim: int = -1, mask: Tensor | None = None, **params: Any) -> Tensor:
        from .mappings._contract import under_contract

        return under_contract(function, scores, dim, mask, **params)

    mapped.__name__ = getattr(function, "__name__", "mapped")
    mapped.__doc__ = function.__doc__
    return mapped


__all__ = [
    "KINDS",
    "Mapping",
    "Param",
    "Spec",
    "UnknownMappingError",
    "make",
    "names",
    "register",
    "set_module",
    "spec",
]
