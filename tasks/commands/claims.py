"""Test the papers' claims (configs/claims) on the records of tables, and write the outcomes as JSON and as a page."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import fmean

from repro.files import write_atomic
from repro.report import pictures as drawings
from repro.store import outputs_folder
from repro.tables.blocks import Table
from repro.tables.claims import ENOUGH, MOST_SEEDS, OPEN, Claim, Outcome, Part, Pilot, needed
from repro.tables.statistics import FEWEST
from tasks.commands import recorded
from tasks.config import compose

FIGURES = "figures/claims"  # the pictures' folder, in docs/results
HEAD = """\
# Do the papers' claims hold?

{decided} of {all} claims are decided: {words}. The table that decides the most is {table}.
For each task, the rows of the claims against softmax, from the lowest to the highest:

{answers}

| task | claim | outcome | why not decided | effect [95 % interval] | n | power | paper |
|---|---|---|---|---:|---:|---:|---|
{lines}

`make claims` tests every claim again on the records of docs/results, and writes outputs/claims.json. This page and its pictures are generated from the records.

*Effect*: the mean difference between two rows, in the metric's unit, for the comparison with the least evidence for the claim; of a trend, of the last row and the first,
though Page's test of all rows' ranks decides. *n*: its seeds.
*Power*: the chance that n seeds support the claim, at the spread of earlier runs. A claim is *supported* or *contradicted* if one-sided tests
at 5 % show that the difference is on one side of the margin; the printed interval is two-sided and thus wider, so it can include the margin all the same.
It covers the sampling of seeds and, where the score of each test example is recorded, of test examples; or test examples alone where it says so.
Fewer than three seeds decide nothing, nor do rows that had not converged or a table in which attention is worth little, unless the claim says so ([how it works](../repro/tables/claims.py)).
"""
# task -> its name on the page
TASKS = {"translation": "translation", "summarization": "summarization", "snli": "SNLI", "snli_esim": "SNLI", "imdb": "IMDB", "vqa": "VQA", "multilabel": "multilabel"}  # fmt: skip
SCORES = {"test/bleu": "BLEU", "test/rouge1_f": "ROUGE-1", "test/accuracy": "accuracy", "test/f1": "F1"}
PARTS = "| row | column | outcome: mean difference [95 % interval] | each seed |\n|---|---|---|---|"
LONGEST = 90  # characters of a claim in the table


def of_tables(tables: Iterable[Table]) -> list[Outcome]:
    """The outcome of every claim in configs/claims, in the order of the files; tables: those built from records."""
    tested = {(o.claim.paper, o.claim): o for table in tables for o in table.claims}
    why = {c: f"no records of {c.experiment}, profile {c.profile}" for c in _claims()}
    return [tested.get((c.paper, c)) or Outcome(c, OPEN, Part("", "", why=why[c]), needed=needed(c)) for c in _claims()]


@cache
def _claims() -> list[Claim]:
    return list(itertools.chain.from_iterable(map(compose.claims, compose.names_in("claims"))))


def write(results: Path) -> int:
    """`scripts/claims.py`: test every claim on the records in `results`, print the outcomes, write <outputs>/claims.json.

    Returns exit status 0. Raises StoreError if a file of records cannot be read.
    """
    wanted = {recorded.file_of(c.experiment, c.profile, results) for c in _claims()}
    outcomes = of_tables(recorded.read(path).table for path in sorted(wanted) if path.is_file())
    for outcome in outcomes:
        said = f"{outcome.outcome:13} {outcome.claim.paper:13} {_effect(outcome):28} n = {outcome.part.n}, power {_power(outcome)}"
        print(f"{said}  {outcome.claim.claim}" + (f"\n{'':13} {_why(outcome)}" if outcome.outcome == OPEN else ""))
    path = Path(outputs_folder()) / "claims.json"
    write_atomic(
        path, (json.dumps([outcome.values() for outcome in outcomes], indent=1, ensure_ascii=False) + "\n").encode()
    )
    print(f"{_count(outcomes)}\nclaims: {path}; the page with pictures: docs/claims.md")
    return 0


def page(outcomes: Sequence[Outcome]) -> str:
    """docs/claims.md."""
    order = list(dict.fromkeys(TASKS.values()))
    numbered = sorted(enumerate(outcomes, 1), key=lambda pair: order.index(_task(pair[1].claim)))
    plain = {i: re.sub(r"[][]", "", outcome.claim.claim.replace("[...]", "…")) for i, outcome in numbered}
    lines = [
        f"| {_task(outcome.claim)} | [{textwrap.shorten(plain[i], LONGEST, placeholder=' …')}](#claim-{i}) | {outcome.outcome} | {_short_why(outcome)} | {_effect(outcome)} | {outcome.part.n or ''} "
        f"| {_power(outcome)} | {outcome.claim.paper} |" for i, outcome in numbered
    ]  # fmt: skip
    answers = "\n".join(_answer(*group) for group in itertools.groupby(numbered, key=lambda pair: _task(pair[1].claim)))
    decided = Counter(outcome.claim.experiment for outcome in outcomes if outcome.outcome != OPEN)
    table = ", ".join(f"`{name}` ({n})" for name, n in decided.most_common(1)) or "none"
    told = {
        "decided": decided.total(),
        "all": len(outcomes),
        "words": _count(outcomes),
        "table": table,
        "answers": answers,
    }
    head = HEAD.format(lines="\n".join(lines), **told)
    return "\n".join([head, *(_section(i, outcome) for i, outcome in enumerate(outcomes, 1))])


@cache
def _task(claim: Claim) -> str:
    """The task of a claim's first column, by its short name."""
    columns = compose.page("experiment", claim.experiment)["columns"].items()
    overrides = next(of["overrides"] for key, of in columns if any(fnmatch(key, one) for one in claim.columns))
    return TASKS[next(o[5:] for o in overrides if o.startswith("task="))]


def _short_why(outcome: Outcome) -> str:
    """Why a claim is not decided, in a few words; empty if it is decided."""
    ran = [bool(p.differences) for p in outcome.parts]
    seeds = {1: "one seed", 2: "two seeds"}.get(max((len(p.differences) for p in outcome.parts), default=0), "")
    doubts = [doubt.partition(",")[0] for doubt in outcome.part.why.split(" and ") if "seed" not in doubt]
    why = "; ".join(filter(None, (seeds, "" if all(ran) else "some rows not run", *doubts))) or "interval too wide"
    return "" if outcome.outcome != OPEN else why if any(ran) else "not run"


def _answer(task: str, numbered: Iterable[tuple[int, Outcome]]) -> str:
    """How the rows of a task's claims, those with enough seeds if any, score against softmax, in the table and score with the most seeds and rows."""
    groups: dict[tuple[str, str], list[tuple[float, int, str, int, Outcome]]] = {}
    decided: dict[str, list[str]] = {}
    for i, outcome in numbered:
        if outcome.outcome != OPEN:
            decided.setdefault(outcome.outcome, []).append(f"[{i}](#claim-{i})")
        for p in outcome.parts if "softmax" in outcome.claim.against and outcome.claim.metric in SCORES else ():
            if runs := list(p.differences.values()):
                of = groups.setdefault((outcome.claim.experiment, outcome.claim.metric), [])
                of.append((fmean(runs), len(runs), p.row, i, outcome))
    if not groups:
        return f"- {task}: no score against softmax."
    most = max(groups.values(), key=lambda of: (max(n for _, n, *_ in of), len(of)))
    found = sorted([outcome for outcome in most if outcome[1] >= FEWEST] or most, key=lambda outcome: outcome[0])
    claims, d = dict(sorted({i: outcome for *_, i, outcome in found}.items())), found[0][-1].decimals
    ends = " to ".join(dict.fromkeys(f"{gap:+.{d}f} ({row})" for gap, _, row, *_ in (found[0], found[-1])))
    n = " to ".join(map(str, sorted({f([n for _, n, *_ in found]) for f in (min, max)})))
    said = "; ".join(f"{word}: claim{'s' * (len(which) > 1)} {', '.join(which)}" for word, which in decided.items())
    why = "; ".join(dict.fromkeys(_short_why(outcome) for outcome in claims.values()))
    claim, rows = found[0][-1].claim, len({row for _, _, row, *_ in found})
    return f"- {task}: {SCORES[claim.metric]} against {claim.against}: {ends}; {rows} rows, n = {n}. {said[:1].upper() + said[1:] if said else f'Not decided: {why}'}."


def pictures(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The pictures of the page, path relative to docs -> SVG."""
    return {_picture(outcome): drawings.claim(outcome, _picture(outcome)) for outcome in outcomes if _drawn(outcome)}


def _drawn(outcome: Outcome) -> bool:
    return any(len(part.differences) > 1 for part in outcome.parts)


def _picture(outcome: Outcome) -> str:
    mine = [c for c in _claims() if c.paper == outcome.claim.paper]
    number = mine.index(outcome.claim) + 1 if outcome.claim in mine else 0
    return f"{FIGURES}/{outcome.claim.paper}_{number}.svg"


def _section(i: int, outcome: Outcome) -> str:
    claim, d = outcome.claim, outcome.decimals
    told = [
        f"## Claim {i}", f"> {claim.claim} ({claim.paper}, {claim.place})",
        f"**{outcome.outcome.capitalize()}.** {_why(outcome)}Tested: `{claim.metric}`{claim.compared(' minus ')}, {claim.test}, margin {claim.margin:g}; table `{claim.experiment}`, "
        f"profile {claim.profile}." + f" {claim.note}" * bool(claim.note) + " The rows need not have converged." * (not claim.convergence),
    ]  # fmt: skip
    if _drawn(outcome):
        told.append(f"![differences with intervals](results/{_picture(outcome)})")
    if outcome.parts:
        rows = [(part, ", ".join(f"{v:+.{d}f}" for v in part.differences.values())) for part in outcome.parts]
        lines = "\n".join(f"| {part.row} | {part.column or 'all'} | {part.text(d)} | {each} |" for part, each in rows)
        told.append(f"{PARTS}\n{lines}")
    for part in outcome.parts:
        wrong = [f"{c} ({v:+.{d}f})" for c, v in part.columns.items() if claim.sign * v <= 0]
        if part.columns:
            told.append(f"{part.row}: the direction holds in {len(part.columns) - len(wrong)} of {len(part.columns)} columns"
                        + (f", not in {', '.join(wrong)}." if wrong else "."))  # fmt: skip
    return "\n\n".join(told) + "\n"


def _why(outcome: Outcome) -> str:
    """Why a claim is not decided and what would decide it; for a decided claim, an empty string."""
    if outcome.outcome != OPEN:
        return ""
    why = f"{outcome.part.why[0].upper()}{outcome.part.why[1:]}. " if outcome.part.why else ""
    then = f"would support it with a power of {ENOUGH:.0%} if the true difference were {outcome.claim.assumed:g}. "
    if outcome.claim.pilot != Pilot():
        return f"{why}{outcome.needed or f'Not even {MOST_SEEDS}'} seeds {then}"
    return why or "No earlier runs say how many seeds would decide it. "


def _effect(outcome: Outcome) -> str:
    part, d = outcome.part, outcome.decimals
    return f"{part.effect:+.{d}f}{part.interval(d)}" if part.effect == part.effect else ""


def _power(outcome: Outcome) -> str:
    return "" if outcome.power is None else f"{outcome.power:.2f}"


def _count(outcomes: Sequence[Outcome]) -> str:
    words = [outcome.outcome for outcome in outcomes]
    known = ", ".join(f"{words.count(word)} {word}" for word in sorted({*words} - {OPEN}, reverse=True)) or "none"
    return f"{known}; {words.count(OPEN)} open"
