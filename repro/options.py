"""Typed values: dataclasses that pydantic fills from the content of YAML files. All errors are found in one pass.

    @dataclass
    class Train:
        max_epochs: int = integer(low=1, help="epochs")
        precision: str = choice("fp32", "fp16", "bf16")

    train = read(Train, {"max_epochs": 2, "precision": "fp32"}, "train")

A field without one of the functions below accepts what its type says: text, numbers, bool, a mapping, a tuple of these, or
another dataclass. For rules that involve several fields, a class may define `problems(self) -> list[str]`, which is called
once every field is valid by itself.
"""

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from repro.errors import ConfigError, near

Options = TypeVar("Options")
LARGEST, WIDEST = 2**31 - 1, 1e15  # largest whole number and largest number of any option
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, eq=False)
class Kind:
    """The values that a field accepts.

    Attributes:
        type: the plain type of the value; that of a list may have `items`.
        must: what a value must be, for messages.
        rules: keywords of pydantic.Field, such as the least and the largest value.
        check: instead of pydantic's check, returns the value to use, or raises ValueError with what is wrong with a value.
    """

    type: Any
    must: str
    help: str = ""
    optional: bool = False
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    items: "Kind | None" = None
    check: Callable[[Any], Any] | None = None

    def parts(self) -> "dict[str, Kind]":
        """The kinds of the fields of a dataclass."""
        plain = [one for one in fields(self.type) if "kind" not in one.metadata]
        hints = get_type_hints(self.type) if plain else {}
        return {one.name: one.metadata.get("kind") or kind_of(hints[one.name]) for one in fields(self.type)}

    def defaults(self) -> dict[str, Any]:
        """The defaults of a dataclass, by field."""
        return {one.name: default_of(one) for one in fields(self.type) if default_of(one) is not MISSING}


def _field(kind: Kind) -> Any:
    return dataclasses.field(metadata={"kind": kind})


def option(type: type, read: Callable[[Any], Any], help: str = "", optional: bool = False) -> Any:
    """A field whose values `read` checks (`Kind.check`); with `optional`, None is also allowed."""
    return _field(Kind(type, "", help, optional, check=read))


def number(
    low: float = -WIDEST,
    high: float = WIDEST,
    *,
    above: float | None = None,
    below: float | None = None,
    help: str = "",
    optional: bool = False,
    type: type = float,
) -> Any:
    """A number in [low, high]; `above` and `below` set strict bounds instead."""
    least, most = (f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for bound in (low, high))
    left = f"of at least {least}" if above is None else f"above {above:g}"
    right = f"at most {most}" if below is None else f"below {below:g}"
    rules = {"ge": low, "le": high, "gt": above, "lt": below}
    return _field(Kind(type, f"must be {WORDS[type]} {left} and {right}", help, optional, rules))


def integer(low: int = -LARGEST, high: int = LARGEST, *, optional: bool = False, help: str = "") -> Any:
    """A whole number in [low, high]; 1.0 and true are rejected."""
    return number(low, high, help=help, optional=optional, type=int)


def flag(help: str = "") -> Any:
    """true or false."""
    return _field(Kind(bool, "must be true or false", help))


def text(*, optional: bool = False, help: str = "") -> Any:
    """A non-empty text of one line."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or len(value.splitlines()) > 1:
            raise ValueError("must be a text of one line")
        return value

    return option(str, read, help, optional)


def choice(
    *allowed: str,
    names: Callable[[], Iterable[str]] | None = None,
    optional: bool = False,
    help: str = "",
    default: Any = MISSING,
) -> Any:
    """One of the words in `allowed`, or one that `names()` returns."""

    def read(value: Any) -> str:
        known = tuple(allowed) + tuple(names() if names else ())
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"is invalid{near(value, known)}; allowed: {', '.join(known)}")
        return value

    return dataclasses.field(default=default, metadata=option(str, read, help, optional).metadata)


def listing(items: Any, *, length: int | None = None, least: int = 0, help: str = "") -> Any:
    """A list of items, each of which must be valid for the field `items` (made by one of these functions)."""
    size = f" of {length} values" if length else f" of at least {least}" if least else ""
    rules = {"min_length": length or least, "max_length": length}
    return _field(Kind(list, f"must be a list{size}", help, rules=rules, items=items.metadata["kind"]))


@lru_cache(512)
def kind_of(hint: Any) -> Kind:
    """What a field of a type accepts if the field says no more."""
    inner, origin = get_args(hint), get_origin(hint) or hint
    if origin is types.UnionType:
        return dataclasses.replace(kind_of(inner[0]), optional=True)
    if origin is tuple:
        return Kind(tuple, "must be a list", items=kind_of(inner[0]))
    if is_dataclass(hint):
        return Kind(hint, f"must be a mapping of {', '.join(one.name for one in fields(hint))}")
    if origin is Mapping:
        return Kind(dict[str, Any], "must be a mapping {name: value}")
    return Kind(hint, f"must be {WORDS[hint]}")


def default_of(field: dataclasses.Field) -> Any:
    """The default of a field, or MISSING."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def read(cls: type[Options], values: Any, name: str = "") -> Options:
    """`values` as an instance of the dataclass `cls`, with defaults filled in.

    Args:
        name: what prefixes the keys in messages, such as the name of a node.

    Raises ConfigError if there are unknown keys or invalid values; the message lists all of them.
    """
    from repro.validation import validated  # pydantic takes a tenth of a second to import

    return validated(kind_of(cls), values, name)  # type: ignore[arg-type, no-any-return]


def read_each(classes: Mapping[str, type], values: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Read several named sets of options, each with the class that `classes` has for its name. Raises ConfigError."""
    if wrong := [key for key in values if key not in classes]:
        raise ConfigError(f"{name}.{wrong[0]} is unknown{near(wrong[0], classes)}; allowed: {', '.join(classes)}")
    return {key: plain(read(classes[key], one, f"{name}.{key}")) for key, one in values.items()}


def plain(options: Any) -> dict[str, Any]:
    """Options as a plain dict, as stored in a configuration."""
    return dataclasses.asdict(options)
