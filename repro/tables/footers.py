"""The footers of a table: data, scores, seeds, verdicts, code and deviations."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from repro.convergence import STUCK
from repro.identity import Cell, Results, pair
from repro.plan import Plan
from repro.plan.experiment import Show
from repro.protocol import Metric, flatten, metric_of
from repro.statistics import FEWEST
from repro.tables.blocks import SIGNIFICANT, Block


def of_data(
    first: Results | None, facts: Mapping[str, Any], shown: Sequence[Show], metrics: Mapping[str, Metric]
) -> list[str]:
    """Footers on the source of the data and the computation of the scores.

    Args:
        first: the first finished cell; None if there is none.
        facts: those of train and dev.
    """
    sets = {s.metric.partition("/")[0]: (first.tests if first else {}).get(s.metric.partition("/")[0]) for s in shown}
    lines = [f"Data: {_described(facts)}."] if facts else []
    notes = list(facts.get("notes", ()))
    for name, of_test in sets.items():
        if of_test:
            shorter = {k: v for k, v in of_test.items() if k != "provenance" or v != facts.get("provenance")}
            lines.append(f"Test set{'' if name == 'test' else f' {name}'}: {_described(shorter)}.")
            notes += of_test.get("notes", ())
    lines += [str(note) for note in dict.fromkeys(notes)]
    said = []
    for show in shown:
        known = metric_of(metrics, show.metric)
        how = (first.signatures.get(show.metric) if first else None) or known.signature
        if how:
            label = "" if how.startswith(f"{show.label}:") else f"{show.label}: "
            said.append(f"{label}{how}" + (f" ({known.unit})" if known.unit else ""))
    return [*lines, *([f"Scores: {'; '.join(dict.fromkeys(said))}."] if said else [])]


def _described(facts: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{n:,} {split}" for split, n in (facts.get("sizes") or {}).items())
    content = str(facts.get("sha256") or "")[:12]
    sizes = f"{sizes} examples" if sizes else ""
    return "; ".join(filter(None, (str(facts.get("provenance") or ""), sizes, f"sha256 {content}" if content else "")))


def evidence(blocks: Sequence[Block]) -> str:
    """How many runs the rows have, and what that shows."""
    rows = [row for block in blocks for row in block.own if row.results]
    if not rows:
        return "nothing has run yet"
    fewest, most = min(len(row.results) for row in rows), max(len(row.results) for row in rows)
    alike = f"{most} runs each" if most > 1 else "one run" + " each" * (len(rows) > 1)
    runs = f"{fewest} to {most} runs a row" if fewest < most else alike
    if most < FEWEST:
        return f"{runs}: shows that it works, ranks nothing"
    if any(row.decided for row in rows):
        return f"{runs}; *: differs from the first row (p < {SIGNIFICANT}, corrected for the number of rows)"
    if all(block.own[0].convergence.converged for block in blocks if block.own):
        return f"{runs}: no difference from the first row is significant"
    return f"{runs}; not tested against the first row, which may not have converged"


def seeds(plan: Plan, blocks: Sequence[Block]) -> list[str]:
    """Footers on the seeds, and on when a row has converged."""
    used = ", ".join(map(str, sorted({slot.seed for slot in plan.slots})))
    spread = " Spread: standard deviation over runs; intervals: Student's t." if "," in used else ""
    same = "The same seed gives other numbers on another machine (in summarization, by up to 1.4 ROUGE)."
    return [f"Seeds: {used}.{spread} {same}", *trained(blocks)]


def trained(blocks: Sequence[Block]) -> list[str]:
    """The meaning of `converged`, if a row shows it."""
    shown = any(r.convergence.state and r.results for b in blocks for r in b.rows)
    rule = (
        "the mean dev curve of three or more runs does not rise at the end (t-test), or, of fewer, the best dev score "
        "was not in the last epoch, or the last epoch gained less than the scatter of the last five"
    )
    return [f"Converged: {rule}. Other rows are not tested, and get no verdict."] * shown


def stuck(blocks: Sequence[Block]) -> list[str]:
    """A warning for each row whose training failed to learn."""
    rows = [r for b in blocks for r in b.rows if r.convergence.state == STUCK]
    names = [f"{r.label}{f' ({r.detail})' if r.detail else ''}" for r in rows]
    told = (f"! {n}: WARNING: {r.convergence.why}. {r.convergence.advice}" for n, r in zip(names, rows))
    return list(dict.fromkeys(told))


def notes(blocks: Sequence[Block]) -> list[str]:
    told = {t.note for b in blocks for r in b.rows for t in r.theirs if t is not None and t.note}
    return ["? " + " ".join(sorted(told))] if told else []


def origin(blocks: Sequence[Block]) -> list[str]:
    """Footers on code and recipes, on different versions of torch or the kernels or different processors, and on packages that were not locked."""
    cells = [x for b in blocks for r in b.rows for x in r.results]
    levels = {level.folder: level for x in cells for level in x.levels}
    made = [flatten(level.provenance()) for level in levels.values()]
    # cells with different recipes do not belong to the same experiment
    parts = {"training": {x.recipe for x in cells}, "evaluation": {s.recipe for x in cells for s in x.scored.values()}}
    known = ", ".join(f"{what} {_listed(found)}" for what, all_of in parts.items() if (found := all_of - {None}))
    commits = {of["code.commit"] + ("+changes" if of.get("code.dirty") else "") for of in made if "code.commit" in of}
    keys = {"torch": "packages.torch", "kernels": "kernels", "processor": "machine.cpu"}
    values = {what: {one[key] for one in made if one.get(key)} for what, key in keys.items()}
    changed = "; ".join(f"{what} {_listed(versions)}" for what, versions in values.items() if len(versions) > 1)
    lines = {
        f"Code: {_listed(commits, ', ')}." + (f" Recipe versions: {known}." if known else ""): commits,
        f"The cells differ in: {changed}.": changed,
        "Packages: not the locked set (requirements.lock).": any(one.get("locked") is False for one in made),
    }
    return [line for line, holds in lines.items() if holds]


def _listed(values: Collection[Any], joint: str = " and ") -> str:
    return joint.join(sorted(map(str, values)))


# ---- deviations


GROUPS = ("data", "model", "optim", "schedule", "encode", "decode")
SCOPES = ("demo|cpu|gpu|paper", "[a-z]+[0-9]{4}", "with .+", "on .+", "|".join(GROUPS))  # kinds of names in a scope


def concerns(text: str, words: Collection[str]) -> bool:
    """Whether a deviation concerns the cells that `scope` describes by `words`.

    It may start with its scope: "data: ...", "demo, cpu: ...", "laha2018: ...", "with oscarmax: ...", "on duc2004: ...".
    If the scope names profiles, papers, mappings or data sets, the deviation is left out unless the experiment has one
    of them. If the scope names a group of the configuration, the deviation is left out if the user chose another option
    for that group.
    """
    head = re.match(r"\**([\w ,-]+?)\**:\**\s", text)
    names = [name.strip() for name in head[1].split(",")] if head else []
    of_kinds = ({name for name in names if re.fullmatch(kind, name)} for kind in SCOPES)
    return all(not named or named & set(words) for named in of_kinds)


# what papers have instead of our setting
BY_PAPER = re.compile(r" \((?=[a-z]+[0-9]{4}[,:] )((?:[^()]|\([^()]*\))*)\)")
NOT_STATED = "not stated"


def of_paper(text: str, paper: str) -> str:
    """A deviation with what this paper states: of "(laha2018, niculae2017: .3; martins2020: not stated)" only its own part.

    It becomes "(paper: .3)" or "(the paper does not state it)". Nothing is left of the brackets if they do not name the
    paper, or if the experiment repeats no paper.
    """

    def own(found: re.Match[str]) -> str:
        parts = (part.split(": ", 1) for part in re.split(r"; (?=[a-z]+[0-9]{4}[,:] )", found[1]))
        stated = {names: said for names, said in parts if paper in names.split(", ")}
        silent = " (the paper does not state it)"
        return "".join(silent if said == NOT_STATED else f" (paper: {said})" for said in stated.values())

    return BY_PAPER.sub(own, text)


def scope(plan: Plan, slots: Sequence[Cell]) -> set[str]:
    """The words of scopes that fit the given slots of an experiment; from the groups, only those in which the user chose no option."""
    experiment = plan.experiment
    changes = {(*experiment.columns[s.column].overrides, *experiment.rows[s.row].overrides) for s in slots}
    chosen = {pair(override)[0] for group in (*changes, plan.overrides) for override in group}
    data = {s.config["data"]["name"] for s in slots} | {test.name for s in slots for test in s.tests}
    names = {*(f"with {s.mapping}" for s in slots), *(f"on {name}" for name in data)}
    return {experiment.profile, experiment.paper, *names, *set(GROUPS) - chosen}


def of_settings(plan: Plan, slots: Sequence[Cell]) -> list[str]:
    """The deviations listed in the cells' configurations, without those that an override removes."""
    listed = ((slot, text) for slot in slots for text in slot.config["task"].get("deviations") or ())
    own = [of_paper(text, plan.experiment.paper) for slot, text in listed if concerns(text, scope(plan, [slot]))]
    return list(dict.fromkeys(own))


def declared(plan: Plan, slots: Sequence[Cell]) -> list[str]:
    """The deviations from the paper that an experiment and the configurations of these slots declare for them."""
    words = scope(plan, slots)
    return [*(text for text in plan.experiment.deviations if concerns(text, words)), *of_settings(plan, slots)]


def of_tasks(deviations: Mapping[str, Mapping[str, Sequence[str]]], plan: Plan) -> list[str]:
    """The deviations of the tasks that concern this experiment; `deviations`: task -> scope -> texts."""
    tasks = dict.fromkeys(slot.task for slot in plan.slots)
    words = {task: scope(plan, [s for s in plan.slots if s.task == task]) for task in tasks}
    return [
        of_paper(text, plan.experiment.paper)
        for task, meant in words.items()
        for head, texts in deviations.get(task, {}).items()
        for text in texts
        if concerns(f"{head}: {text}", meant) and concerns(text, meant)
    ]
