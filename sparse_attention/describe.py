"""Descriptions of mappings: their hyperparameters with ranges, what they work on, and their source.

All range checks of hyperparameters are in `Param`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("simplex", "unnormalised", "constrained", "stateful", "structured", "continuous")
OVER = ("row", "grid", "sequence", "matching", "tree", "density")
DOMAINS = ("real", "nonnegative")
LEARNED = "learned"  # given instead of a number: the value is learned in training, see `Param.learned`


class Refusal(Exception):
    """A refused argument, with the parts of its message as fields.

    key: the argument's name. value: what was given, or its shape, dtype or strides. allowed: the allowed values, or their
    range as text. errors: the refusals, if it reports several.
    """

    def __init__(self, message: str, key: str = "", value: Any = None, allowed: Any = None, errors: Any = ()) -> None:
        super().__init__(message)
        self.key, self.value, self.allowed, self.errors = key, value, allowed, tuple(errors)


class InvalidValue(Refusal, ValueError):
    """An argument has an invalid value."""


class InvalidType(Refusal, TypeError):
    """An argument has an invalid type or dtype."""


def refuse(errors: Sequence[Refusal], separator: str = "; ") -> None:
    """Raise the errors, if any: a single one as it is, several as one `InvalidValue`."""
    if len(errors) > 1:
        raise InvalidValue(separator.join(map(str, errors)), errors=errors)
    for error in errors:
        raise error


@dataclass(frozen=True)
class Param:
    """One hyperparameter: its meaning and its range. Its default comes from the function's signature.

    The bounds ``low`` and ``high`` are excluded unless ``closed_low`` or ``closed_high`` is set. A parameter that is a
    string has ``choices`` instead of bounds. ``whole`` allows only whole numbers. ``tensor`` also allows a tensor (a
    learned value, or one value per head or per row). A number out of range is an error; a tensor value out of range
    makes its rows NaN. ``learned`` is the interval of the value if the module is made with "learned". ``optional`` also
    allows None; the mapping says what it means. ``each``: a tensor with a value per position, which broadcasts to the
    scores and may also be given in each call.
    """

    name: str
    default: Any = None
    low: float = -math.inf
    high: float = math.inf
    closed_low: bool = False
    closed_high: bool = False
    choices: tuple[str, ...] = ()
    whole: bool = False
    tensor: bool = True
    required: bool = False
    optional: bool = False
    each: bool = False
    learned: tuple[float, float] | None = None
    meaning: str = ""

    @property
    def range(self) -> str:
        """The range as text, e.g. ``lam >= 0`` or ``1 < p <= 2``."""
        if self.choices:
            return f"{self.name} in {{{', '.join(self.choices)}}}"
        kind = "a whole number, " if self.whole else ""
        left = "" if self.low == -math.inf else f"{self.low:g} {'<=' if self.closed_low else '<'} "
        right = "" if self.high == math.inf else f" {'<=' if self.closed_high else '<'} {self.high:g}"
        if left and not right:
            return f"{kind}{self.name} {'>=' if self.closed_low else '>'} {self.low:g}"
        return kind + (f"{left}{self.name}{right}" if left or right else f"any finite {self.name}")

    def check(self, value: Any) -> Any:
        """Check the value and return it as it will be used. Raises ``InvalidValue`` with the value and the range."""
        if type(value) is float and self.low < value < self.high and not self.whole and not self.choices:
            return value  # shortcut, since every call comes through here
        if self.choices:
            if value not in self.choices:
                raise self._refusal(value, f"={value!r} is not one of {', '.join(self.choices)}")
            return value
        if self.whole or not (self.tensor and isinstance(value, Tensor)):
            value = number_of(value)
        if isinstance(value, Tensor):
            if not self.tensor:
                raise self._refusal(value, f" must be a number, not a tensor of shape {tuple(value.shape)}")
            if self.whole and value.is_floating_point():
                raise self._refusal(value, f" is {value.dtype}; it must be a number or a tensor of integers")
            if value.dtype == torch.bool:
                shape = f"of shape {tuple(value.shape)}, which looks like a mask; did you mean mask=...?"
                raise self._refusal(value, f" is a boolean tensor {shape}")
            return value
        if value is None and (self.required or self.optional):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            learned = f" or {LEARNED}" if self.learned else ""
            near = difflib.get_close_matches(str(value), [LEARNED] if self.learned else [], n=1)
            hint = f" (did you mean {LEARNED!r}?)" if near else ""
            raise self._refusal(value, f"={value!r} is not a number{hint}; allowed: {self.range}{learned}")
        number = float(value)
        if not self._inside(number) or not math.isfinite(number) or (self.whole and not number.is_integer()):
            raise self._refusal(value, f"={value!r} is out of range: {self.range}")
        return int(number) if self.whole else number

    def take(self, value: Any) -> Any:
        """The value to compute with: a number as `check` returns it, or a tensor with NaN for values out of range.

        A NaN value makes its row NaN. Raising an error instead would need the values on the host: every call would wait
        for the device, and torch.compile would break the graph.
        """
        if type(value) is float and self.low < value < self.high:
            return value  # shortcut, since every call comes through here
        value = self.check(value)
        return torch.where(self._inside(value), value, torch.nan) if isinstance(value, Tensor) else value

    def _refusal(self, value: Any, problem: str) -> InvalidValue:
        return InvalidValue(f"{self.name}{problem}", key=self.name, value=value, allowed=self.choices or self.range)

    def _inside(self, value: Any) -> Any:
        above = value >= self.low if self.closed_low else value > self.low
        below = value <= self.high if self.closed_high else value < self.high
        return above & below


def number_of(value: Any) -> Any:
    """The number in a numpy scalar or a tensor or array without dimensions and gradient; anything else unchanged."""
    bare = getattr(value, "shape", None) == () and hasattr(value, "item") and not getattr(value, "requires_grad", False)
    number = value.item() if bare else value
    return float(number) if bare and hasattr(number, "item") else number  # numpy's longdouble stays one


@dataclass(frozen=True)
class Spec:
    """Description of a mapping, as returned by ``sa.spec(name)``.

    over: what the mapping works on; "row" takes any ``dim``, the others use the last dimensions. inputs: arguments that
    a call needs besides scores and mask. stateful: True if the mapping remembers earlier steps, see `Mapping.start` and
    `Mapping.step`. domain: the scores for which the mapping is defined, "real" (any) or "nonnegative".
    """

    name: str
    kind: str
    over: str
    inputs: tuple[str, ...]
    stateful: bool
    params: tuple[Param, ...]
    paper: str
    oracle: str
    summary: str
    function: Callable[..., Tensor] | None = field(repr=False, default=None)
    module: type[nn.Module] = field(repr=False, default=nn.Module)
    domain: str = "real"

    @property
    def defaults(self) -> dict[str, Any]:
        return {p.name: p.default for p in self.params if not p.required}

    def check(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return all parameters after checking them; all mistakes are reported in one error.

        Raises:
            InvalidValue: unknown parameter names or values out of range.
        """
        known = {p.name: p for p in self.params}
        mistakes: list[Refusal] = []
        for name in given:
            if name not in known:
                allowed = ", ".join(known) or "none"
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                said = f"{self.name} has no parameter {name!r}{hint}; it takes: {allowed}"
                mistakes.append(InvalidValue(said, key=self.name, value=name, allowed=tuple(known)))
        values = {}
        for name, param in known.items():
            if (param.required or param.each) and given.get(name) is None:
                continue
            value = given.get(name, param.default)
            try:
                values[name] = value if param.learned and value == LEARNED else param.check(value)
            except InvalidValue as error:
                mistakes.append(InvalidValue(f"{self.name}: {error}", **vars(error)))
        refuse(mistakes)
        return values
