"""Say in at most three sentences what the main score of a table shows, what it does not show, and what would decide.

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
from repro.tables.statistics import FEWEST, LEVEL, Summary, holm, interval

MOST_NAMED = 3  # maximum number of rows that a sentence names; more are counted
MOST_COLUMNS = 3  # maximum number of columns whose findings open a table
SPARSE = 0.005  # share of exact zeros from which a row counts as sparse
DECIDE = "To decide: "
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

    def against(self, first: _Scored) -> float:
        """The difference from the first row, paired over seeds if they share any."""
        return self.row.gain.mean if self.row.gain else self.score.mean - first.score.mean


def find(block: Block, metrics: Mapping[str, Metric]) -> None:
    """Set a block's findings and best row, and the difference of each row from the first row; a footer tells the worth of attention.

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
    for i, value in holm(p).items():
        scored[i].row.decided = value < SIGNIFICANT
    ranked = [one for one in scored if one.row.label != UNIFORM]
    block.best, ranking, wanted = _ranking(ranked, baselines, header, metric)
    for one in ranked:
        one.value.best = one.name == block.best
    words = Counter(v.word for row in block.rows for v in row.verdicts if v and v.comparable)
    printed = [f"Published numbers: {', '.join(f'{n} {word}' for word, n in words.items())}."] if words else []
    decide = [f"{DECIDE}{wanted}."] if wanted and not printed else []
    block.findings = [*printed, ranking, *_sparsity(ranked, header), *decide]
    block.footers[:0] = _worth(scored)


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
        last = dict.fromkeys(text for text in found if text.startswith(DECIDE))
        found = [
            f"{block.label.partition(';')[0]}: {' '.join(text for text in block.findings if text not in last)}"
            for block in told
        ] + [*last]
    for block in told:
        block.findings = []
    return found


def _ranking(
    scored: Sequence[_Scored], baselines: Sequence[_Scored], header: str, metric: Metric
) -> tuple[str, str, str]:
    """The name of the row that is shown to be the best, or an empty string; a sentence; and what would decide."""
    if len(scored) < 2:
        return "", f"No ranking: {_number(len(scored))} row has a score.", ""
    sign = scored[0].value.better
    top, *trivial = (max(of, key=lambda one: sign * one.score.mean) for of in (scored, baselines) if of)
    for one in trivial:
        if sign * one.score.mean >= sign * top.score.mean:
            told = f"{top.name} is the nearest ({_score(top, header)})"
            return "", f"No ranking: no row is better than the {one.name} ({_score(one, header)}); {told}.", ""
    fit = [one for one in scored if not one.doubt]
    if len(fit) < 2:
        return (
            "",
            f"No ranking: {_within(scored, header)}{_why_not(scored)}{_decided(scored)}.",
            _wanted(scored, header),
        )
    best = max(fit, key=lambda one: sign * one.score.mean)
    pairs, behind = len(fit) * (len(fit) - 1) / 2, [one for one in fit if one.row.decided]
    if best is not scored[0]:
        gaps = [(one, paired.difference(one.row, best.row, one.value.metric, metric)) for one in fit if one is not best]
        behind = [one for one, gap in gaps if gap and not gap.certain and gap.p * pairs < SIGNIFICANT]
    left = [f"{one.name} ({one.doubt})" for one in scored if one.doubt]
    rest = f" Not ranked: {_joined(left)}." if left else ""
    if len(behind) == len(fit) - 1:
        others = "the other rows that can be ranked" if left else "every other row"
        told = f"Best: {best.name} ({_score(best, header)}), shown to be better than {others}.{rest}"
        return best.name, told, ""
    equal = [one for one in fit if one not in behind]
    told = (
        f"{_within(equal, header)}, and one standard deviation over seeds is {_deviation(equal)} (n = {_runs(equal)})"
    )
    if behind:
        worse = _joined([one.name for one in behind])
        return "", f"No single best row: {told}; worse than {best.name}: {worse}.{rest}", _wanted(equal, header)
    return "", f"No ranking: {told}{_decided(scored)}.{rest}", _wanted(equal, header)


def _wanted(scored: Sequence[_Scored], header: str) -> str:
    """What these rows need before a ranking can be decided."""
    few = f"{_number(FEWEST)} seeds per row" if min(one.score.n for one in scored) < FEWEST else ""
    longer = "" if all(one.learned for one in scored) else "longer training"
    if few or longer:
        return " and ".join(filter(None, (few, longer)))
    ends = [gain.interval(LEVEL) for one in scored if (gain := one.row.gain) and not gain.certain]
    if not ends:
        return "more seeds"
    least = scored[0].rounded(max(high - low for low, high in ends) / 2)
    return f"more seeds; with n = {_runs(scored)}, differences below {least} {header} do not show"


def _why_not(scored: Sequence[_Scored]) -> str:
    """Why fewer than two rows can be ranked."""
    unsure, rows, runs = sum(not one.learned for one in scored), len(scored), {one.score.n for one in scored}
    why = []
    if min(runs) < FEWEST:
        each = f"{_number(min(runs))} run{'s' * (min(runs) > 1)} per row"
        why = [f", with {each if len(runs) == 1 else 'too few runs of some rows'}"]
    if unsure:
        verb = "is" if unsure in (1, rows) else "are"
        who = "none" if unsure == rows else f"{_number(unsure)} {verb} not"
        why.append(f"; {who}{' is' * (unsure == rows)} known to have converged")
    return "".join(why)


def _decided(scored: Sequence[_Scored]) -> str:
    """Which rows are shown to be better or worse than the first row, as the end of a sentence."""
    first, sign, told = scored[0], scored[0].value.better, ""
    for word, side in (("better", sign), ("worse", -sign)):
        names = [one.name for one in scored if one.row.decided and side * one.against(first) > 0]
        told += f"; shown to be {word} than {first.name}: {_joined(names)}" if names else ""
    return told


def _within(scored: Sequence[_Scored], header: str) -> str:
    """How far apart the rows are."""
    means = [one.score.mean for one in scored]
    names = _joined([one.name for one in scored]) if len(scored) <= 3 else f"the {_number(len(scored))} rows"
    return f"{names} are within {scored[0].rounded(max(means) - min(means))} {header}"


def _deviation(scored: Sequence[_Scored]) -> str:
    """One standard deviation over seeds, pooled over the rows."""
    return scored[0].rounded(math.sqrt(sum((one.score.std or 0.0) ** 2 for one in scored) / len(scored)))


def _runs(scored: Sequence[_Scored]) -> str:
    """The number of seeds of the rows, e.g. `2` or `2 to 3`."""
    runs = [one.score.n for one in scored]
    return " to ".join(map(str, sorted({min(runs), max(runs)})))


def _worth(scored: Sequence[_Scored]) -> list[str]:
    """What attention is worth: the first row against uniform attention; of fewer than `FEWEST` runs, over the test examples."""
    first, uniform = scored[0], next((one for one in scored[1:] if one.row.label == UNIFORM), None)
    if uniform is None:
        return []
    gain, difference = uniform.row.gain, uniform.against(first)
    ends = gain.printed if gain else None
    n = len(gain.values) if gain else min(first.score.n, uniform.score.n)
    decimals, worth = first.value.decimals, -first.value.better * difference
    told = f"{UNIFORM} against {first.name}: {difference:+.{decimals}f}{interval(ends, n, decimals)}, n = {n}"
    much = first.rounded(worth) if worth > 0 else "nothing"
    if uniform.row.decided:
        return [f"Worth of attention: {much} ({told})."]
    if n < FEWEST and ends and ends[0] * ends[1] > 0:
        return [f"Worth of attention in {'one run' if n == 1 else f'{_number(n)} runs'}: {much} ({told})."]
    return [f"Worth of attention: not decided ({told})."]


def _sparsity(scored: Sequence[_Scored], header: str) -> list[str]:
    """The shares of exact zeros of the sparse rows, and their scores against the first row."""
    zeros = {
        one.name: s.mean for one in scored for v in one.row.values if v.metric.endswith("/attention_zeros") and (s := v.summary)
    }  # fmt: skip
    sparse = [one for one in scored if zeros.get(one.name, 0.0) >= SPARSE]
    if not sparse:
        return ["Sparsity: no row gives a position a weight of exactly zero."] if zeros else []
    shares, first = [zeros[one.name] for one in sparse], scored[0]
    ends = dict.fromkeys(f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    who = f"{sparse[0].name} gives" if len(sparse) == 1 else f"{_number(len(sparse))} rows give"
    told = f"Sparsity: {who} {' to '.join(ends)} % of the positions no weight"
    if others := [one for one in sparse if one is not first]:
        gaps = [one.against(first) for one in others]
        by = dict.fromkeys(f"{gap:+.{first.value.decimals}f}" for gap in (min(gaps), max(gaps)))
        sure = sum(one.row.decided for one in others)
        word = f"{sure} of {len(others)} differences shown" if sure else "no difference shown"
        told += f"; {header} against {first.name}: {' to '.join(by)} (n = {_runs([first, *others])}; {word})"
    return [f"{told}."]


def _score(one: _Scored, header: str) -> str:
    n = "" if one.row.baseline else f", n = {one.score.n}"
    return f"{one.score.text(one.value.decimals)} {header}{n}"


def _number(n: int) -> str:
    return NUMBERS[n] if n < len(NUMBERS) else f"{n}"


def _joined(names: Sequence[str]) -> str:
    """The first `MOST_NAMED` names, and the number of the others."""
    *others, last = [*names[:MOST_NAMED], *([f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else [])]
    return f"{', '.join(others)} and {last}" if others else last
