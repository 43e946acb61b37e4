"""What stands below a table: a number never travels alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparse_attention.repro.blocks import SIGNIFICANT, Block, Row
from sparse_attention.repro.experiment import Show
from sparse_attention.repro.files import read_json
from sparse_attention.repro.plan import Plan
from sparse_attention.repro.protocol import Metric

STILL_LEARNING = 3.0  # per cent
GAIN = "dev/last_gain"


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
    spread = "mean ± standard deviation over seeds" if several else "one run each: no spread"
    lines = [
        f"Seeds: {', '.join(map(str, used))} ({spread}). An order of rows is claimed by seeds, never by one run; "
        "the same seed gives other numbers on another machine (up to 1.4 ROUGE measured between machines)."
    ]
    if any(GAIN in f.metrics for b in blocks for r in b.rows for f in r.found):
        lines.append(
            "Last gain: per cent by which the last epoch lowered the dev loss. "
            f"Above {STILL_LEARNING:.1f} a row is still learning: it gets no star and is never marked as the best."
        )
    if any(v.significant for b in blocks for r in b.rows for v in r.values):
        of = "these runs" if several else "these two runs"
        lines.append(
            f"* differs from the first row: paired randomization over test examples, p < {SIGNIFICANT}, of {of}; "
            "it covers the sampling of test examples, not seeds."
        )
    return lines


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
        *([f"Code: {', '.join(commits)}."] if commits else []),
        *([f"Not all cells were made alike: {'; '.join(changed)}."] if changed else []),
        *(
            ["Packages: not the locked set (requirements.lock)."]
            if any(r.get("locked") is False for r in records)
            else []
        ),
    ]


def of_task(docs: Path, task: str, profile: str) -> list[str]:
    """The items under each heading of `<docs>/<task>.md` that says "deviations"; one that names profiles is of those."""
    page = docs / f"{task}.md"
    if not page.is_file():
        return []
    found = []
    section = r"^#+ ([^\n]*deviations[^\n]*)\n(.*?)(?=^#|\Z)"
    for heading, body in re.findall(section, page.read_text(encoding="utf-8"), re.M | re.S | re.I):
        named = [p for p in ("demo", "cpu") if re.search(rf"\b{p}\b", heading, re.I)]
        if not named or profile in named:
            found += [" ".join(item.split()) for item in re.split(r"^[-*] +", body, flags=re.M)[1:]]
    return found
