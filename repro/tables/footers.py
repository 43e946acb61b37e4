"""What stands below a table: a number never travels alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.files import read_json
from repro.plan import Plan, Slot
from repro.plan.experiment import Show
from repro.protocol import Metric
from repro.tables.blocks import SIGNIFICANT, Block, Row, rank_agreement
from repro.tables.verdict import rule


def of_data(
    rows: Sequence[Row], facts: Mapping[str, Any], shown: Sequence[Show], metrics: Mapping[str, Metric]
) -> list[str]:
    """Where the data come from (`facts`: of train and dev), and how the scores shown were computed."""
    first = next((f for row in rows for f in row.found), None)
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
        known = metrics.get(show.metric.rpartition("/")[2])
        unit = show.unit or (known.unit if known else "")
        how = (first.signatures.get(show.metric) if first else None) or (known.signature if known else "")
        if how:
            label = "" if how.startswith(f"{show.label}:") else f"{show.label}: "
            said.append(f"{label}{how}" + (f" ({unit})" if unit else ""))
    return [*lines, *([f"Scores: {'; '.join(dict.fromkeys(said))}."] if said else [])]


def _described(facts: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{n:,} {split}" for split, n in (facts.get("sizes") or {}).items())
    content = str(facts.get("sha256") or "")[:12]
    return "; ".join(
        t for t in (str(facts.get("provenance") or ""), sizes, f"sha256 {content}" if content else "") if t
    )


def seeds(plan: Plan, blocks: Sequence[Block]) -> list[str]:
    used = sorted({slot.seed for slot in plan.slots})
    several = len(used) > 1
    spread = (
        "mean ± standard deviation over n seeds, intervals by Student's t" if several else "one run each: no spread"
    )
    lines = [
        f"Seeds: {', '.join(map(str, used))} ({spread}). An order of rows is claimed by seeds, never by one run; "
        "the same seed gives other numbers on another machine (up to 1.4 ROUGE measured between machines)."
    ]
    lines += trained(blocks)
    kinds = {kind for b in blocks for r in b.rows for v in r.values for kind in v.p_values}
    over = f"p < {SIGNIFICANT} after Holm's correction over the rows of a column and metric"
    if "examples" in kinds:
        lines.append(
            f"* differs from the first row: paired randomization over test examples (all seeds of an example together), {over}, of "
            f"{'these runs' if several else 'these two runs'}. It covers the sampling of test examples, not seeds."
        )
    if "seeds" in kinds:
        lines.append(
            f"† differs from the first row: paired t-test over seeds, {over}. It covers the draw of seeds, not the choice of test examples."
        )
    return lines


def trained(blocks: Sequence[Block]) -> list[str]:
    """What `converged` means, where a row says it."""
    if not any(r.convergence.state and r.found for b in blocks for r in b.rows):
        return []
    return [
        "Converged: of the dev score that picks the epoch, the best was not the last, or the last epoch's gain was below the "
        "scatter of the last five. A row with a cell that has not converged, or whose curve is not recorded, gets no sign, no "
        "verdict, and is never marked as the best."
    ]


def of_comparison(block: Block, metrics: Mapping[str, Metric]) -> list[str]:
    """How verdicts are given, and how far the order of the rows is the published one."""
    if not block.published:
        return []
    columns = [f"{name} {label}" for name, labels in block.published for label in labels]
    agreement = {name: found for c, name in enumerate(columns) if (found := rank_agreement(block, c))}
    rows = sorted({n for _, n in agreement.values()})
    each = len(rows) > 1
    told = "; ".join(f"{name} {tau:+.2f}{f' (n = {n})' if each else ''}" for name, (tau, n) in agreement.items())
    told += "" if each or not rows else f"; n = {rows[0]} rows"
    return [
        rule([metrics.get(full.rpartition("/")[2]) for full in block.against]),
        *(
            [f"Rank agreement with the paper, Kendall's tau-b (1: its order of the rows, -1: the reverse): {told}."]
            if told
            else []
        ),
    ]


def notes(blocks: Sequence[Block]) -> list[str]:
    told = {t.note for b in blocks for r in b.rows for t in r.theirs if t is not None and t.note}
    return ["? " + " ".join(sorted(told))] if told else []


def origin(blocks: Sequence[Block]) -> list[str]:
    """Code versions, whether torch or the kernels changed among the cells, whether the packages were the locked ones."""
    found = [x for b in blocks for r in b.rows for x in r.found]
    folders = {f for x in found for f in (x.folder, *(e.folder for e in x.evaluations.values()))}
    records = [read_json(folder / "provenance.json") or {} for folder in folders]
    codes = [r["code"] for r in records if r.get("code")]
    commits = sorted({c["commit"] + ("+changes" if c.get("dirty") else "") for c in codes})
    made_with = {
        "torch": sorted({v for r in records if (v := (r.get("packages") or {}).get("torch"))}),
        "kernels": sorted({v for r in records if (v := r.get("kernels"))}),
    }
    changed = [f"{what} {' and '.join(versions)}" for what, versions in made_with.items() if len(versions) > 1]
    return [
        *([f"Code: {', '.join(commits)}." + _recipes(found)] if commits else []),
        *([f"Not all cells were made alike: {'; '.join(changed)}."] if changed else []),
        *(
            ["Packages: not the locked set (requirements.lock)."]
            if any(r.get("locked") is False for r in records)
            else []
        ),
    ]


def _recipes(found: Sequence[Any]) -> str:
    """Versions of what a cell computes; cells of different ones are not the same experiment."""
    levels = {
        "training": {f.folder for f in found},
        "evaluation": {e.folder for f in found for e in f.evaluations.values()},
    }
    told = {
        what: sorted(
            {str(r) for x in folders if (r := (read_json(x / "metrics.json") or {}).get("recipe")) is not None}
        )
        for what, folders in levels.items()
    }
    known = [f"{what} {' and '.join(versions)}" for what, versions in told.items() if versions]
    return f" Recipe: {', '.join(known)}." if known else ""


# ---- deviations


GROUPS = ("data", "model", "optim", "schedule", "encode", "decode")
PROFILES = ("demo", "cpu", "paper")


@dataclass(frozen=True)
class Scope:
    """What an experiment is about, for deviations that concern some experiments only.

    A deviation may open with what it is about, "data: ...", "oscarmax, pnormmax: ...", "demo, cpu: ...", "laha2018: ...":
    "on duc2004: ...": it is left out where none of the profiles, papers, mappings or data sets that it names is meant, or a group's
    page was chosen by hand.
    """

    profile: str
    paper: str
    mappings: frozenset[str]
    data: frozenset[str] = frozenset()  # names of data and further test sets
    chosen: frozenset[str] = frozenset()  # groups whose page is not the setting's

    def concerns(self, text: str) -> bool:
        head = re.match(r"\**([\w ,-]+?)\**:\**\s", text)
        names = [n.strip() for n in head[1].split(",")] if head else []
        kinds = (
            ({n for n in names if n in PROFILES}, {self.profile}),
            ({n for n in names if re.fullmatch("[a-z]+[0-9]{4}", n)}, {self.paper}),
            ({n[5:] for n in names if n.startswith("with ")}, self.mappings),
            ({n[3:] for n in names if n.startswith("on ")}, self.data),
            ({n for n in names if n in GROUPS}, set(GROUPS) - self.chosen),
        )
        return all(not named or named & meant for named, meant in kinds)


def scope(plan: Plan, slots: Iterable[Slot]) -> Scope:
    """What these slots of an experiment are about."""
    one, slots = plan.experiment, list(slots)
    typed = {o for s in slots for o in (*one.columns[s.column].overrides, *one.rows[s.row].overrides, *plan.overrides)}
    chosen = {o.lstrip("+").partition("=")[0] for o in typed} & set(GROUPS)
    data = {s.cell.config["data"]["name"] for s in slots} | {t.name for s in slots for t in s.cell.tests}
    return Scope(one.profile, one.paper, frozenset(s.cell.mapping for s in slots), frozenset(data), frozenset(chosen))


def of_settings(plan: Plan) -> list[str]:
    """Deviations of the settings that the cells have, without those that an override has taken away."""
    found: dict[str, None] = {}
    for slot in plan.slots:
        told = slot.cell.config["task"].get("deviations") or ()
        if told:
            mine = scope(plan, [slot])
            found |= dict.fromkeys(text for text in told if mine.concerns(text))
    return list(found)


def of_tasks(docs: Path | None, plan: Plan) -> list[str]:
    """Deviations from the pages of the tasks, of what this experiment is about."""
    slots: dict[str, list[Slot]] = {}
    for slot in plan.slots if docs else ():
        slots.setdefault(slot.cell.task, []).append(slot)
    return [text for task, of in slots.items() for text in of_task(docs or Path(), task, scope(plan, of))]


def of_task(docs: Path, task: str, about: Scope) -> list[str]:
    """The items under each heading of `<docs>/<task>.md` that says "deviations"; one that names profiles is of those."""
    page = docs / f"{task}.md"
    if not page.is_file():
        return []
    found = []
    section = r"^#+ ([^\n]*deviations[^\n]*)\n(.*?)(?=^#|\Z)"
    for heading, body in re.findall(section, page.read_text(encoding="utf-8"), re.M | re.S | re.I):
        named = [p for p in PROFILES[:2] if re.search(rf"\b{p}\b", heading, re.I)]
        if not named or about.profile in named:
            items = (" ".join(item.split()) for item in re.split(r"^[-*] +", body, flags=re.M)[1:])
            found += [item.replace("**", "") for item in items if about.concerns(item)]
    return found
