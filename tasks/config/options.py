"""Typed options: one dataclass per configuration node, whose fields define type, range and help text. Needs no torch.

    @defaults("main", "train")
    class Train:
        max_epochs: int = integer(low=1, help="epochs")
        precision: str = choice(REQUIRED, "fp32", "fp16", "bf16")

    train = read(Train, {"max_epochs": 2}, "train")

`read` finds all mistakes in a node in one pass; each message names the key, the value and the allowed values. For rules
that involve several fields, a class may define `problems(self) -> list[str]`, which is called once every field is valid
by itself.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar, dataclass_transform

import yaml

from repro.identity import near as near

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
Options = TypeVar("Options")
REQUIRED = object()
LARGEST, WIDEST = 2**31 - 1, 1e15  # largest whole number and largest number of any option
ENVIRONMENT = re.compile(r"\$\{oc\.env:\w+,(.*)\}")  # a value from the environment, and its default
COMPUTED = ("task", "data", "encode", "model", "mapping", "optim", "schedule", "train", "decode")
NODES = (*COMPUTED, "profile", "logger", "launcher", "runtime", "paths")  # of a configuration
TOP = ("seed", "plugins")  # its keys outside nodes
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a task or a sweep, and of its folder


class Problem(str):
    """A sentence about a wrong key or value, with its parts.

    Attributes:
        key: the key, such as `train.max_epochs`.
        value: the value that was given, if one was.
        allowed: the known names, where they can be listed.
    """

    key: str
    value: Any
    allowed: tuple[str, ...]

    def __new__(cls, sentence: str, key: str, value: Any = None, allowed: Iterable[str] = ()) -> Self:
        made = super().__new__(cls, sentence)
        made.key, made.value, made.allowed = key, value, tuple(allowed)
        return made

    def below(self, prefix: str) -> "Problem":
        """The same problem of a key that begins with `prefix`."""
        return Problem(f"{prefix}{self}", f"{prefix}{self.key}", self.value, self.allowed)


class ConfigError(ValueError):
    """All problems with a configuration, collected before any data is read.

    `problems` has one sentence for each. `key`, `value` and `allowed` are those of the first that has them (`Problem`).
    """

    key: str = ""
    value: Any = None
    allowed: tuple[str, ...] = ()

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(dict.fromkeys(problems))
        super().__init__("; ".join(self.problems))
        for one in [one for one in self.problems if isinstance(one, Problem)][:1]:
            self.key, self.value, self.allowed = one.key, one.value, one.allowed


class OptionsError(ConfigError):
    """All mistakes in a set of options."""


@dataclass(frozen=True)
class Kind:
    """The kind of values that a field accepts.

    Attributes:
        type: the plain Python type.
        read: returns the value to use, or raises ValueError with what the value must be, and the allowed names if any.
        help: the help text.
    """

    type: type
    read: Callable[[Any], Any]
    help: str = ""


def stated(file: str, *keys: str) -> Callable[[type[Options]], type[Options]]:
    """Class decorator, below @dataclass, that takes the defaults of the class's fields from `configs/<file>.yaml`.

    It applies to the class's own fields and to inherited fields without a default: options that several files share.

    So a default is written only once, in the file that people read and copy. The default of `${oc.env:NAME,VALUE}` is
    VALUE. A field that is missing from the file, or whose value there refers to another option (`${...}`), has only a
    default of its own, if any.

    Args:
        keys: path of the values inside the file, starting at the top level.
    """

    def decorate(cls: type[Options]) -> type[Options]:
        values = values_in(file)
        for key in keys:
            values = values[key]
        bases = {f.name: f for base in cls.__bases__ if dataclasses.is_dataclass(base) for f in fields(base)}
        for name, shared in bases.items():
            if shared.default is REQUIRED and name not in cls.__annotations__:
                cls.__annotations__[name] = shared.type
                setattr(cls, name, field(default=REQUIRED, metadata=shared.metadata))
        for name in cls.__annotations__:
            value = values.get(name, REQUIRED)
            if isinstance(value, str) and (found := ENVIRONMENT.fullmatch(value)):
                value = yaml.load(found[1], _Loader)
            if value is REQUIRED or (isinstance(value, str) and value.startswith("${")):
                continue
            if getattr(cls, name).default is not REQUIRED:
                raise TypeError(f"{cls.__name__}.{name} has a default; configs/{file}.yaml states it")
            setattr(cls, name, _field(value, getattr(cls, name).metadata["kind"]))
        return cls

    return decorate


@dataclass_transform()
def defaults(file: str, *keys: str) -> Callable[[type[Options]], type[Options]]:
    """`dataclass` and `stated` in one decorator."""
    return lambda cls: dataclass(stated(file, *keys)(cls))


def names_in(group: str) -> list[str]:
    """The names of the files in a group of configs/, without ".yaml"."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


@lru_cache(64)
def values_in(file: str) -> dict[str, Any]:
    """The content of `configs/<file>.yaml`."""
    return yaml.load((CONFIGS / f"{file}.yaml").read_text(encoding="utf-8"), _Loader)


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as OmegaConf does (evaluating a cell does without it); plain YAML 1.1 needs 1.0e-3."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _field(default: Any, kind: Kind) -> Any:
    metadata = {"kind": kind}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def option(default: Any, type: type, read: Callable[[Any], Any], help: str = "", optional: bool = False) -> Any:
    """A field whose values `read` checks (see `Kind`); with `optional`, None is also allowed."""

    def reader(value: Any) -> Any:
        return None if optional and value is None else read(value)

    return _field(default, Kind(type, reader, help))


def _within(whole: bool, low: float, high: float, above: float | None, below: float | None, optional: bool):
    least, most = (f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for bound in (low, high))
    left = f"of at least {least}" if above is None else f"above {above:g}"
    right = f"at most {most}" if below is None else f"below {below:g}"

    def read(value: Any) -> Any:
        fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        fits = fits and low <= value <= high  # false for nan, which is therefore rejected
        if not fits or (above is not None and value <= above) or (below is not None and value >= below):
            raise ValueError(f"must be a {'whole ' * whole}number {left} and {right}{' or null' * optional}")
        return value if whole else float(value)

    return read


def number(
    default: Any = REQUIRED,
    low: float = -WIDEST,
    high: float = WIDEST,
    *,
    above: float | None = None,
    below: float | None = None,
    optional: bool = False,
    help: str = "",
) -> Any:
    """A number in [low, high]; `above` and `below` set strict bounds instead."""
    return option(default, float, _within(False, low, high, above, below, optional), help, optional)


def integer(
    default: Any = REQUIRED, low: int = -LARGEST, high: int = LARGEST, *, optional: bool = False, help: str = ""
) -> Any:
    """A whole number in [low, high]; 1.0 and true are rejected."""
    return option(default, int, _within(True, low, high, None, None, optional), help, optional)


def flag(default: Any = REQUIRED, help: str = "") -> Any:
    """true or false."""

    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    return option(default, bool, read, help)


def text(default: Any = REQUIRED, *, optional: bool = False, help: str = "") -> Any:
    """A non-empty text of one line."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or len(value.splitlines()) > 1:
            raise ValueError("must be a text of one line" + (" or null" if optional else ""))
        return value

    return option(default, str, read, help, optional)


def choice(
    default: Any,
    *allowed: str,
    names: Callable[[], Iterable[str]] | None = None,
    optional: bool = False,
    help: str = "",
) -> Any:
    """One of the words in `allowed`, or one that `names()` returns."""

    def read(value: Any) -> str:
        known = tuple(allowed) + tuple(names() if names else ())
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"is invalid{near(value, known)}; allowed: {', '.join(known)}", known)
        return value

    return option(default, str, read, help, optional)


def listing(default: Any, items: Any, *, length: int | None = None, least: int = 0, help: str = "") -> Any:
    """A list of items, each of which must be valid for the field `items` (made by one of these functions)."""
    item: Kind = items.metadata["kind"]

    def read(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)) or not (length or least) <= len(value) <= (length or math.inf):
            size = f" of {length} values" if length else f" of at least {least}" if least else ""
            raise ValueError(f"must be a list{size}")
        found = []
        for i, one in enumerate(value):
            try:
                found.append(item.read(one))
            except ValueError as error:
                raise ValueError(f"has {short(one)} at place {i + 1}, which {error.args[0]}") from None
        return found

    return option(default, list, read, help)


def record(default: Any, help: str = "") -> Any:
    """A dict of named values, which are checked elsewhere."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("must be a mapping {name: value}")
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"has {short(wrong[0])} as a name, which must be a word")
        return dict(value)

    return option(default, dict, read, help)


def node(cls: type) -> Any:
    """Nested options of the class `cls`."""

    def reader(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping of {', '.join(f.name for f in fields(cls))}")
        return read(cls, value, "")

    return option(REQUIRED, dict, reader, (cls.__doc__ or "").split("\n")[0])


def short(value: Any) -> str:
    """A value as shown in messages, cut to 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def quoted(value: object) -> str:
    """A value as written in an override: lists in brackets, texts in quotes where Hydra needs them."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(quoted, value))}]"
    plain = r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_/][A-Za-z0-9_./-]*"
    if not isinstance(value, str) or re.fullmatch(plain, value):
        return "null" if value is None else str(value)
    return '"' + re.sub(r'(\\*)("|$)', lambda m: 2 * m[1] + m[2].replace('"', r"\""), value) + '"'


def check_name(name: str | None, group: str, what: str) -> None:
    """Raise ValueError, suggesting the nearest name, unless `configs/<group>` has a file or `configs/<group>.yaml` a key `name`."""
    known = names_in(group) or list(values_in(group))
    if name not in known:
        told = f"{name} is no {what}{near(name, known)}" if name else f"name a {what}"
        raise ValueError(f"{told}; there are: {', '.join(known)}")


def read(cls: type[Options], values: Mapping[str, Any], name: str) -> Options:
    """`values` as an instance of the options class `cls`, with defaults filled in.

    Args:
        name: name of the node, which prefixes the keys in messages.

    Raises:
        OptionsError: there are unknown keys or invalid values; the message lists all of them.
        TypeError: a field of `cls` is not declared with one of the functions above.
    """
    kinds = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    if wrong := [key for key, one in kinds.items() if "kind" not in one.metadata]:
        told = "must be declared with integer, number, flag, text, choice or listing (tasks/config/options.py)"
        raise TypeError(f"{cls.__module__}.{cls.__qualname__}.{wrong[0]} {told}")
    prefix = f"{name}." if name else ""
    problems, found = [], {}
    for key in values:
        if key not in kinds:
            told = f"{key} is unknown{near(key, kinds)}; {name or 'it'} takes: {', '.join(kinds) or 'nothing'}"
            problems.append(Problem(told, str(key), allowed=kinds).below(prefix))
    for key, one in kinds.items():
        given = values.get(key, REQUIRED)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if given is REQUIRED:
            given = default
        if given is REQUIRED or (isinstance(given, str) and given == "???"):
            told = f"{key} must be set: {one.metadata['kind'].help or prefix + key + '=...'}"
            problems.append(Problem(told, key).below(prefix))
            continue
        try:
            found[key] = one.metadata["kind"].read(given)
        except OptionsError as error:
            place = f"{prefix}{key}."
            problems += [p.below(place) if isinstance(p, Problem) else f"{place}{p}" for p in error.problems]
        except ValueError as error:
            why, *allowed = error.args  # the allowed names, if the field is a choice
            problems.append(Problem(f"{key}={short(given)} {why}", key, given, *allowed).below(prefix))
    if not problems:
        made = cls(**found)
        problems = [f"{prefix}{p}" for p in getattr(made, "problems", list)()]
        if not problems:
            return made
    raise OptionsError(problems)


def read_each(classes: Mapping[str, type], values: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Read several named sets of options, each with the class that `classes` has for its name. Raises OptionsError."""
    if wrong := [key for key in values if key not in classes]:
        told = f"{wrong[0]} is unknown{near(wrong[0], classes)}; allowed: {', '.join(classes)}"
        raise OptionsError(Problem(told, wrong[0], allowed=classes).below(f"{name}."))
    if empty := [key for key, one in values.items() if not isinstance(one, Mapping)]:
        raise OptionsError([f"{name}.{key}={short(values[key])} must be a mapping of options" for key in empty])
    return {key: plain(read(classes[key], one, f"{name}.{key}")) for key, one in values.items()}


def plain(options: Any) -> dict[str, Any]:
    """Options as a plain dict, as stored in a configuration."""
    return dataclasses.asdict(options)
