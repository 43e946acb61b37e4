"""Test the papers' claims (configs/claims) on the records of tables, and write the outcomes as JSON and as a page."""

import html
import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from repro.files import templates, write_atomic
from repro.report import draw
from repro.report import pictures as drawings
from repro.report.draw import INK, Dot
from repro.store import outputs_folder
from repro.tables.blocks import Table
from repro.tables.claims import UNIFORM, Claim, Paper
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
from tasks.config import compose

# table -> its task, the score and its name, and the row that the others are compared with
TASKS = {
    "evidence_translation": ("translation", "test/bleu", "BLEU", "softmax"),
    "evidence_snli": ("entailment", "test/accuracy", "points of accuracy", "softmax"),
    "evidence_headlines": ("headlines", "test/rouge1_f", "ROUGE-1", "softmax"),
    "evidence_imdb": ("reviews", "test/accuracy", "points of accuracy", "discrete softmax"),
}
FIGURES = "figures/claims"  # the pictures' folder, in docs/results
CHANCES = f"{FIGURES}/chances.svg"
NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()
METRICS = {
    "test/rouge1_f": "ROUGE-1",
    "test/rouge2_f": "ROUGE-2",
    "test/rougeL_f": "ROUGE-L",
    "test/attention_marked_mass": "attention on the words",
    "test/attention_marked_precision": "precision",
    "test/comprehensiveness": "loss of confidence without the words",
}
LONGEST = 96  # characters of a claim in the list


def of_tables(tables: Iterable[Table]) -> list[Outcome]:
    """The outcome of every claim in configs/claims, by number; tables: those built from records."""
    tested = {o.claim: o for table in tables for o in table.claims}
    nothing = Evidence({})
    return [tested.get(c) or outcome_of(c, nothing) for c in compose.claims()]


def write(results: Path) -> int:
    """`scripts/claims.py`: test every claim on the records in `results`, print the outcomes, write <outputs>/claims.json.

    Returns exit status 0. Raises StoreError if a file of records cannot be read.
    """
    wanted = {recorded.file_of(c.experiment, c.profile, results) for c in compose.claims() if c.experiment}
    found = of_tables(recorded.read(path).table for path in sorted(wanted) if path.is_file())
    for one in found:
        part, claim, n = one.part, one.claim, f"n = {one.part.seeds}" if one.part.n else ""
        outcome, measured = one.outcome + _mark(one)[-1:], part.measured(one.decimals)
        print(f"{claim.id:3} {outcome:17} {claim.paper:13} {measured:28} {n:12} {claim.claim}")
    path = Path(outputs_folder()) / "claims.json"
    write_atomic(path, (json.dumps([values(one) for one in found], indent=1, ensure_ascii=False) + "\n").encode())
    print(f"* changed or added after its records had been seen\n{_count(found)}")
    print(f"claims: {path}; the page with pictures: docs/claims.md")
    return 0


def values(outcome: Outcome) -> dict[str, Any]:
    """An outcome for a JSON file; unknown numbers are None."""
    asked = ("id", "claim", "here", "paper", "place", "metrics", "test", "margin", "direction")
    part = outcome.part
    effect, *interval = (v if math.isfinite(v) else None for v in (part.effect, part.low, part.high))
    told = {"version": len(outcome.claim.history) + 1, "outcome": outcome.outcome, "counts": outcome.counts}
    told |= {"effect": effect, "interval": interval, "n": part.n, "why": part.why}
    parts = [{k: v for k, v in asdict(p).items() if k != "slack" and v == v} for p in outcome.parts]
    return {k: getattr(outcome.claim, k) for k in asked} | told | {"parts": parts}


# ---- the page


def page(outcomes: Sequence[Outcome], tables: Sequence[Table] = (), listed: Sequence[Paper] = ()) -> str:
    """docs/claims.md; listed: the papers, by default those of configs/claims."""
    order = [*TASKS, *(one.claim.experiment for one in outcomes)]
    asked = sorted((one for one in outcomes if one.claim.question), key=lambda one: order.index(one.claim.experiment))
    of_papers = [(p, [one for one in outcomes if one.claim.paper == p.paper]) for p in listed or compose.papers()]
    counted = [(p, found) for p, found in of_papers if p.counted and found]
    every = [one for _, found in counted for one in found]
    many = NUMBERS[len(counted)] if len(counted) < len(NUMBERS) else str(len(counted))
    made = templates(Path(__file__).parent).get_template("claims.md.jinja")
    return made.render(
        mark=_mark,
        quoted=_quoted,
        short=_short,
        picture=_picture,
        METRICS=METRICS,
        small=_small(tables),
        least=_least(outcomes),
        sentence=_sentence(asked),
        asked=asked,
        of=Counter(one.outcome for one in every),
        every=every,
        decided=_count([one for one in every if one.counts]),
        seen=sum(one.outcome in DECIDED and not one.counts for one in every),
        chances=chances(tables),
        names=_and([paper.title for paper, _ in counted]),
        many=f"the {many} papers" if len(counted) > 1 else "the paper",
        counter=sum(bool(one.counts and one.claim.counterexample) for one in every),
        DECIDED=DECIDED,
        OPEN=OPEN,
        EXCLUDED=EXCLUDED,
        papers={p.title + ", counted separately" * (not p.counted): found for p, found in of_papers},
    )


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
    """The units of a model in configs: its own, or those of the model that it extends."""
    text = (compose.ROOT / "configs" / room / f"{name}.yaml").read_text(encoding="utf-8")
    found = re.search(r"^hidden_dim: (\d+)", text, re.M)
    of = re.search(r"^  - /model: (\w+)|^defaults: \[(\w+)", text, re.M)
    return int(found[1]) if found else _units("model", of[1] or of[2])  # type: ignore[index]


def _least(outcomes: Sequence[Outcome]) -> str:
    """The smallest effects that the tests would show, by task: the median over the claims' comparisons."""
    told = []
    for name, (task, metric, label, _) in TASKS.items():
        every = (part for one in outcomes if one.claim.experiment == name for part in one.parts)
        if shown := [p.shows for p in every if p.metric == metric and p.n >= FEWEST and p.shows == p.shows]:
            told.append(f"{median(shown):.1f} {label} ({task})")
    return ", ".join(told) or "the margins"


def _sentence(outcomes: Sequence[Outcome]) -> str:
    """The answers to the questions, in one sentence."""
    words = {
        SUPPORTED: "supported:",
        CONTRADICTED: "contradicted:",
        EXCLUDED: "no such gain:",
        OPEN: "not decided:",
        UNTESTED: "not tested:",
        UNTESTABLE: "cannot be tested:",
    }
    points: dict[str, list[str]] = {of: [] for of in words}
    for one in outcomes:
        points[OPEN if _mark(one) else one.outcome].append(one.claim.point + _mark(one))
    said = [f"{word} {', '.join(points[of])}" for of, word in words.items() if points[of]]
    return "; ".join(said) or "nothing was tested"


def _and(points: Sequence[str]) -> str:
    return f"{', '.join(points[:-1])} and {points[-1]}" if len(points) > 1 else points[0]


def _mark(outcome: Outcome) -> str:
    """A star if a decided outcome rests on a test that was changed after its records had been seen."""
    return "\\*" * (outcome.seen and not outcome.confirmed and outcome.outcome in DECIDED)


def _quoted(claim: Claim) -> str:
    """The claim as a quotation, unless the words are ours."""
    return claim.claim if "(our " in claim.claim else f"“{claim.claim}”"


def _short(claim: Claim) -> str:
    return html.escape(textwrap.shorten(_quoted(claim), LONGEST, placeholder=" …"), quote=False)


def pictures(outcomes: Sequence[Outcome], tables: Sequence[Table] = ()) -> dict[str, str]:
    """The pictures of the page, path relative to docs/results -> SVG."""
    made = {path: drawings.claim(one, METRICS) for one in outcomes if (path := _picture(one))}
    return made | ({CHANCES: picture(better)} if (better := chances(tables)) else {})


def _picture(outcome: Outcome) -> str:
    """The path of a claim's picture; empty if no comparison has several runs."""
    several = any(len(part.differences) > 1 for part in outcome.parts)
    return f"{FIGURES}/claim_{outcome.claim.id}.svg" if several else ""


def _count(outcomes: Sequence[Outcome]) -> str:
    words = Counter(one.outcome for one in outcomes)
    return ", ".join(f"{words[word]} {word}" for word in (*DECIDED, OPEN, UNTESTED, UNTESTABLE) if words[word])


# ---- the chance that a run is better than one of softmax


@dataclass(frozen=True)
class Chance:
    """The chance, from 0 to 1, that a run of a row is better than a run of another, on average over tasks; its 95 % interval.

    runs: how many of the row there are, by task.
    """

    row: str
    tasks: tuple[str, ...]
    runs: tuple[int, ...]
    mean: float
    low: float
    high: float

    @property
    def interval(self) -> str:
        return "(all runs)" if self.low == self.high else f"[{self.low:.0%}, {self.high:.0%}]"


def chance(row: str, runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], draws: int = 4000) -> Chance:
    """The chance that a row is better than another.

    Args:
        runs: task -> the scores of the row's runs and of the other's; higher is better.
        draws: number of bootstrap samples of the runs, drawn again within each task.

    Source: the probability of improvement of Agarwal et al. 2021 (rliable), with the percentile interval of its
    stratified bootstrap. Raises ValueError without tasks.
    """
    if not runs:
        raise ValueError(f"{row!r} has no runs to compare with the other row's")
    rng, drawn, exact = np.random.RandomState(1), np.zeros(draws), 0.0
    for a, b in runs.values():
        one, other = np.asarray(a, float), np.asarray(b, float)
        wins = (one[:, None] > other) + 0.5 * (one[:, None] == other)  # [runs, runs of the other]
        picked = (rng.randint(0, len(x), (draws, len(x), 1)) for x in (one, other))
        i, j = next(picked), next(picked).swapaxes(1, 2)
        drawn += wins[i, j].mean((1, 2)) / len(runs)
        exact += float(wins.mean()) / len(runs)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Chance(row, tuple(runs), tuple(len(a) for a, _ in runs.values()), exact, float(low), float(high))


def chances(tables: Iterable[Table]) -> list[Chance]:
    """For each row with `FEWEST` runs or more, except softmax: the chance that a run is better, over the row's tasks."""
    runs: dict[str, dict[str, tuple[Sequence[float], Sequence[float]]]] = {}
    for table in tables:
        task, metric, _, against = TASKS.get(table.name, ("", "", "", ""))
        rows = [row for row in table.blocks[0].rows if task and not row.baseline]
        scored = {row.label: [f.metrics[metric] for f in row.results if metric in f.metrics] for row in rows}
        for row, scores in scored.items():
            if row not in (against, UNIFORM) and min(len(scores), len(scored.get(against, []))) >= FEWEST:
                runs.setdefault(row, {})[task] = (scores, scored[against])
    return sorted((chance(row, of) for row, of in runs.items()), key=lambda one: (-len(one.tasks), -one.mean))


def picture(by_row: Sequence[Chance]) -> str:
    """The chance of each row, with its 95 % interval, as an SVG file."""
    dots = []
    for one in by_row:
        ends = (100 * one.low, 100 * one.high)
        dots.append(Dot(f"{one.row} ({', '.join(one.tasks)})", 0, 100 * one.mean, ends))
    with draw.canvas((6.4, 1.05 + 0.3 * len(dots))) as figure:
        axes = figure.add_subplot()
        axes.axvline(50, color=INK, lw=0.8)
        draw.dots(axes, dots)
        axes.set_xlim(-3, 103)
        axes.set_title("better →", loc="right", fontsize=7.5)
        axes.set_xlabel("pairs of runs in which it is better than softmax, %")
        return draw.svg(figure, "chance of being better than softmax")
