"""Values validated by pydantic, as `repro.options` declares them; `repro.options.read` calls this."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from repro.errors import ConfigError, near, short


def _annotation(kind: Any) -> Any:
    """The type of a field as pydantic reads it."""
    hint: Any = Annotated[kind.type, Field(**kind.rules)]
    if kind.check:
        hint = Annotated[Any, PlainValidator(kind.check)]
    elif kind.items:
        item = _annotation(kind.items)
        hint = Annotated[list[item], Field(strict=False, **kind.rules)]  # type: ignore[valid-type]
        if kind.type is tuple:
            hint = Annotated[tuple[item, ...], Field(strict=False), BeforeValidator(_flat)]  # type: ignore[valid-type]
    elif is_dataclass(kind.type):
        hint = _form(kind)
    return hint | None if kind.optional else hint


def _flat(value: Any) -> Any:
    """A list with the items of the lists in it: YAML puts the list of an anchor into another list."""
    return [v for one in value for v in (one if isinstance(one, list) else [one])] if isinstance(value, list) else value


@lru_cache(512)
def _form(kind: Any) -> Any:
    """A dataclass as pydantic reads it: a dict with these keys, of which an instance is made."""

    def filled(values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {key: value for key, value in (kind.defaults() | dict(values)).items() if value != "???"}

    def made(values: dict[str, Any]) -> Any:
        one = kind.type(**values)
        if hasattr(one, "problems") and (problems := one.problems()):
            raise ValueError(*problems)
        return one

    typed: Any = TypedDict
    checked = typed(kind.type.__name__, {name: _annotation(part) for name, part in kind.parts().items()})
    checked.__pydantic_config__ = {"strict": True, "extra": "forbid"}
    return Annotated[checked, BeforeValidator(filled), AfterValidator(made)]


@lru_cache(512)
def _adapter(kind: Any) -> Any:
    return TypeAdapter(_form(kind))


def validated(kind: Any, values: Any, name: str) -> Any:
    """`values` as an instance of the dataclass of a kind (`repro.options.Kind`); see `repro.options.read`."""
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        raise ConfigError([said for one in error.errors() for said in _told(kind, values, name, one)]) from None


def _told(kind: Any, values: Any, key: str, error: Mapping[str, Any]) -> list[str]:
    """One of pydantic's errors as sentences with the key, the value and what is allowed."""
    value, within, steps = values, "", list(error["loc"])
    for i, step in enumerate(steps):
        prefix = f"{key}." if key else ""
        if kind.items:
            whole, value = value, (_flat(value) if kind.type is tuple else value)[step]
            kind = kind.items
            if is_dataclass(kind.type) and (i + 1 < len(steps) or error["type"] == "value_error"):
                key = f"{prefix}{value.get('key') or value.get('label') or step + 1}"
            else:
                within = f"={short(whole)} has {short(value)} at place {step + 1}, which"
            continue
        known = kind.parts() if is_dataclass(kind.type) else {}
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
