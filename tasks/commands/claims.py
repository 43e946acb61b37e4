"""Test the papers' claims (configs/claims) on the records of tables, and write the outcomes as JSON and as a page."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from repro.files import write_atomic
from repro.report import pictures as drawings
from repro.store import outputs_folder
from repro.tables.blocks import Table
from repro.tables.claims import Change, Claim
from repro.tables.decide import (
    CONTRADICTED,
    DECIDED,
    EXCLUDED,
    OPEN,
    SUPPORTED,
    UNTESTABLE,
    UNTESTED,
    Evidence,
    Outcome,
    outcome_of,
)
from repro.tables.statistics import FEWEST
from tasks.commands import recorded
from tasks.commands.chances import TASKS, chances, picture
from tasks.config import compose

FIGURES = "figures/claims"  # the pictures' folder, in docs/results
CHANCES = f"{FIGURES}/chances.svg"
APART = ("malaviya2018",)  # cited by one of the four papers; counted apart
PAPERS = {
    "niculae2017": "Niculae & Blondel 2017",
    "laha2018": "Laha et al. 2018",
    "peters2018": "Peters, Niculae & Martins 2018",
    "martins2020": "Martins et al. 2020",
    "malaviya2018": "Malaviya et al. 2018, a fifth paper, counted apart",
}
METRICS = {
    "test/rouge1_f": "ROUGE-1",
    "test/rouge2_f": "ROUGE-2",
    "test/rougeL_f": "ROUGE-L",
    "test/attention_marked_mass": "attention on the words",
    "test/attention_marked_precision": "precision",
    "test/comprehensiveness": "loss of confidence without the words",
}
WORDS = {
    SUPPORTED: "yes",
    CONTRADICTED: "no, the opposite is seen",
    OPEN: "not decided",
    UNTESTED: "not tested",
    UNTESTABLE: "cannot be tested here",
}
STYLE = """\
<style>
.answers table {table-layout: auto; width: 100%} .answers th, .answers td {padding: .25em .6em !important; min-width: 0 !important}
@media (min-width: 1220px) {.md-sidebar {display: none !important} h1 {margin-bottom: .4em !important}}
@media (max-width: 600px) {.answers thead {display: none} .answers tr, .answers td {display: block; border: 0 !important; padding: .1em .4em !important}
.answers tr {padding: .5em 0 !important; border-bottom: 1px solid #8888 !important} .answers td:first-child {font-weight: bold}
.answers td:nth-child(2)::before {content: "papers: "} .answers td:nth-child(3)::before {content: "we: "} .answers td:last-child::before {content: "answer: "}}
</style>"""
HEAD = """\
# Do the papers' claims hold in small models?

Small: {small}, one CPU. "No" = the opposite is seen at this size. Half of the comparisons would not show effects smaller than {least}.

In one sentence, {sentence}.

The main {questions} of the {all} claims of {papers}:

<div class="answers" markdown="1">

| question | the paper says | we measured [95 % interval] (runs) | answer |
|---|---|---|---|
{lines}

</div>

"Yes" and "no" are one-sided tests at 5 % ("no": 5 % shared by all rows). In brackets after the interval: the runs of the row, and of the other if it has more or fewer. Of several rows, the one with the least evidence for the claim is shown: it decides.

\\* The test was changed or added after its records had been seen, and the outcome with it: the answer does not count as decided until new runs confirm it. Changes that left the outcome as it was
have no star; the history of each claim tells them.

BLEU and ROUGE (0 to 100) count words and phrases that a translation or headline shares with a reference; accuracy is in per cent, F1 (0 to 1) weighs labels found against labels missed,
and contiguity is 1 where the words with attention are all neighbours and 0 where none are.
SNLI has pairs of sentences (does one follow from the other?), IMDB film reviews, Reuters news with headlines, and the Hansards debates of a parliament.

{picture}Of the {all} claims of the four papers, {decided} are decided: {words}{counter}. {seen} more have an outcome that rests on a test changed or added after its records had been seen;
{open} are not decided, {untested} are not tested, and {untestable} cannot be tested here.
{chances}
## Every claim

Each opens with a click. `make claims` tests all of them again on the records of docs/results. The page and its pictures are made from these records.

*Supported* (yes): one-sided tests at 5 % show it for every row. *Contradicted* (no): the opposite is shown for one of them. *Gain excluded*: a gain that counts (our margin, or half the paper's effect if that
is less) is ruled out. *Inconclusive* (not decided): the tests show neither. The interval covers other runs and, where the score of each test example is recorded, other test examples. Fewer than three runs
decide nothing, but for a trend over a sweep; rows that had not converged decide nothing that more training could undo; and no claim is supported where attention is worth little
(against one run of uniform attention; [how it works](../repro/tables/decide.py)). Runs were added to several rows after the first had been seen, so more than 5 % of the answers may be wrong.
"""
CHANCE = """
| mapping | tasks | runs | chance that a run is better than one of softmax [95 % interval] |
|---|---|---:|---:|
{lines}

The chance is the mean over the tasks, and the interval draws the runs again within each task, as the library rliable does; with three to five runs, it is narrower than it should be.
*All runs*: each is better, or each is worse, so that no draw differs.
"""
LONGEST = 96  # characters of a claim in the list


def of_tables(tables: Iterable[Table]) -> list[Outcome]:
    """The outcome of every claim in configs/claims, by number; tables: those built from records."""
    tested = {o.claim: o for table in tables for o in table.claims}
    nothing = Evidence({})
    return [tested.get(c) or outcome_of(c, nothing) for c in sorted(_claims(), key=lambda c: c.id)]


@cache
def _claims() -> list[Claim]:
    return list(itertools.chain.from_iterable(map(compose.claims, compose.names_in("claims"))))


def write(results: Path) -> int:
    """`scripts/claims.py`: test every claim on the records in `results`, print the outcomes, write <outputs>/claims.json.

    Returns exit status 0. Raises StoreError if a file of records cannot be read.
    """
    wanted = {recorded.file_of(c.experiment, c.profile, results) for c in _claims() if c.experiment}
    found = of_tables(recorded.read(path).table for path in sorted(wanted) if path.is_file())
    for one in found:
        part, mark = one.part, "*" * (one.seen and not one.confirmed)
        n = f"n = {part.seeds}" if part.n else ""
        print(
            f"{one.claim.id:3} {one.outcome + mark:17} {one.claim.paper:13} {part.measured(one.decimals):28} {n:12} {one.claim.claim}"
        )
    path = Path(outputs_folder()) / "claims.json"
    write_atomic(path, (json.dumps([values(one) for one in found], indent=1, ensure_ascii=False) + "\n").encode())
    print(
        f"* changed or added after its records had been seen\n{_count(found)}\nclaims: {path}; the page with pictures: docs/claims.md"
    )
    return 0


def values(outcome: Outcome) -> dict[str, Any]:
    """An outcome for a JSON file; numbers that are not known are None."""
    asked = ("id", "claim", "here", "paper", "place", "metrics", "test", "margin", "direction")
    part = outcome.part
    effect, low, high = (v if math.isfinite(v) else None for v in (part.effect, part.low, part.high))
    parts = [{k: v for k, v in asdict(p).items() if k != "slack" and v == v} for p in outcome.parts]
    return {
        **{k: getattr(outcome.claim, k) for k in asked},
        "version": len(outcome.claim.history) + 1,
        "outcome": outcome.outcome,
        "counts": outcome.counts,
        "effect": effect,
        "interval": [low, high],
        "n": part.n,
        "why": part.why,
        "parts": parts,
    }


# ---- the page


def page(outcomes: Sequence[Outcome], tables: Sequence[Table] = ()) -> str:
    """docs/claims.md."""
    order = [*TASKS, *(one.claim.experiment for one in outcomes)]
    asked = sorted((one for one in outcomes if one.claim.question), key=lambda one: order.index(one.claim.experiment))
    lines = [
        f"| [{one.claim.question}](#claim-{one.claim.id}) | {one.claim.says} | {_measured(one)} | {_answer(one)} |"
        for one in asked
    ]
    four = [one for one in outcomes if one.claim.paper not in APART]
    better = chances(tables)
    rows = [
        f"| {c.row} | {', '.join(c.tasks)} | {', '.join(map(str, c.runs))} | {c.mean:.0%} {c.interval} |".replace(
            "%", " %"
        )
        for c in better
    ]
    told = {
        "small": _small(tables),
        "least": _least(outcomes),
        "sentence": _sentence(asked),
        "lines": "\n".join(lines),
        "questions": len(asked),
        "papers": _and([name for paper, name in PAPERS.items() if paper not in APART]),
        "all": len(four),
        "decided": sum(one.counts for one in four),
        "words": _count([one for one in four if one.counts]) or "none",
        "counter": f" ({by} by a counterexample)"
        if (by := sum(bool(one.counts and one.claim.counterexample) for one in four))
        else "",
        "seen": sum(one.outcome in DECIDED and not one.counts for one in four),
        **{
            name: sum(one.outcome == word for one in four)
            for name, word in (("open", OPEN), ("untested", UNTESTED), ("untestable", UNTESTABLE))
        },
        "picture": f"![the chance that a run is better than one of softmax](results/{CHANCES})\n\n" if better else "",
        "chances": CHANCE.format(lines="\n".join(rows)) if better else "",
    }
    parts = [HEAD.format(**told)]
    for paper in dict.fromkeys([*PAPERS, *(one.claim.paper for one in outcomes)]):
        if mine := [one for one in outcomes if one.claim.paper == paper]:
            parts += [f"### {PAPERS.get(paper, paper)}\n", *map(_section, mine)]
    return "\n".join([*parts, STYLE, ""])


def _small(tables: Sequence[Table]) -> str:
    """The size of the models and of their training data, from the configurations and the records."""
    units = [_units("setting", f"{task}_cpu") for task in ("translation", "summarization", "snli_esim", "imdb")]
    sizes = {}
    for table in tables:
        if (of := TASKS.get(table.name)) and (found := [f for row in table.blocks[0].rows for f in row.results]):
            sizes[of[0]] = f"{round(found[0].facts['sizes']['train'], -3):,} ({of[0]})"
    told = [sizes[of[0]] for of in TASKS.values() if of[0] in sizes]
    return f"LSTMs of {min(units)} to {max(units)} units" + (f", trained on {_and(told)} examples" if told else "")


def _units(room: str, name: str) -> int:
    """The units of a model of configs, its own or those of the model that it is made from."""
    text = (compose.ROOT / "configs" / room / f"{name}.yaml").read_text(encoding="utf-8")
    found = re.search(r"^hidden_dim: (\d+)", text, re.M)
    of = re.search(r"^  - /model: (\w+)|^defaults: \[(\w+)", text, re.M)
    return int(found[1]) if found else _units("model", of[1] or of[2])  # type: ignore[index]


def _least(outcomes: Sequence[Outcome]) -> str:
    """The smallest effects that the tests would show, by task: the median over the claims' comparisons."""
    told = []
    for name, (task, metric, label, _) in TASKS.items():
        parts = [
            p
            for one in outcomes
            if one.claim.experiment == name
            for p in one.parts
            if p.metric == metric and p.n >= FEWEST
        ]
        if shown := [p.shows for p in parts if p.shows == p.shows]:
            told.append(f"{median(shown):.1f} {label} ({task})")
    return ", ".join(told) or "the margins"


def _sentence(outcomes: Sequence[Outcome]) -> str:
    """The answers to the questions, in one sentence."""
    words = {
        SUPPORTED: "holds:",
        CONTRADICTED: "the opposite is seen:",
        EXCLUDED: "no such gain:",
        OPEN: "not decided:",
    }
    groups = {
        word: [one.claim.point + _mark(one) for one in outcomes if one.outcome == of] for of, word in words.items()
    }
    return "; ".join(f"{word} {', '.join(points)}" for word, points in groups.items() if points) or "nothing was tested"


def _and(points: Sequence[str]) -> str:
    return f"{', '.join(points[:-1])} and {points[-1]}" if len(points) > 1 else points[0]


def _measured(outcome: Outcome) -> str:
    """The comparison that decides: row, effect, interval, unit and runs; or why there is none."""
    part = outcome.part
    if not part.measured(outcome.decimals):
        return part.why
    row = f"{part.row}: " if len({p.row for p in outcome.parts}) > 1 else ""
    unit = METRICS.get(part.metric, "") if len(outcome.claim.metrics) > 1 else outcome.claim.unit
    against = f" over {part.against}" if len(outcome.claim.against) > 1 else ""
    return f"{row}{part.measured(outcome.decimals)} {unit}{against} ({part.seeds.replace(' and ', ', ')})"


def _answer(outcome: Outcome) -> str:
    if outcome.outcome == OPEN:
        return WORDS[OPEN] + (f": {outcome.part.why}" if outcome.part.why else "")
    excluded = f"no, a gain of {outcome.claim.smallest:.2g} or more is excluded"
    said = excluded if outcome.outcome == EXCLUDED else WORDS[outcome.outcome]
    return f"not decided yet ({said}){mark}" if (mark := _mark(outcome)) else said


def _mark(outcome: Outcome) -> str:
    """A star if a decided outcome rests on a test that was changed after its records had been seen."""
    return "\\*" * (outcome.seen and not outcome.confirmed and outcome.outcome in DECIDED)


def _quoted(claim: Claim) -> str:
    """The claim as a quotation, unless the words are ours."""
    return claim.claim if "(our " in claim.claim else f"“{claim.claim}”"


def _section(outcome: Outcome) -> str:
    claim = outcome.claim
    short = html.escape(textwrap.shorten(_quoted(claim), LONGEST, placeholder=" …"), quote=False)
    told = [
        f'<details id="claim-{claim.id}" markdown="1">\n<summary>{claim.id}. <b>{outcome.outcome}{_mark(outcome)[-1:]}</b>: {short}</summary>',
        f"> {_quoted(claim)} ({claim.place})",
        " ".join(
            filter(
                None, (f"The paper: {claim.says}." if claim.says else "", f"Here: {claim.here}." if claim.here else "")
            )
        ),
        f"**{outcome.outcome.capitalize()}.** {_why(outcome)}",
        f"![differences with intervals](results/{_picture(outcome)})" if _drawn(outcome) else "",
        _parts(outcome) if outcome.parts else "",
        claim.note,
        _history(outcome),
        f"Table `{claim.experiment}`, profile {claim.profile}: {', '.join(f'`{m}`' for m in claim.metrics)}."
        if claim.experiment
        else "",
        "</details>",
    ]
    return "\n\n".join(filter(None, told)) + "\n"


def _why(outcome: Outcome) -> str:
    """The outcome in words."""
    claim, part = outcome.claim, outcome.part
    if claim.told:
        return part.why
    if not part.measured(outcome.decimals):
        return f"{part.why.capitalize()}."
    where = f" in {part.column}" if part.column and len({p.column for p in outcome.parts}) > 1 else ""
    said = f"{part.row}{where}{claim.compared(' against ') if not part.against else f' against {part.against}'}: {part.measured(outcome.decimals)} {claim.unit}, n = {part.seeds}."
    if claim.test == "trend":
        said = f"{part.row}: {part.effect:+.{outcome.decimals}f} {claim.unit} from the first to the last, in {part.n} blocks; Page's test of all ranks decides."
    shows = (
        f" A true effect of {part.shows:.2g} would show with a chance of 80 %."
        if part.shows == part.shows and outcome.outcome == OPEN
        else ""
    )
    reason = f" {part.why[0].upper()}{part.why[1:]}." if part.why else ""
    least = f" A gain of {claim.smallest:.2g} or more is excluded." if outcome.outcome == EXCLUDED else ""
    return f"{said}{least}{reason}{shows}" + " The rows need not have converged." * (not claim.convergence)


def _parts(outcome: Outcome) -> str:
    """Every comparison, with the differences of its runs, or of its settings."""
    d = outcome.decimals
    lines = []
    for part in outcome.parts:
        of = part.columns if outcome.claim.test == "most" else part.differences
        place = ", ".join(
            filter(
                None,
                (
                    part.column,
                    METRICS.get(part.metric, "") if len(outcome.claim.metrics) > 1 else "",
                    f"over {part.against}" if len(outcome.claim.against) > 1 else "",
                ),
            )
        )
        each = ", ".join(f"{v:+.{d}f}" for v in of.values())
        lines.append(f"| {part.row} | {place or 'all'} | {part.text(d)} | {each} |")
    return "| row | where | outcome: mean difference [95 % interval] | each run |\n|---|---|---|---|\n" + "\n".join(
        lines
    )


def _history(outcome: Outcome) -> str:
    """The earlier versions of the test beside the present one; empty if there are none."""

    def line(i: int, old: Change) -> str:
        return f"Version {i}: {old.outcome}{f' ({old.measured})' if old.measured else ''}. {old.why}"

    if not (old := outcome.claim.history):
        return ""
    now = f"version {len(old) + 1}, today: {outcome.outcome}"
    if outcome.seen:
        now += ", *re-analysed after seeing the data*" + (", and confirmed by new runs" if outcome.confirmed else "")
    elif outcome.outcome in DECIDED:
        now += ", as before"
    return "History: " + " ".join(line(i, change) for i, change in enumerate(old, 1)) + f" {now[0].upper()}{now[1:]}."


def pictures(outcomes: Sequence[Outcome], tables: Sequence[Table] = ()) -> dict[str, str]:
    """The pictures of the page, path relative to docs/results -> SVG."""
    made = {_picture(one): drawings.claim(one, METRICS) for one in outcomes if _drawn(one)}
    return made | ({CHANCES: picture(better)} if (better := chances(tables)) else {})


def _drawn(outcome: Outcome) -> bool:
    return any(len(part.differences) > 1 for part in outcome.parts)


def _picture(outcome: Outcome) -> str:
    return f"{FIGURES}/claim_{outcome.claim.id}.svg"


def _count(outcomes: Sequence[Outcome]) -> str:
    words = Counter(one.outcome for one in outcomes)
    return ", ".join(f"{words[word]} {word}" for word in (*DECIDED, OPEN, UNTESTED, UNTESTABLE) if words[word])
