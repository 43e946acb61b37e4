"""Find architectures by file name, and choose the mapping for each place where a model attends.

An architecture is a file `<name>.py` in the folder `models` of its family with `Options` (see `repro.options`), `Model` (a plain torch
module) and `PLACES`, the places where the model attends. The node `mapping` is used at every place that has no
`mapping.at.<place>` of its own.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from repro.errors import ConfigError, near, short
from repro.options import read
from tasks.config.files import CONFIGS

if TYPE_CHECKING:  # torch is imported only after the names of a configuration have been checked
    import torch
    from torch import nn


ROOT = CONFIGS.parent
# Name of a family -> its package: the folders of tasks/ that hold a folder `models`.
FAMILIES = {f.parent.name: ".".join(f.parent.relative_to(ROOT).parts) for f in sorted(ROOT.glob("tasks/**/models"))}
NOT_PARAMETERS = ("name", "at", "grid")
WIDEST_PARAMETER = 1e6  # largest parameter of a mapping; larger values would swamp the scores in single precision


@dataclass(frozen=True)
class Place:
    """A place where a model attends.

    Attributes:
        over: structures that the model can attend over: "row", "grid", "sequence", "matching", "tree" or "density".
        provides: inputs that the model passes to the mapping besides scores and mask.
        stateful: True if the model keeps a mapping's state between steps.
        unnormalised: True if rows of weights need not sum to 1. What is measured and drawn of attention assumes it.
    """

    over: tuple[str, ...] = ("row",)
    provides: tuple[str, ...] = ()
    stateful: bool = False
    unnormalised: bool = False


def part(family: str, module: str) -> ModuleType:
    """A module of a family's package, such as "options"."""
    return importlib.import_module(f"{FAMILIES[family]}.{module}")


def names(family: str) -> list[str]:
    """Names of a family's architectures."""
    package = part(family, "models")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def architecture(family: str, name: str) -> ModuleType:
    """The module of an architecture. Raises ConfigError, suggesting the nearest name, if the name is unknown."""
    known = names(family)
    if name not in known:
        told = f"model.name={short(name)} is not a model of this task{near(name, known)}; allowed: {', '.join(known)}"
        raise ConfigError(told)
    return part(family, f"models.{name}")


def nodes_at(mapping: Mapping[str, Any], places: Mapping[str, Place]) -> dict[str, dict[str, Any]]:
    """Place -> dict with the mapping's name and parameters. Raises ConfigError if the model has no such place."""
    own = mapping.get("at") or {}
    if unknown := [place for place in own if place not in places]:
        told = f"is not a place of this model, which attends at: {', '.join(places)}"
        raise ConfigError([f"mapping.at.{p} {told}" for p in unknown])
    everywhere = {k: v for k, v in mapping.items() if k not in ("at", "grid")}
    return {place: dict(own.get(place) or everywhere) for place in places}


def problems(mapping: Mapping[str, Any], places: Mapping[str, Place], family: str = "") -> list[str]:
    """Reasons why mappings do not fit the model's places, one sentence each; empty if they fit.

    If the family is given, a sentence on a missing input names the family's models that provide it.
    """
    import sparse_attention as sa

    found = []
    try:
        nodes = nodes_at(mapping, places)
    except ConfigError as error:
        return error.problems
    for place, node in nodes.items():
        spec, where, told = sa.spec(node["name"]), places[place], []
        if spec.over not in where.over:
            over = " or ".join(where.over)
            told.append(f"works over a {spec.over}; this model attends over a {over} at {place!r}")
        if missing := [i for i in spec.inputs if i not in where.provides]:
            rest = (s for s in map(sa.spec, sa.names()) if s.inputs and s.over in where.over)
            able = [s.name for s in rest if {*s.inputs} <= {*where.provides}]
            attending = {n: architecture(family, n).PLACES.values() for n in names(family)} if family else {}
            fed = {n: [p for p in of if spec.over in p.over] for n, of in attending.items()}
            feeding = [n for n, of in fed.items() if any({*spec.inputs} <= {*p.provides} for p in of)]
            lost = f"needs {', '.join(missing)}, which this model does not provide at {place!r}"
            lost += f"; mappings that it can feed: {', '.join(able)}" if able else ""
            told.append(lost + (f"; models that provide it: {', '.join(feeding)}" if feeding else ""))
        if spec.kind == "unnormalised" and not where.unnormalised:
            able = [f"mapping.at.{name}" for name, one in places.items() if one.unnormalised]
            then = f"; it takes them at {', '.join(able)}" if able else ""
            told.append(f"gives rows that do not sum to 1, which this model needs at {place!r}{then}")
        if spec.stateful and not where.stateful:
            told.append(f"keeps a state between steps, which this model does not support at {place!r}")
        if spec.domain == "nonnegative":
            there = f"has no value where a score is negative, as this model's scores at {place!r} can be"
            told.append(f"{there}; sum_normalization_pp and sparsehourglass take any scores")
        found += [f"mapping={spec.name} {why}" for why in told]
    return list(dict.fromkeys(found))


def parameters(node: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in the node of a mapping."""
    return {k: v for k, v in node.items() if k not in NOT_PARAMETERS}


def mapping(node: Mapping[str, Any]) -> dict[str, Any]:
    """Read the node `mapping`: complete its parameters, and check `mapping.at` and every value in `mapping.grid`."""
    at, grid = node.get("at", {}), node.get("grid", {})
    if not isinstance(at, Mapping) or not all(isinstance(one, Mapping) for one in at.values()):
        raise ConfigError(f"mapping.at={short(at)} must be {{place: {{name: ..., parameters}}}}")
    if wrong := [f"mapping.at.{p}.{k}" for p, one in at.items() for k in ("at", "grid") if k in one]:
        raise ConfigError(f"{', '.join(wrong)} is invalid: a place has one mapping and its parameters")
    if not isinstance(grid, Mapping) or not all(k != "name" and isinstance(v, list) and v for k, v in grid.items()):
        raise ConfigError(f"mapping.grid={short(grid)} must be {{parameter: [values]}}")
    complete = _parameters(node, "mapping")
    for parameter, values in grid.items():
        for value in values:
            _parameters({**complete, parameter: value}, "mapping.grid")
    return complete | {"at": {p: _parameters(one, f"mapping.at.{p}") for p, one in at.items()}, "grid": dict(grid)}


def _parameters(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The name and all parameters of a mapping as one dict, with defaults filled in."""
    name = node.get("name", "???")
    if name == "???" or not isinstance(name, str):
        given = "" if name == "???" else f"={short(name)}"
        raise ConfigError(f"{key}.name{given} must be set: the name of a registered mapping")
    given = parameters(node)
    wide = {k: v for k, v in given.items() if type(v) in (int, float) and abs(v) > WIDEST_PARAMETER}
    if wide:
        at_most = f"must be between -{WIDEST_PARAMETER:g} and {WIDEST_PARAMETER:g}"
        raise ConfigError(f"{key}.{k}={v:g} {at_most}" for k, v in wide.items())
    import sparse_attention as sa  # imports torch, which the checks above do not need

    try:
        return {"name": name} | sa.spec(name).check(given)
    except (ValueError, TypeError) as error:
        said = str(error).removeprefix(f"{name}: ")
        raise ConfigError(f"{key}.name={name}: {said}") from None


def mappings_at(mapping: Mapping[str, Any], places: Mapping[str, Place]) -> dict[str, nn.Module]:
    """Place -> the module of the mapping used there."""
    import sparse_attention as sa

    return {place: sa.make(node["name"], **parameters(node)) for place, node in nodes_at(mapping, places).items()}


def build(family: str, model: Mapping[str, Any], mapping: Mapping[str, Any], *arguments: Any) -> nn.Module:
    """Build the torch model from the nodes `model` and `mapping`.

    `arguments` are the others that models of this family take (sizes, encoded data).
    """
    module = architecture(family, model["name"])
    own = {**getattr(module, "EARLIER", {}), **model}  # a stored node may be older than some options
    del own["name"]
    return module.Model(read(module.Options, own, "model"), *arguments, mappings_at(mapping, module.PLACES))


def row_mappings() -> list[str]:
    """Names of the mappings over rows that need only scores."""
    import sparse_attention as sa

    every = map(sa.spec, sa.names(kind="simplex"))
    return [spec.name for spec in every if spec.over == "row" and not spec.inputs and not spec.stateful]


def learned(model: nn.Module) -> dict[str, float]:
    """Mapping parameters learned by a model: name -> mean over places, layers and heads."""
    import torch

    import sparse_attention as sa

    found: dict[str, list[torch.Tensor]] = {}
    for part in model.modules():
        for name, value in part.learned().items() if isinstance(part, sa.Mapping) else ():
            found.setdefault(name, []).append(value.detach().flatten())
    return {name: float(torch.cat(values).mean()) for name, values in found.items()}
