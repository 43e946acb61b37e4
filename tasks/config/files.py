"""The files of configs/: their names, their values, and the defaults of options, which stand there. Needs no torch."""

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, dataclass_transform

import yaml

from repro.errors import near

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ENVIRONMENT = re.compile(r"\$\{oc\.env:\w+,(.*)\}")  # a value from the environment, and its default
COMPUTED = ("task", "data", "encode", "model", "mapping", "optim", "schedule", "train", "decode")
NODES = (*COMPUTED, "profile", "logger", "launcher", "runtime", "paths")  # of a configuration
TOP = ("seed", "plugins")  # its keys outside nodes
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a task or a sweep, and of its folder


@dataclass_transform()
def defaults(file: str, *keys: str) -> Callable[[type], type]:
    """`dataclass`, with the defaults of the class's fields taken from `configs/<file>.yaml`.

    It applies to the class's own fields and to inherited fields without a default: options that several files share.

    So a default is written only once, in the file that people read and copy. The default of `${oc.env:NAME,VALUE}` is
    VALUE, that of `${seed}` the seed of main.yaml. A field that is missing from the file has none.

    Args:
        keys: path of the values inside the file, starting at the top level.
    """

    def decorate(cls: type) -> type:
        values = values_in(file)
        for key in keys:
            values = values[key]
        bases = {one.name: one for base in filter(is_dataclass, cls.__bases__) for one in fields(base)}
        for name, shared in bases.items():
            if shared.default is shared.default_factory is MISSING and name not in cls.__annotations__:
                cls.__annotations__[name] = shared.type
                setattr(cls, name, field(metadata=shared.metadata))
        for name in cls.__annotations__:
            value = values_in("main")["seed"] if values.get(name) == "${seed}" else values.get(name, MISSING)
            if isinstance(value, str) and (found := ENVIRONMENT.fullmatch(value)):
                value = yaml.load(found[1], _Loader)
            if value is not MISSING:
                several = isinstance(value, (list, dict))
                default = {"default_factory": lambda value=value: type(value)(value)} if several else {"default": value}
                setattr(cls, name, field(**default, metadata=getattr(getattr(cls, name, None), "metadata", None)))
        return dataclass(cls, kw_only=True)

    return decorate


def names_in(group: str) -> list[str]:
    """The names of the files in a group of configs/, without ".yaml"."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


@lru_cache(256)
def values_in(file: str) -> dict[str, Any]:
    """The content of `configs/<file>.yaml`."""
    return yaml.load((CONFIGS / f"{file}.yaml").read_text(encoding="utf-8"), _Loader)


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as OmegaConf does (evaluating a cell does without it); plain YAML 1.1 needs 1.0e-3."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def quoted(value: object) -> str:
    """A value as written in an override: lists in brackets, texts in quotes where Hydra needs them."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(quoted, value))}]"
    plain = r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_/][A-Za-z0-9_./-]*"
    if not isinstance(value, str) or re.fullmatch(plain, value):
        return "null" if value is None else str(value)
    return '"' + re.sub(r'(\\*)("|$)', lambda m: 2 * m[1] + m[2].replace('"', r"\""), value) + '"'


def check_name(name: str | None, what: str, *groups: str) -> None:
    """Raise ValueError, suggesting the nearest name, unless `configs/<group>` has a file or `configs/<group>.yaml` a key `name`."""
    known = [name for group in groups for name in names_in(group) or values_in(group)]
    if name not in known:
        told = f"{name} is no {what}{near(name, known)}" if name else f"name a {what}"
        raise ValueError(f"{told}; there are: {', '.join(known)}")
