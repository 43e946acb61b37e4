"""Say in sentences what the main score of a table shows, and what it does not show.

- The difference from the first row is *decided* if its p-value is below 5 % after Holm's correction over the rows:
  Student's t, paired over seeds and test examples (`paired.difference`).
- The *best* row has converged, has `FEWEST` seeds or more, and is decided to be above every other such row. Unless it
  is the first row, it was picked after the fact, so each p-value is multiplied by the number of all pairs of rows.
- Nothing is concluded from a test that merely fails, from one run, or from training that has not converged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.protocol import Metric, metric_of
from repro.tables import paired
from repro.tables.blocks import SIGNIFICANT, Block, Row, Value
from repro.tables.claims import UNIFORM
from repro.tables.statistics import FEWEST, OVER, Summary, holm, interval

MOST_NAMED = 6  # maximum number of rows that a sentence names
MOST_COLUMNS = 3  # maximum number of columns whose findings open a table
SPARSE = 0.005  # share of exact zeros from which a row counts as sparse
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class _Scored:
    """A row with a main score."""

    name: str
    row: Row
    value: Value
    score: Summary

    @property
    def learned(self) -> bool:
        return self.row.convergence.converged

    @property
    def doubt(self) -> str:
        """Why the row cannot be ranked, or an empty string."""
        few = f"n = {self.score.n}" if self.score.n < FEWEST else ""
        return few if self.learned else self.row.convergence.state

    def rounded(self, number: float) -> str:
        return f"{number:.{self.value.decimals}f}"

    def against(self, first: _Scored, over: bool = True) -> str:
        """The difference from the first row: `+0.7 [-0.3, +1.7], n = 3`; of one or two seeds, `[...] over test examples` (if `over`)."""
        d, gain, n = self.value.decimals, self.row.gain, min(self.score.n, first.score.n)
        if gain is None:
            return f"{self.score.mean - first.score.mean:+.{d}f}, n = {n}"
        told = interval(gain.printed, len(gain.values), d)
        return f"{gain.mean:+.{d}f}{told if over else told.removesuffix(OVER)}, n = {len(gain.values)}"


def find(block: Block, metrics: Mapping[str, Metric]) -> None:
    """Set a block's findings and best row, and the difference of each row from the first row.

    Args:
        metrics: the metrics of the block's family.
    """
    if (at := block.main) is None:
        return
    everything = [
        _Scored(name, row, row.values[at], score)
        for name, row in zip(block.names, block.rows)
        if (score := row.values[at].summary) and math.isfinite(score.mean)
    ]
    scored, baselines = ([one for one in everything if one.row.baseline is which] for which in (False, True))
    if not scored:
        return
    first, header = scored[0], block.headers[at]
    metric = metric_of(metrics, first.value.metric)
    for one in scored[1:]:
        one.row.gain = paired.difference(one.row, first.row, first.value.metric, metric)
    p = {
        i: gain.p for i, one in enumerate(scored)
        if (gain := one.row.gain) and first.learned and one.learned and not gain.certain
    }  # fmt: skip
    sure = [scored[i] for i, value in holm(p).items() if value < SIGNIFICANT]
    ranked = [one for one in scored if one.row.label != UNIFORM]
    block.best, ranking = _ranking(ranked, baselines, sure, header, metric)
    block.findings = [ranking, *_worth(scored, sure, metric), *_sparsity(ranked, header), *_differences(ranked, sure)]


def opening(blocks: Sequence[Block]) -> list[str]:
    """The sentences that open a table. Those of more than `MOST_COLUMNS` columns stay in their blocks and are counted."""
    told = [block for block in blocks if block.findings]
    if len(told) > MOST_COLUMNS:
        count = Counter(block.best for block in told)
        best = [
            f"{name} is shown to be the best row in {n} of {len(told)} columns" for name, n in count.items() if name
        ]
        none = f"in {count['']}, no row is" if best else f"no row is shown to be the best in any of {len(told)} columns"
        return [f"Ranking: {'; '.join([*best, none])}."]
    found = [text for block in told for text in block.findings]
    if len(blocks) > 1:
        found = [f"{block.label.partition(';')[0]}: {' '.join(block.findings)}" for block in told]
    for block in told:
        block.findings = []
    return found


def _ranking(
    scored: Sequence[_Scored], baselines: Sequence[_Scored], sure: Sequence[_Scored], header: str, metric: Metric
) -> tuple[str, str]:
    """The name of the row that is shown to be the best, or an empty string; and a sentence."""
    if len(scored) < 2:
        return "", f"No ranking: {_number(len(scored))} row has a score."
    sign = scored[0].value.better
    top, *trivial = (max(of, key=lambda one: sign * one.score.mean) for of in (scored, baselines) if of)
    for one in trivial:
        if sign * one.score.mean >= sign * top.score.mean:
            told = f"{top.name} is the nearest ({_score(top, header)})"
            return "", f"No ranking: no row is better than the {one.name} ({_score(one, header)}); {told}."
    fit = [one for one in scored if not one.doubt]
    if len(fit) < 2:
        return "", f"No ranking: {_why_not(scored)}; {_within(scored, header)}."
    best = max(fit, key=lambda one: sign * one.score.mean)
    pairs, behind = len(fit) * (len(fit) - 1) / 2, [one for one in fit if one in sure]
    if best is not scored[0]:
        gaps = [(one, paired.difference(one.row, best.row, one.value.metric, metric)) for one in fit if one is not best]
        behind = [one for one, gap in gaps if gap and not gap.certain and gap.p * pairs < SIGNIFICANT]
    left = [f"{one.name} ({one.doubt})" for one in scored if one.doubt]
    rest = f" Not ranked: {_joined(left)}." if left else ""
    if len(behind) == len(fit) - 1:
        return best.name, f"Best: {best.name} ({_score(best, header)}), shown to be above every other row.{rest}"
    equal = [one for one in fit if one not in behind]
    below = f"; below {best.name}: {_joined([one.name for one in behind])}" if behind else ""
    return "", f"{'No single best row' if behind else 'No ranking'}: {_within(equal, header)}{below}.{rest}"


def _why_not(scored: Sequence[_Scored]) -> str:
    """Why fewer than two rows can be ranked."""
    unsure, rows, runs = sum(not one.learned for one in scored), len(scored), {one.score.n for one in scored}
    why = []
    if min(runs) < FEWEST:
        each = f"{_number(min(runs))} run{'s' * (min(runs) > 1)} per row"
        why = [f"{each if len(runs) == 1 else 'too few runs of some rows'}, and a ranking needs {_number(FEWEST)}"]
    if unsure:
        who = "none" if unsure == rows else _number(unsure)
        verb = "is" if unsure == rows else "is not" if unsure == 1 else "are not"
        why.append(f"{who} of the {_number(rows)} rows {verb} known to have converged")
    return "; ".join(why)


def _within(scored: Sequence[_Scored], header: str) -> str:
    """How far apart the rows are, beside the standard deviation over seeds."""
    means, runs = [one.score.mean for one in scored], {one.score.n for one in scored}
    spreads = [one.score.std for one in scored if one.score.std is not None]
    names = _joined([one.name for one in scored]) if len(scored) <= 3 else f"the {_number(len(scored))} rows"
    told = f"{names} are within {scored[0].rounded(max(means) - min(means))} {header}"
    if spreads:
        deviation = math.sqrt(sum(s * s for s in spreads) / len(spreads))
        told += f", and one standard deviation over seeds is {scored[0].rounded(deviation)}"
    return f"{told} (n = {' to '.join(map(str, sorted({min(runs), max(runs)})))})"


def _worth(scored: Sequence[_Scored], sure: Sequence[_Scored], metric: Metric) -> list[str]:
    """What attention is worth: the first row against uniform attention; of single runs, over the test examples."""
    first, uniform = scored[0], next((one for one in scored[1:] if one.row.label == UNIFORM), None)
    if uniform is None:
        return []
    told = f"{UNIFORM} against {first.name}: {uniform.against(first)}"
    worth = first.value.better * (first.score.mean - uniform.score.mean)
    much = first.rounded(worth) if worth > 0 else "nothing"
    if uniform in sure:
        return [f"Worth of attention: {much} ({told})."]
    p = (
        paired.by_examples(first.row, uniform.row, first.value.metric, metric)
        if first.score.n == uniform.score.n == 1
        else None
    )
    if p is not None and p < SIGNIFICANT:
        return [f"Worth of attention in this one run: {much} ({told}; more than chance over the test examples)."]
    return [f"Worth of attention: not decided ({told})."]


def _sparsity(scored: Sequence[_Scored], header: str) -> list[str]:
    """The shares of exact zeros, with the score of the best sparse row against the first row."""
    zeros = {
        one.name: s.mean for one in scored for v in one.row.values if v.metric.endswith("/attention_zeros") and (s := v.summary)
    }  # fmt: skip
    sparse = [one for one in scored if zeros.get(one.name, 0.0) >= SPARSE]
    if not sparse:
        return ["Sparsity: no row gives a position a weight of exactly zero."] if zeros else []
    first, best = scored[0], max(sparse, key=lambda one: one.value.better * one.score.mean)
    told = f"Sparsity: {best.name} gives {100 * zeros[best.name]:.0f} % of the positions no weight"
    if best is not first:
        told += f"; {header} against {first.name}: {best.against(first)}"
    if shares := [zeros[one.name] for one in sparse if one is not best]:
        ends = dict.fromkeys(f"{100 * share:.0f}" for share in (min(shares), max(shares)))
        told += (
            f". {_number(len(shares)).capitalize()} other sparse row{'s' * (len(shares) > 1)}: {' to '.join(ends)} %"
        )
    return [f"{told}."]


def _differences(scored: Sequence[_Scored], sure: Sequence[_Scored]) -> list[str]:
    """The differences from the first row that are decided, and those that are not."""
    first, known = scored[0], [one for one in scored if one.row.gain is not None]
    found = []
    for word, chosen in (
        ("Decided", [one for one in known if one in sure]),
        ("Not decided", [one for one in known if one not in sure]),
    ):
        few = all(len(one.row.gain.values) < FEWEST for one in chosen if one.row.gain)
        told = [f"{one.name} ({one.against(first, over=not few)})" for one in chosen]
        where = f" (intervals{OVER})" if few and any("[" in text for text in told) else ""
        found += [f"{word}, against {first.name}{where}: {'; '.join(_cut(told))}."] if told else []
    return found


def _score(one: _Scored, header: str) -> str:
    n = "" if one.row.baseline else f", n = {one.score.n}"
    return f"{one.score.text(one.value.decimals)} {header}{n}"


def _number(n: int) -> str:
    return NUMBERS[n] if n < len(NUMBERS) else f"{n}"


def _joined(names: Sequence[str]) -> str:
    *others, last = _cut(names)
    return f"{', '.join(others)} and {last}" if others else last


def _cut(names: Sequence[str]) -> list[str]:
    """The first `MOST_NAMED` names, and the number of the others."""
    return [*names[:MOST_NAMED], *([f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else [])]
