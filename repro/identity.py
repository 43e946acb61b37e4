"""One cell: a training and the evaluations asked of it, their identities, and what is found of them in the store.

A training is named by the hash of all that can change its weights: the resolved configuration without what only says
where and how to run it or how to score, the content of train and dev data, and the training's recipe. An evaluation is
named by the training, the test set's content, what says how to score (`EVALUATION_KEYS` of its family, or `decode`) and
the recipe of evaluation. Git commit and package versions are recorded, not hashed: a commit that changes a comment must not
make every finished cell worthless.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from repro import plugins
from repro.protocol import Family, Prepared, TestSet
from repro.store import Damaged, Entry, Evaluation, Store, check_names
from repro.store.provenance import ROOT

# Nodes that say where and how, not what; `data` counts by its name and content, `plugins` by what their files hold.
NOT_IDENTITY = ("runtime", "logger", "launcher", "paths", "profile", "plugins", "data")
SAID = ("family", "deviations")  # of `task`: what a reader is told, and where the code is
EVALUATION_KEYS = ("decode",)
FAMILIES = ROOT / "tasks" / "cells"  # a file each
REGISTERED = "SPARSE_ATTENTION_FAMILIES"  # environment: what `register` was given


@dataclass(frozen=True)
class Found:
    """A finished cell: what its training and its evaluations measured.

    Attributes:
        metrics: `split/metric` -> value, of the training and of every test set asked for.
        signatures: metric -> how it was computed, where that is known only afterwards.
        facts: of train and dev data. tests: name of a test set -> its facts.
        baselines: trivial systems: name -> metric -> value.
        shortfalls: "train" and names of test sets -> why they are not the paper's.
        seconds: of the training and the evaluations.
        evaluations: name of a test set -> its folder.
    """

    cell_id: str
    folder: Path
    metrics: Mapping[str, float]
    signatures: Mapping[str, str]
    facts: Mapping[str, Any]
    tests: Mapping[str, Mapping[str, Any]]
    baselines: Mapping[str, Mapping[str, Any]]
    shortfalls: Mapping[str, tuple[str, ...]]
    seconds: float
    evaluations: Mapping[str, Evaluation]


@dataclass(frozen=True)
class Cell:
    """A configuration ready to run: its data prepared, its test sets encoded.

    Attributes:
        config: resolved and checked, as plain containers. module: of the family's functions (`protocol.Family`).
        tests: the test sets to score. further: name of a test set that is not `config["data"]`'s own -> its data node.
        overrides: what a person set by hand; tells the verdict, no part of the identity.
        origin: who asked first, in words: `experiment` or `sweep`, `row`, `column`, `heading`; no part of the identity either.
        known_id: of a training that is finished already, whatever its recipe is today.
    """

    config: Mapping[str, Any]
    module: str
    prepared: Prepared
    tests: tuple[TestSet, ...] = ()
    overrides: tuple[str, ...] = ()
    further: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    known_id: str = ""

    @property
    def task(self) -> str:
        return self.config["task"]["name"]

    @property
    def mapping(self) -> str:
        return self.config["mapping"]["name"]

    @property
    def parameters(self) -> str:
        """Those of the mapping, in words."""
        return ", ".join(f"{k}={v}" for k, v in self.config["mapping"].items() if k not in ("name", "at", "grid"))

    @property
    def label(self) -> str:
        """Row and column of the table that it is for; nothing outside a table."""
        column = self.origin.get("heading") or self.origin.get("column")
        return ", ".join(text for text in (self.origin.get("row"), column) if text)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def family(self) -> Family:
        return family(self.module)

    @cached_property
    def training_id(self) -> str:
        """The 16 hex digits that name the training and its folder."""
        if self.known_id:
            return self.known_id
        return digest(*computed_from(self.config, self.family), self.prepared.sha256, self.family.RECIPE[0])

    def evaluation_id(self, test: TestSet) -> str:
        """The 16 hex digits that name an evaluation of this training."""
        return digest(self.training_id, test.name, test.sha256, self.scoring, self.family.RECIPE[1])

    @property
    def scoring(self) -> dict[str, Any]:
        """What says how to score: dotted key -> value."""
        return scoring(self.config, self.family)

    @property
    def cell_id(self) -> str:
        """Training and evaluations together: equal ones are one piece of work."""
        return digest(self.training_id, self.scoring)

    def entry(self, store: Store) -> Entry:
        return store.entry(self.task, self.mapping, self.training_id)

    def evaluation(self, store: Store, test: TestSet) -> Evaluation:
        return self.entry(store).evaluation(self.evaluation_id(test))

    def config_of(self, test: TestSet) -> Mapping[str, Any]:
        """The configuration with the data node of a test set."""
        return {**self.config, "data": self.further[test.name]} if test.name in self.further else self.config

    def with_tests(self, other: Cell) -> Cell:
        """This cell, asked for the test sets of `other` too."""
        names = {t.name for t in self.tests}
        tests = (*self.tests, *(t for t in other.tests if t.name not in names))
        return replace(self, tests=tests, further={**self.further, **other.further})

    def found(self, store: Store) -> Found | None:
        """What is stored, None unless training and all evaluations are done. Raises `Damaged`."""
        entry = self.entry(store)
        trained = entry.read()
        if trained is None:
            return None
        metrics, signatures = dict(trained["metrics"]), dict(trained.get("signatures") or {})
        tests, evaluations, seconds = {}, {}, float(trained.get("seconds", 0.0))
        shortfalls = {"train": _union(trained, self.prepared)}
        baselines: dict[str, dict[str, Any]] = {}
        for test in self.tests:
            level = self.evaluation(store, test)
            scored = level.read()
            if scored is None:
                return None
            metrics |= scored["metrics"]
            signatures |= scored.get("signatures") or {}
            tests[test.name], evaluations[test.name] = scored.get("facts") or {}, level
            shortfalls[test.name] = _union(scored, test)
            seconds += float(scored.get("seconds", 0.0))
            for system, values in (scored.get("baselines") or {}).items():
                baselines.setdefault(system, {}).update(values)
        facts = trained.get("facts") or {}
        return Found(
            self.training_id,
            entry.folder,
            metrics,
            signatures,
            facts,
            tests,
            baselines,
            shortfalls,
            seconds,
            evaluations,
        )

    def done(self, store: Store) -> bool:
        """Whether everything that was asked is there and whole."""
        try:
            return self.found(store) is not None
        except Damaged:
            return False

    def state(self, store: Store) -> str:
        """queued, running, done, failed, lost or damaged."""
        try:
            if self.found(store) is not None:
                return "done"
        except Damaged:
            return "damaged"
        state = self.entry(store).state()
        return "queued" if state == "done" else state  # an evaluation is missing


def _union(stored: Mapping[str, Any], now: Prepared | TestSet) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*(stored.get("shortfalls") or ()), *now.shortfalls]))


def register(module: str) -> None:
    """Allow a module that is imported already as a family, here and in the processes started from here.

    A name that is only read from a file never becomes one. Raises ValueError: not imported.
    """
    if module not in sys.modules:
        raise ValueError(f"{module} is not imported; import it, then register it")
    os.environ[REGISTERED] = ",".join(dict.fromkeys([*_registered(), module]))


def _registered() -> list[str]:
    return [name for name in os.environ.get(REGISTERED, "").split(",") if name]


@cache
def families() -> tuple[str, ...]:
    """Modules of the families that come with the project."""
    names = sorted(path.stem for path in FAMILIES.glob("[a-z]*.py"))
    return tuple(".".join((*FAMILIES.relative_to(ROOT).parts, name)) for name in names)


def check_family(module: Any) -> str:
    """`module` if it is a family of this project, or one that was registered. Raises ValueError; imports nothing by that name."""
    if isinstance(module, str) and module in (*families(), *_registered()):
        return module
    raise ValueError(
        f"module={str(module)[:80]!r} is not a family of cells and was not imported; allowed: {', '.join(families())}"
    )


def family(module: str) -> Family:
    """The functions of a family's cells. Raises ValueError as `check_family`, or when it cannot be imported."""
    try:
        return cast(Family, importlib.import_module(check_family(module)))
    except ModuleNotFoundError as error:
        raise ValueError(f"{module} cannot be imported ({error}): run from the repository's root") from error


def evaluation_keys(of: Family) -> tuple[str, ...]:
    """Dotted keys of a configuration that belong to the evaluation only."""
    return tuple(getattr(of, "EVALUATION_KEYS", EVALUATION_KEYS))


def computed_from(config: Mapping[str, Any], of: Family) -> tuple[dict[str, Any], str, list[str]]:
    """What a training computes from, but for the content of its data: (configuration, name of the data set, plugins' content)."""
    relevant = {k: dict(v) if isinstance(v, Mapping) else v for k, v in config.items() if k not in NOT_IDENTITY}
    relevant["task"] = {k: v for k, v in relevant["task"].items() if k not in SAID}
    relevant["mapping"].pop("grid", None)
    # where a file lies (word vectors) says nothing; the data's hash knows what is in it
    encode = relevant.get("encode") or {}
    relevant["encode"] = {k: Path(v).name if isinstance(v, str) else v for k, v in encode.items()}
    for key in evaluation_keys(of):
        *path, last = key.split(".")
        node = relevant
        for part in path:
            node[part] = node = dict(node.get(part) or {})
        node.pop(last, None)
    return relevant, config["data"]["name"], [plugins.content(p) for p in config.get("plugins") or []]


def scoring(config: Mapping[str, Any], of: Family) -> dict[str, Any]:
    """What says how to score: dotted key -> value; a family's LATER_KEYS only where they are set."""
    left_out = {f"task.{key}" for key in SAID} | {k for k in getattr(of, "LATER_KEYS", ()) if not _at(config, k)}
    config = as_named(config, of)
    return {key: _at(config, key) for key in evaluation_keys(of) if key not in left_out}


def as_named(config: Mapping[str, Any], of: Family) -> dict[str, Any]:
    """A configuration without those of a family's LATER_KEYS that are not set: they came when cells had names already."""
    found = dict(config)
    for node, _, last in (key.rpartition(".") for key in getattr(of, "LATER_KEYS", ())):
        if isinstance(found.get(node), Mapping) and not found[node].get(last):
            found[node] = {k: v for k, v in found[node].items() if k != last}
    return found


def asked_id(config: Mapping[str, Any], of: Family, recipe: int | None = None) -> str:
    """Names a training before its data are there, by their node in place of their content; `recipe`: if not that of today."""
    return digest(*computed_from(config, of), config["data"], of.RECIPE[0] if recipe is None else recipe)


def _at(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def digest(*parts: Any) -> str:
    """16 hex digits of anything JSON can hold, whatever the order of keys."""
    text = json.dumps(parts, sort_keys=True, default=lambda v: os.fspath(v) if isinstance(v, os.PathLike) else str(v))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(
    config: Mapping[str, Any], module: str, tests: Sequence[Mapping[str, Any]] = (), progress: Any = None,
    overrides: Sequence[str] = (),
) -> Cell:  # fmt: skip
    """Acquire and encode the data of a configuration, and of the further test sets of the configurations `tests`."""
    check_names(config["task"]["name"], config["mapping"]["name"])
    plugins.load(config.get("plugins") or [])
    prepared = family(module).prepare(config, progress)
    others = [family(module).prepare_test(one, Path(prepared.folder), progress) for one in tests]
    return assemble(config, module, prepared, list(zip(others, tests)), overrides)


def assemble(
    config: Mapping[str, Any], module: str, prepared: Prepared, others: Sequence[tuple[TestSet, Mapping[str, Any]]],
    overrides: Sequence[str] = (), origin: Mapping[str, str] | None = None,
) -> Cell:  # fmt: skip
    """A cell of what has been prepared: the data set's own test set and the others, each with its configuration."""
    tests = (*([prepared.test] if prepared.test else []), *(t for t, _ in others))
    return Cell(
        config, module, prepared, tests, tuple(overrides), {t.name: one["data"] for t, one in others}, origin or {}
    )
