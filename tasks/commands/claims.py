"""Test the papers' claims (configs/claims) on the records of tables, and write the outcomes as JSON and as a page."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from repro.claims.claim import RULES, Claim, Paper
from repro.claims.decide import Evidence, outcome_of
from repro.claims.outcome import CONTRADICTED, DECIDED, EXCLUDED, OPEN, SUPPORTED, UNTESTABLE, UNTESTED, Outcome, Part
from repro.files import templates, write_atomic
from repro.report import pictures as drawings
from repro.statistics import FEWEST, holm
from repro.store import outputs_folder
from repro.tables.blocks import Table
from tasks.commands import records
from tasks.config import compose
from tasks.config.files import values_in

PAGE = values_in("claims_page")
TASKS, METRICS = PAGE["tasks"], PAGE["metrics"]
FIGURES = "figures/claims"  # the pictures' folder, in docs/results
NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()
# outcome -> its word on the page
WORDS = {SUPPORTED: "hold", CONTRADICTED: "fail", EXCLUDED: "fail", OPEN: "open"}
WORDS |= dict.fromkeys((UNTESTED, UNTESTABLE), "not testable here")


def of_tables(tables: Iterable[Table]) -> list[Outcome]:
    """The outcome of every claim in configs/claims, by number; tables: those built from records."""
    tested = {o.claim: o for table in tables for o in table.claims}
    nothing = Evidence({})
    return [tested.get(c) or outcome_of(c, nothing) for c in compose.claims()]


def write(results: Path) -> int:
    """`scripts/results.py --claims`: test every claim on the records in `results`, print the outcomes, write <outputs>/claims.json.

    Returns exit status 0. Raises StoreError if a file of records cannot be read.
    """
    wanted = {records.file_of(c.experiment, c.profile, results) for c in compose.claims() if c.experiment}
    tables = [records.read(path).table for path in sorted(wanted) if path.is_file()]
    found = of_tables(tables)
    for one in found:
        part, claim, n = one.part, one.claim, f"n = {one.part.seeds}" if one.part.n else ""
        outcome, measured = one.outcome + _mark(one)[-1:], part.measured(one.decimals)
        print(f"{claim.id:3} {outcome:17} {claim.paper:13} {measured:28} {n:12} {claim.claim}")
    path = Path(outputs_folder()) / "claims.json"
    listed = [values(one, tables) for one in found]
    write_atomic(path, (json.dumps(listed, indent=1, ensure_ascii=False) + "\n").encode())
    words = Counter(one.outcome for one in found)
    count = ", ".join(f"{words[word]} {word}" for word in (*DECIDED, OPEN, UNTESTED, UNTESTABLE) if words[word])
    print(f"* changed or added after its records had been seen\n{count}")
    print(f"claims: {path}; the page with pictures: docs/claims.md")
    return 0


def told_of(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Comparisons for a JSON file; numbers that are not known are left out."""
    return [{k: v for k, v in asdict(part).items() if k != "slack" and v == v} for part in parts]


def values(outcome: Outcome, tables: Iterable[Table] = ()) -> dict[str, Any]:
    """An outcome for a JSON file; unknown numbers are None. Of an open claim, also what would decide it (`_lacking`)."""
    asked = ("id", "claim", "here", "paper", "place", "metrics", "test", "margin", "direction")
    part = outcome.part
    effect, *interval = (v if math.isfinite(v) else None for v in (part.effect, part.low, part.high))
    told = {"version": len(outcome.claim.history) + 1, "outcome": outcome.outcome, "counts": outcome.counts}
    told |= {"effect": effect, "interval": interval, "n": part.n, "why": part.why, "p": outcome.p}
    told |= {"chance": None if math.isnan(outcome.chance) else outcome.chance, "needs": outcome.needs}
    told |= dict(zip(("more_runs", "more_hours"), _lacking(outcome, tables))) if not outcome.counts else {}
    parts = told_of(outcome.parts)
    forms = [{"form": o.claim.forms[0].form, "outcome": o.outcome, "parts": told_of(o.parts)} for o in outcome.forms]
    return {k: getattr(outcome.claim, k) for k in asked} | told | {"parts": parts} | ({"forms": forms} if forms else {})


# ---- the page


def page(outcomes: Sequence[Outcome], tables: Sequence[Table] = (), listed: Sequence[Paper] = ()) -> str:
    """docs/claims.md; listed: the papers, by default those of configs/claims."""
    papers = {paper.paper: paper for paper in listed or compose.papers()}
    order = [*TASKS, *(one.claim.experiment for one in outcomes)]
    asked = sorted((one for one in outcomes if one.claim.question), key=lambda one: order.index(one.claim.experiment))
    ranked = sorted(outcomes, key=lambda one: [*papers].index(one.claim.paper))
    counted = [one for one in outcomes if papers[one.claim.paper].counted]
    told: dict[str, Any] = {"METRICS": METRICS, "WORDS": WORDS, "EXCLUDED": EXCLUDED, "SUPPORTED": SUPPORTED}
    told |= {"RULES": RULES, "OPEN": OPEN, "word": _word, "quoted": _quoted, "picture": _picture, "shown": _shown}
    told |= {"asked": asked, "ranked": ranked, "papers": papers, "counted": counted, "better": better(tables)}
    told |= {"small": _small(tables), "least": _least(outcomes), "lost": _lost(counted)}
    told |= {"more": {one.claim.id: _more(one, tables) for one in outcomes}, "of": Counter(map(_word, counted))}
    failed = [(str(one.claim.id), {form.outcome for form in one.forms}) for one in counted if _word(one) == "fail"]
    told["turned"] = _and([id for id, words in failed if SUPPORTED in words])
    told["unlike"] = _and([id for id, words in failed if words == {OPEN}])
    many = len({one.claim.paper for one in counted})
    told["many"] = NUMBERS[many] if many < len(NUMBERS) else many
    return templates(Path(__file__).parent).get_template("claims.md.jinja").render(told)


def _word(outcome: Outcome) -> str:
    """The outcome in a word; open if it rests on a test that was changed after its records had been seen."""
    return WORDS[OPEN if _mark(outcome) else outcome.outcome]


def _shown(outcome: Outcome) -> Sequence[Part]:
    """The comparisons of the first table: those of the column that decides; if they are many, only the first metric's."""
    found = [part for part in outcome.parts if part.column == outcome.part.column] or [outcome.part]
    return [part for part in found if len(found) < 4 or part.metric == found[0].metric]


def better(tables: Iterable[Table]) -> dict[str, float]:
    """Task -> of all pairs of a run of sparsemax and one of softmax, the share in which the first is better; ties count half."""
    found = {}
    for table in tables:
        task, metric, _, against = TASKS.get(table.name, ("", "", "", ""))
        rows = [one for one in table.blocks[0].rows if task and not one.baseline]
        runs = {one.label: np.array([f.metrics[metric] for f in one.results if metric in f.metrics]) for one in rows}
        if min(len(runs.get("sparsemax", ())), len(runs.get(against, ()))) >= FEWEST:
            gaps = runs["sparsemax"][:, None] - runs[against]
            found[task] = float(((gaps > 0) + 0.5 * (gaps == 0)).mean())
    return found


def _small(tables: Sequence[Table]) -> str:
    """The size of the models and of their training data, from the records."""
    by_name = {table.name: [found for row in table.blocks[0].rows for found in row.results] for table in tables}
    first = [(task, by_name[name][0]) for name, (task, *_) in TASKS.items() if by_name.get(name)]
    units = [found.config["model"]["hidden_dim"] for _, found in first]
    told = [f"{round(found.facts['sizes']['train'], -3):,} ({task})" for task, found in first]
    return f"LSTMs of {min(units)} to {max(units)} units, trained on {_and(told)} examples" if first else "LSTMs"


def _least(outcomes: Sequence[Outcome]) -> str:
    """The smallest effects that the tests would show, by task: the median over the claims' comparisons."""
    told = []
    for name, (task, metric, label, _) in TASKS.items():
        every = (part for one in outcomes if one.claim.experiment == name for part in one.parts)
        if shown := [p.shows for p in every if p.metric == metric and p.n >= FEWEST and p.shows == p.shows]:
            told.append(f"{median(shown):.1f} {label} ({task})")
    return ", ".join(told) or "the margins"


def _lost(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a correction over all tested claims would leave open: the numbers of claims, by method."""
    from scipy.stats import false_discovery_control

    tested = [one for one in outcomes if one.outcome in (*DECIDED, OPEN) and one.parts]
    p = {one.claim.id: one.p if one.counts else 1.0 for one in tested}
    decided = [one.claim.id for one in tested if one.counts]
    methods = {"Holm": holm(p), "Benjamini": dict(zip(p, false_discovery_control([*p.values()]))) if p else {}}
    lost = {name: [str(i) for i in decided if of[i] >= 0.05] for name, of in methods.items()}
    return {"tests": len(tested)} | {name: _and(of) or "none" for name, of in lost.items()}


def _lacking(outcome: Outcome, tables: Iterable[Table]) -> tuple[int, float] | tuple[None, None]:
    """The runs that a claim lacks for a chance of 80 %, over its rows and columns, and their hours by the records' mean
    seconds a row; None if over 100 a row."""
    if not outcome.needs:
        return None, None
    has = {}
    for part in outcome.parts:
        for column in part.columns or [part.column]:
            has |= {(part.row, column): part.n, (part.against, column): part.others or part.n}
    seconds = defaultdict(list)
    for row in (row for t in tables if t.name == outcome.claim.experiment for block in t.blocks for row in block.own):
        seconds[row.label] += [cell.seconds for cell in row.results]
    lacking = [(row, max(outcome.needs - n, 0)) for (row, _), n in has.items()]
    return sum(n for _, n in lacking), sum(n * fmean(seconds[row] or [0]) for row, n in lacking) / 3600


def _more(outcome: Outcome, tables: Iterable[Table]) -> str:
    """The runs that would decide an open claim, as text."""
    runs, hours = _lacking(outcome, tables)
    if runs is None:
        return "more than 100 runs a row"
    return f"{outcome.needs} runs a row ({runs} more, {hours:.1f} hours)"


def _and(points: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(points[:-1]), *points[-1:])))


def _mark(outcome: Outcome) -> str:
    """A star if a decided outcome rests on a test that was changed after its records had been seen."""
    return "\\*" * (outcome.seen and not outcome.confirmed and outcome.outcome in DECIDED)


def _quoted(claim: Claim) -> str:
    """The claim as a quotation, unless the words are ours."""
    return claim.claim if "(our " in claim.claim else f"“{claim.claim}”"


def pictures(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The pictures of the page, path relative to docs/results -> SVG."""
    return {path: drawings.claim(one, METRICS) for one in outcomes if (path := _picture(one))}


def _picture(outcome: Outcome) -> str:
    """The path of a claim's picture; empty if no comparison has several runs."""
    several = any(len(part.differences) > 1 for part in outcome.parts)
    return f"{FIGURES}/claim_{outcome.claim.id}.svg" if several else ""
