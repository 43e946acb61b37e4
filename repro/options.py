"""Typed values: dataclasses that pydantic fills from the content of YAML files. All errors are found in one pass.

    @dataclass
    class Train:
        max_epochs: int = integer(low=1, help="epochs")
        precision: str = choice("fp32", "fp16", "bf16")

    train = read(Train, {"max_epochs": 2, "precision": "fp32"}, "train")

A field without one of the functions below accepts what its type says: text, numbers, bool, a mapping, a tuple of these, or
another dataclass. For rules that involve several fields, a class may define `problems(self) -> list[str]`, which is called
once every field is valid by itself. pydantic takes a tenth of a second to import, so this happens when a value is read.
"""

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from repro.errors import ConfigError, near, short

Options = TypeVar("Options")
LARGEST, WIDEST = 2**31 - 1, 1e15  # largest whole number and largest number of any option
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a mapping"}


@dataclass(frozen=True)
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

    def annotation(self) -> Any:
        """The type as pydantic reads it."""
        from pydantic import BeforeValidator, Field, PlainValidator

        hint: Any = Annotated[self.type, Field(**self.rules)]
        if self.check:
            hint = Annotated[Any, PlainValidator(self.check)]
        elif self.items:
            item = self.items.annotation()
            several = tuple[item, ...] if self.type is tuple else list[item]  # type: ignore[valid-type]
            hint = Annotated[several, Field(strict=False, **self.rules), BeforeValidator(_flat)]
        elif is_dataclass(self.type):
            hint = _form(self.type)
        return hint | None if self.optional else hint


def _flat(value: Any) -> Any:
    """A list with the items of the lists in it: YAML puts the list of an anchor into another list."""
    return [v for one in value for v in (one if isinstance(one, list) else [one])] if isinstance(value, list) else value


def _field(kind: Kind) -> Any:
    return dataclasses.field(metadata={"kind": kind})


def option(type: type, read: Callable[[Any], Any], help: str = "", optional: bool = False) -> Any:
    """A field whose values `read` checks (`Kind.check`); with `optional`, None is also allowed."""
    return _field(Kind(type, "", help, optional, check=read))


def _within(type: type, low: float, high: float, above: float | None, below: float | None, **rest: Any) -> Any:
    least, most = (f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for bound in (low, high))
    left = f"of at least {least}" if above is None else f"above {above:g}"
    right = f"at most {most}" if below is None else f"below {below:g}"
    rules = {"ge": low, "le": high, "gt": above, "lt": below}
    return _field(Kind(type, f"must be {WORDS[type]} {left} and {right}", rules=rules, **rest))


def number(
    low: float = -WIDEST,
    high: float = WIDEST,
    *,
    above: float | None = None,
    below: float | None = None,
    optional: bool = False,
    help: str = "",
) -> Any:
    """A number in [low, high]; `above` and `below` set strict bounds instead."""
    return _within(float, low, high, above, below, optional=optional, help=help)


def integer(low: int = -LARGEST, high: int = LARGEST, *, optional: bool = False, help: str = "") -> Any:
    """A whole number in [low, high]; 1.0 and true are rejected."""
    return _within(int, low, high, None, None, optional=optional, help=help)


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


def record(help: str = "") -> Any:
    """A dict of named values, which are checked elsewhere."""
    return _field(Kind(dict[str, Any], "must be a mapping {name: value}", help))


def node(cls: type) -> Any:
    """Nested options of the class `cls`."""
    return _field(_kind(cls))


def _kind(hint: Any) -> Kind:
    """What a field of a type accepts if the field says no more."""
    inner, origin = get_args(hint), get_origin(hint) or hint
    if origin is types.UnionType:
        return dataclasses.replace(_kind(inner[0]), optional=True)
    if origin is tuple:
        return Kind(tuple, "must be a list", items=_kind(inner[0]))
    if is_dataclass(hint):
        return Kind(hint, f"must be a mapping of {', '.join(one.name for one in fields(hint))}")
    hint = dict if origin is Mapping else hint
    return Kind(hint, f"must be {WORDS[hint]}")


@lru_cache(512)
def kinds(cls: Any) -> dict[str, Kind]:
    """The fields of a class by name."""
    plain = [one for one in fields(cls) if "kind" not in one.metadata]
    hints = get_type_hints(cls) if plain else {}
    return {one.name: one.metadata.get("kind") or _kind(hints[one.name]) for one in fields(cls)}


@lru_cache(512)
def _form(cls: Any) -> Any:
    """A class as pydantic reads it: a dict with these keys, of which an instance is made."""
    from pydantic import AfterValidator, BeforeValidator
    from typing_extensions import TypedDict

    def filled(values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        made = {one.name: default_of(one) for one in fields(cls) if default_of(one) is not MISSING}
        return {key: value for key, value in (made | dict(values)).items() if value != "???"}

    def made(values: dict[str, Any]) -> Any:
        one = cls(**values)
        if hasattr(one, "problems") and (problems := one.problems()):
            raise ValueError(*problems)
        return one

    checked: Any = TypedDict(cls.__name__, {name: kind.annotation() for name, kind in kinds(cls).items()})  # type: ignore[misc]
    checked.__pydantic_config__ = {"strict": True, "extra": "forbid"}
    return Annotated[checked, BeforeValidator(filled), AfterValidator(made)]


def default_of(field: dataclasses.Field) -> Any:
    """The default of a field, or MISSING."""
    return field.default if field.default_factory is MISSING else field.default_factory()


@lru_cache(512)
def _adapter(cls: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_form(cls))


def read(cls: type[Options], values: Any, name: str = "") -> Options:
    """`values` as an instance of the dataclass `cls`, with defaults filled in.

    Args:
        name: what prefixes the keys in messages, such as the name of a node.

    Raises ConfigError if there are unknown keys or invalid values; the message lists all of them.
    """
    from pydantic import ValidationError

    try:
        return _adapter(cls).validate_python(values)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise ConfigError([said for one in error.errors() for said in _told(cls, values, name, one)]) from None


def _told(cls: Any, values: Any, key: str, error: Mapping[str, Any]) -> list[str]:
    """One of pydantic's errors as sentences with the key, the value and what is allowed."""
    kind, value, within, steps = _kind(cls), values, "", list(error["loc"])
    for i, step in enumerate(steps):
        prefix = f"{key}." if key else ""
        if kind.items:
            kind, whole, value = kind.items, value, _flat(value)[step]
            if is_dataclass(kind.type) and (i + 1 < len(steps) or error["type"] == "value_error"):
                key = f"{prefix}{value.get('key') or value.get('label') or step + 1}"
            else:
                within = f"={short(whole)} has {short(value)} at place {step + 1}, which"
            continue
        known = kinds(kind.type) if is_dataclass(kind.type) else {}
        if step not in known and known:
            return [f"{prefix}{step} is unknown{near(step, known)}; allowed: {', '.join(known)}"]
        if not known:  # a name in a record that is no word
            return [f"{key}={short(value)} has {short(step)} as a name, which must be a word"]
        kind, key, value = known[step], f"{prefix}{step}", value.get(step) if isinstance(value, Mapping) else None
    if error["type"] == "missing":
        return [f"{key} must be set" + f": {kind.help}" * bool(kind.help)]
    if is_dataclass(kind.type) and error["type"] == "value_error":
        return [f"{key}.{one}" if key else one for one in error["ctx"]["error"].args]
    must = str(error["ctx"]["error"]) if error["type"] == "value_error" else kind.must
    return [f"{key}{within or f'={short(value)}'} {must}{' or null' * kind.optional}"]


def read_each(classes: Mapping[str, type], values: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Read several named sets of options, each with the class that `classes` has for its name. Raises ConfigError."""
    if wrong := [key for key in values if key not in classes]:
        raise ConfigError(f"{name}.{wrong[0]} is unknown{near(wrong[0], classes)}; allowed: {', '.join(classes)}")
    return {key: plain(read(classes[key], one, f"{name}.{key}")) for key, one in values.items()}


def plain(options: Any) -> dict[str, Any]:
    """Options as a plain dict, as stored in a configuration."""
    return dataclasses.asdict(options)
