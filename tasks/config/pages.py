"""Read the files in configs/ (experiments, published numbers, claims and others), and build the rows that users add."""

import copy
import re
from collections.abc import Sequence
from typing import Any

from repro.claims import claim as paper_claims
from repro.claims.claim import Claim, Paper
from repro.errors import ConfigError, near
from repro.identity import pair
from repro.plan import experiment as experiments
from repro.plan.experiment import Experiment, Row
from repro.plan.published import Published, loose_ends, numbers
from tasks.config.files import names_in, values_in
from tasks.config.request import Request

GROUPS = ("task", "profile", "mapping", "data", "model", "optim", "schedule", "logger", "launcher", "hydra/sweeper")


def page(group: str, name: str) -> dict[str, Any]:
    """`configs/<group>/<name>.yaml` as plain containers. Raises ConfigError, naming the nearest file, if unknown."""
    if name not in (known := names_in(group)):
        raise ConfigError(f"{group} {name!r} is unknown{near(name, known)}; known: {', '.join(known)}")
    return copy.deepcopy(values_in(f"{group}/{name}"))


def experiment(name: str, profile: str) -> Experiment:
    """`configs/experiment/<name>.yaml` with one of its profiles. Raises ConfigError if the experiment is invalid."""
    content = page("experiment", name)
    printed = published(content.get("published"))
    one = experiments.read(content, name, profile)
    if problems := loose_ends(one, printed):
        raise ConfigError(f"experiment {name}: {'; '.join(problems)}")
    return one


def published(name: str | None) -> dict[tuple[str, str, str], Published]:
    """The numbers of `configs/published/<name>.yaml`; empty without a name."""
    return numbers(page("published", name)) if name else {}


def papers() -> list[Paper]:
    """The papers of configs/claims with their claims, in order. Raises ConfigError with a list of all errors."""
    found, problems = [], []
    for name in names_in("claims"):
        try:
            found.append(paper_claims.read(page("claims", name), name))
        except ConfigError as error:
            problems += error.problems
    problems += paper_claims.clashes(found)
    tested = [claim for paper in found for claim in paper.claims if claim.experiment]
    named = {claim.experiment for claim in tested}
    pages = {name: page("experiment", name) for name in names_in("experiment") if name in named}
    for claim in tested:
        where = f"configs/claims/{claim.paper}.yaml, claim {claim.id}"
        if claim.experiment not in pages:
            told = f"experiment {claim.experiment!r} is unknown{near(claim.experiment, names_in('experiment'))}"
            problems.append(f"{where}: {told}")
            continue
        problems += [f"{where}, {problem}" for problem in paper_claims.unknown(claim, pages[claim.experiment])]
    if problems:
        raise ConfigError("; ".join(problems))
    return sorted(found, key=lambda paper: paper.place)


def claims() -> list[Claim]:
    """The claims of all papers, by number."""
    return sorted((claim for paper in papers() for claim in paper.claims), key=lambda claim: claim.id)


def own_row(name: str, parameters: Sequence[str]) -> Row:
    """A table row for a mapping that is not in the paper: one from configs/mapping, or one registered by a plugin."""
    if not name or not all(re.fullmatch(r"\w+=.+", one) for one in parameters):
        typed = ",".join((name, *parameters))
        raise ConfigError(f"add={typed} must be a mapping's name, then its parameters: add=entmax,alpha=1.5")
    from tasks.config.overrides import lacking

    label = f"{name}({', '.join(parameters)})" if parameters else name
    if name in names_in("mapping"):
        for one in parameters:
            lacking(f"mapping.{pair(one)[0]}", [name])
        return Row(label, name, overrides=tuple(f"mapping.{p}" for p in parameters))
    return Row(label, "custom", overrides=(f"mapping.name={name}", *(f"+mapping.{p}" for p in parameters)))


def choices(request: Request, config: Any) -> str:
    """Help text: the parameters of mappings, the files of each group of configs, and the configuration of a request."""
    from omegaconf import OmegaConf

    groups = [f"{group}: {', '.join(names_in(group))}" for group in GROUPS]
    lines = [parameters(request), "", "Configuration groups (GROUP=NAME chooses a file):", "", *groups]
    lines += ["", "Configuration (GROUP.KEY=VALUE sets a value):", "", OmegaConf.to_yaml(config)]
    return "\n".join([*lines, "Next: python scripts/train.py task=toy mapping=sparsemax"])


def parameters(request: Request) -> str:
    """Help text about the parameters of the mappings that a request names (`mapping=NAME`, `add=NAME,...`)."""
    import sparse_attention as sa

    typed = [value for key, value in map(pair, request.typed) if key in ("mapping", "add")]
    named = [word for text in typed for word in text.split(",") if word in sa.names()] or ["softmax"]
    lines = []
    for name in named:
        spec = sa.spec(name)
        lines.append(f"parameters of mapping={name} ({spec.summary})")
        for one in spec.params:
            told = "required" if one.required else f"default {one.default}"
            lines.append(f"    mapping.{one.name:12s} {one.range}; {told}{f'; {one.meaning}' if one.meaning else ''}")
        lines += ["    none"] * (not spec.params)
    return "\n".join([*lines, f"for another mapping: --help mapping=NAME; known: {', '.join(sa.names())}"])
