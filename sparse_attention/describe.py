"""Descriptions of mappings: their hyperparameters with ranges, what they work on, and their source.

All range checks of hyperparameters are in `Param`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .errors import meant

KINDS = ("simplex", "unnormalised", "constrained", "stateful", "structured", "continuous")
OVER = ("row", "grid", "sequence", "matching", "tree", "density")
DOMAINS = ("real", "nonnegative")
LEARNED = "learned"  # given instead of a number: the value is learned in training, see `Param.learned`


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
        """Check the value and return it as it will be used. Raises ValueError with the value and the range."""
        if type(value) is float and self.low < value < self.high and not self.whole and not self.choices:
            return value  # shortcut, since every call comes through here
        if self.choices:
            if value not in self.choices:
                raise ValueError(f"{self.name}={value!r} is not one of {', '.join(self.choices)}")
            return value
        if self.whole or not (self.tensor and isinstance(value, Tensor)):
            value = number_of(value)
        if isinstance(value, Tensor):
            if not self.tensor:
                raise ValueError(f"{self.name} must be a number, not a tensor of shape {tuple(value.shape)}")
            if self.whole and value.is_floating_point():
                raise ValueError(f"{self.name} is {value.dtype}; it must be a number or a tensor of integers")
            if value.dtype == torch.bool:
                shape = f"of shape {tuple(value.shape)}, which looks like a mask; did you mean mask=...?"
                raise ValueError(f"{self.name} is a boolean tensor {shape}")
            return value
        if value is None and (self.required or self.optional):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            learned = f" or {LEARNED}" if self.learned else ""
            hint = meant(value, [LEARNED] if self.learned else [])
            raise ValueError(f"{self.name}={value!r} is not a number{hint}; allowed: {self.range}{learned}")
        number = float(value)
        if not self._inside(number) or not math.isfinite(number) or (self.whole and not number.is_integer()):
            raise ValueError(f"{self.name}={value!r} is out of range: {self.range}")
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
            ValueError: unknown parameter names or values out of range.
        """
        known = {p.name: p for p in self.params}
        mistakes: list[str] = []
        for name in given:
            if name not in known:
                allowed = ", ".join(known) or "none"
                mistakes.append(f"{self.name} has no parameter {name!r}{meant(name, known)}; it takes: {allowed}")
        values = {}
        for name, param in known.items():
            if (param.required or param.each) and given.get(name) is None:
                continue
            value = given.get(name, param.default)
            try:
                values[name] = value if param.learned and value == LEARNED else param.check(value)
            except ValueError as error:
                mistakes.append(f"{self.name}: {error}")
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return values
