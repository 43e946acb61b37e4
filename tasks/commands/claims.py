"""Test the papers' claims (configs/claims) on the records of tables, and write the outcomes as JSON and as a page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from repro.files import write_atomic
from repro.report import figures
from repro.store import outputs_folder
from repro.tables.blocks import Table
from repro.tables.claims import ENOUGH, MOST_SEEDS, OPEN, Claim, Outcome, Part, Pilot, needed
from tasks.commands import recorded
from tasks.config import compose

FIGURES = "figures/claims"  # the pictures' folder, in docs/results
HEAD = """\
# Do the papers' claims hold?

    make claims            # tests every claim again on the records of docs/results; writes outputs/claims.json

{decided} of {all} claims are decided by our runs: {words}. This page and its pictures are generated from the records.

| paper | claim | outcome | effect [95 % interval] | n | power |
|---|---|---|---:|---:|---:|
{lines}

*Effect*: the mean difference between two rows, in the metric's unit, for the comparison with the least evidence for the claim. *n*: its seeds.
*Power*: the chance that n seeds support the claim, at the spread of earlier runs. A claim is *supported* or *contradicted* if one-sided tests
at 5 % show that the difference is on one side of the margin; the interval covers the sampling of seeds and of test examples, or of
test examples alone where it says so. A row that had not converged decides nothing, nor does a table in which attention
is worth little ([how it works](../repro/tables/claims.py)).
"""


def of_tables(tables: Iterable[Table]) -> list[Outcome]:
    """The outcome of every claim in configs/claims, in the order of the files; tables: those built from records."""
    tested = {(o.claim.paper, o.claim): o for table in tables for o in table.claims}
    return [tested.get((claim.paper, claim), _untested(claim)) for claim in _claims()]


@cache
def _claims() -> list[Claim]:
    return list(itertools.chain.from_iterable(map(compose.claims, compose.names_in("claims"))))


def _untested(claim: Claim) -> Outcome:
    part = Part("", "", why=f"no records of {claim.experiment}, profile {claim.profile}")
    return Outcome(claim, OPEN, part, needed=needed(claim))


def write(results: Path) -> int:
    """`scripts/claims.py`: test every claim on the records in `results`, print the outcomes, write <outputs>/claims.json.

    Returns:
        exit status 0.

    Raises:
        StoreError: a file of records cannot be read.
    """
    wanted = {recorded.file_of(c.experiment, c.profile, results) for c in _claims()}
    found = of_tables(recorded.read(path).table for path in sorted(wanted) if path.is_file())
    for one in found:
        print(
            f"{one.outcome:13} {one.claim.paper:13} {_effect(one):28} n = {one.part.n}, power {_power(one)}  {one.claim.claim}"
        )
        if one.outcome == OPEN:
            print(f"{'':13} {_why(one)}")
    path = Path(outputs_folder()) / "claims.json"
    write_atomic(path, (json.dumps([one.values() for one in found], indent=1, ensure_ascii=False) + "\n").encode())
    print(f"{_count(found)}\nclaims: {path}; the page with pictures: docs/claims.md")
    return 0


def page(found: Sequence[Outcome]) -> str:
    """docs/claims.md."""
    lines = [
        f"| {one.claim.paper} | [{one.claim.claim}](#{_anchor(i)}) | {one.outcome} | {_effect(one)} | {one.part.n or ''} | {_power(one)} |"
        for i, one in enumerate(found, 1)
    ]
    decided = sum(one.outcome != OPEN for one in found)
    head = HEAD.format(decided=decided, all=len(found), words=_count(found), lines="\n".join(lines))
    return "\n".join([head, *(_section(i, one) for i, one in enumerate(found, 1))])


def pictures(found: Sequence[Outcome]) -> dict[str, str]:
    """The pictures of the page, path relative to docs -> SVG."""
    return {_picture(one): figures.claim(one, _picture(one)) for one in found if _drawn(one)}


def _drawn(one: Outcome) -> bool:
    return any(len(part.differences) > 1 for part in one.parts)


def _picture(one: Outcome) -> str:
    mine = [c for c in _claims() if c.paper == one.claim.paper]
    number = mine.index(one.claim) + 1 if one.claim in mine else 0
    return f"{FIGURES}/{one.claim.paper}_{number}.svg"


def _anchor(i: int) -> str:
    return f"claim-{i}"


def _section(i: int, one: Outcome) -> str:
    claim, d = one.claim, one.decimals
    told = [
        f"## Claim {i}", f"> {claim.claim} ({claim.paper}, {claim.place})",
        f"**{one.outcome.capitalize()}.** {_why(one)}Tested: `{claim.metric}`{claim.compared(' minus ')}, {claim.test}, margin {claim.margin:g}; table `{claim.experiment}`, "
        f"profile {claim.profile}.",
    ]  # fmt: skip
    if _drawn(one):
        told.append(f"![differences with intervals](results/{_picture(one)})")
    if one.parts:
        rows = [
            f"| {part.row} | {part.column or 'all'} | {part.text(d)} | {', '.join(f'{v:+.{d}f}' for v in part.differences.values())} |"
            for part in one.parts
        ]
        told.append(
            "\n".join(
                ["| row | column | outcome: mean difference [95 % interval] | each seed |", "|---|---|---|---|", *rows]
            )
        )
    for part in one.parts:
        wrong = [f"{c} ({v:+.{d}f})" for c, v in part.columns.items() if claim.sign * v <= 0]
        if part.columns:
            told.append(f"{part.row}: the direction holds in {len(part.columns) - len(wrong)} of {len(part.columns)} columns"
                        + (f", not in {', '.join(wrong)}." if wrong else "."))  # fmt: skip
    return "\n\n".join(told) + "\n"


def _why(one: Outcome) -> str:
    """Why a claim is not decided and what would decide it; for a decided claim, an empty string."""
    if one.outcome != OPEN:
        return ""
    why = f"{one.part.why[0].upper()}{one.part.why[1:]}. " if one.part.why else ""
    if one.needed is not None:
        return f"{why}{one.needed} seeds would decide it with a power of {ENOUGH:.0%}. "
    if one.claim.pilot != Pilot():
        return f"{why}Even {MOST_SEEDS} seeds would not decide it. "
    return why or "No earlier runs say how many seeds would decide it. "


def _effect(one: Outcome) -> str:
    part, d = one.part, one.decimals
    return f"{part.effect:+.{d}f}{part.interval(d)}" if part.effect == part.effect else ""


def _power(one: Outcome) -> str:
    return "" if one.power is None else f"{one.power:.2f}"


def _count(found: Sequence[Outcome]) -> str:
    words = [one.outcome for one in found]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(sorted(words, reverse=True)))
