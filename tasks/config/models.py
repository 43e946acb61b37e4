"""Find architectures by file name, and choose the mapping for each place where a model attends.

An architecture is a file `tasks/<family>/models/<name>.py` with `Options` (see `tasks.config.options`), `Model` (a plain torch
module) and `PLACES`, the places where the model attends. The node `mapping` is used at every place that has no
`mapping.at.<place>` of its own.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tasks.config import options as kinds
from tasks.config.options import OptionsError, near, read, short

if TYPE_CHECKING:  # torch is imported only when a configuration's names are known to be right
    import torch
    from torch import nn

    import sparse_attention as sa

NOT_PARAMETERS = ("name", "at", "grid")


@dataclass(frozen=True)
class Place:
    """A place where a model attends.

    Attributes:
        over: structures that the model can attend over: "row", "grid", "sequence", "matching" or "density".
        provides: inputs that the model passes to the mapping besides scores and mask.
        stateful: True if the model keeps a mapping's state between steps.
        learned: True if training can learn a mapping's parameters.
        signed: True if scores may be negative.
        unnormalised: True if rows of weights need not sum to 1. What is measured and drawn of attention assumes it.
    """

    over: tuple[str, ...] = ("row",)
    provides: tuple[str, ...] = ()
    stateful: bool = False
    learned: bool = True
    signed: bool = True
    unnormalised: bool = False


def names(family: str) -> list[str]:
    """Names of a family's architectures."""
    package = importlib.import_module(f"tasks.{family}.models")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def architecture(family: str, name: str) -> ModuleType:
    """The module of an architecture. Raises OptionsError, suggesting the nearest name, if the name is unknown."""
    known = names(family)
    if name not in known:
        raise OptionsError(
            [f"model.name={short(name)} is not a model of this task{near(name, known)}; allowed: {', '.join(known)}"]
        )
    return importlib.import_module(f"tasks.{family}.models.{name}")


def options(family: str, model: Mapping[str, Any]) -> Any:
    """The node `model` as an instance of the architecture's `Options`."""
    values = {k: v for k, v in model.items() if k != "name"}
    return read(architecture(family, model["name"]).Options, values, "model")


def wrong_values(family: str, model: Mapping[str, Any]) -> list[str]:
    """Problems of the node `model` that need no torch: its values of the fields that are declared by constants alone."""
    if model.get("name") not in names(family):
        return []  # `architecture` says so
    declared = dict(_declared(family, model["name"]))
    cls = dataclasses.make_dataclass("Options", [(name, Any, one) for name, one in declared.items()])
    try:
        read(cls, {k: v for k, v in model.items() if k in declared}, "model")
    except OptionsError as error:
        return error.problems
    return []


def _declared(family: str, name: str) -> Iterator[tuple[str, Any]]:
    """(name, field) of an architecture's `Options`, read from its file, which would import torch."""
    path = Path(importlib.import_module(f"tasks.{family}.models").__path__[0], f"{name}.py")
    for cls in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(cls, ast.ClassDef) and cls.name == "Options":
            for base in cls.bases:  # of another architecture: lstm.Options
                yield from _declared(family, ast.unparse(base).partition(".")[0])
            for line in cls.body:
                if isinstance(line, ast.AnnAssign) and line.value is not None:
                    with contextlib.suppress(NameError):  # a constant from elsewhere
                        yield ast.unparse(line.target), eval(ast.unparse(line.value), vars(kinds))


def nodes_at(mapping: Mapping[str, Any], places: Mapping[str, Place]) -> dict[str, dict[str, Any]]:
    """Place -> dict with the mapping's name and parameters. Raises OptionsError if the model has no such place."""
    own = mapping.get("at") or {}
    if unknown := [place for place in own if place not in places]:
        raise OptionsError(
            [f"mapping.at.{p} is not a place of this model, which attends at: {', '.join(places)}" for p in unknown]
        )
    return {
        place: dict(own.get(place) or {k: v for k, v in mapping.items() if k not in ("at", "grid")}) for place in places
    }


def problems(mapping: Mapping[str, Any], places: Mapping[str, Place], family: str = "") -> list[str]:
    """Reasons why mappings do not fit the model's places, one sentence each; empty if they fit.

    If the family is given, a sentence on a missing input names the family's models that provide it.
    """
    import sparse_attention as sa
    from sparse_attention.describe import LEARNED

    found = []
    try:
        nodes = nodes_at(mapping, places)
    except OptionsError as error:
        return error.problems
    for place, node in nodes.items():
        try:
            spec = sa.spec(node["name"])
        except ValueError as error:
            found.append(str(error))
            continue
        where = places[place]
        if spec.over not in where.over:
            found.append(
                f"mapping={spec.name} works over a {spec.over}; this model attends over a {' or '.join(where.over)} at {place!r}"
            )
        if missing := [i for i in spec.inputs if i not in where.provides]:
            told = f"mapping={spec.name} needs {', '.join(missing)}, which this model does not provide at {place!r}"
            rest = (s for s in map(sa.spec, sa.names()) if s.inputs and s.over in where.over)
            able = [s.name for s in rest if {*s.inputs} <= {*where.provides}]
            told += f"; mappings that it can feed: {', '.join(able)}" if able else ""
            feeding = [name for name in names(family) if _feeds(family, name, spec)] if family else []
            found.append(told + (f"; models that provide it: {', '.join(feeding)}" if feeding else ""))
        if spec.kind == "unnormalised" and not where.unnormalised:
            able = [f"mapping.at.{name}" for name, one in places.items() if one.unnormalised]
            found.append(
                f"mapping={spec.name} gives rows that do not sum to 1, which this model needs at {place!r}"
                + (f"; it takes them at {', '.join(able)}" if able else "")
            )
        if spec.stateful and not where.stateful:
            found.append(
                f"mapping={spec.name} keeps a state between steps, which this model does not support at {place!r}"
            )
        if spec.domain == "nonnegative" and where.signed:
            found.append(
                f"mapping={spec.name} has no value where a score is negative, as this model's scores at {place!r} can be; "
                "sum_normalization_pp and sparsehourglass take any scores"
            )
        found += [
            f"mapping.{name}={LEARNED} is invalid for this model, which trains weights alone; give a number"
            for name, value in parameters(node).items()
            if value == LEARNED and not where.learned
        ]
    return list(dict.fromkeys(found))


def _feeds(family: str, name: str, spec: sa.Spec) -> bool:
    places = architecture(family, name).PLACES.values()
    return any(spec.over in place.over and {*spec.inputs} <= {*place.provides} for place in places)


def parameters(node: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in the node of a mapping."""
    return {k: v for k, v in node.items() if k not in NOT_PARAMETERS}


def mappings_at(mapping: Mapping[str, Any], places: Mapping[str, Place]) -> dict[str, nn.Module]:
    """Place -> the module of the mapping used there."""
    import sparse_attention as sa

    return {place: sa.make(node["name"], **parameters(node)) for place, node in nodes_at(mapping, places).items()}


def build(family: str, model: Mapping[str, Any], mapping: Mapping[str, Any], *given: Any) -> nn.Module:
    """Build the torch model from the nodes `model` and `mapping`.

    `given` are the other arguments that models of this family take (sizes, encoded data).
    """
    module = architecture(family, model["name"])
    return module.Model(options(family, model), *given, mappings_at(mapping, module.PLACES))


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
