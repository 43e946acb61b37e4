"""Sample outputs: selected test examples with the output of each row of the table."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repro.report.data import Line, Missing, clip

SAMPLES = 8
MOST_CLASSES = 20  # of a confusion matrix
EVEN = "Examples evenly spaced through the test set, not picked by hand."
Records = Sequence[dict[int, dict[str, Any]] | None]
Picture = Callable[[str], bytes]


def spaced(indices: Sequence[int], count: int) -> list[int]:
    """`count` of the indices, evenly spaced."""
    count = min(count, len(indices))
    return [indices[int(len(indices) / count * (i + 0.5))] for i in range(count)]


def choose(common: Sequence[int], records: Records, names: Sequence[str]) -> tuple[list[int], str]:
    """Choose the examples to show; returns them in order, with a sentence on how they were chosen.

    If there are scores per example, up to half of the examples are failures, on which at least one row scores zero.
    """
    failed = [
        i
        for i in common
        if any(score is not None and score[1] == 0 for r in records if r for score in [_score(r.get(i) or {}, names)])
    ]
    if not failed:
        return spaced(common, SAMPLES), EVEN
    wrong = spaced(failed, SAMPLES // 2)
    others = [i for i in common if i not in set(wrong)]
    right = spaced(others, SAMPLES - len(wrong)) if others else []
    told = (
        f"{len(wrong)} of these are failures, evenly spaced through the {len(failed):,} of {len(common):,} test examples that at least "
        f"one row scores 0 on; the other {len(right)} are evenly spaced through the rest of the test set. None was picked by hand."
    )
    return sorted([*wrong, *right]), told


def samples(
    lines: Sequence[Line], records: Records, shown: Sequence[str], picture: Picture | None = None
) -> dict[str, Any]:
    """The samples as {"how": how they were chosen, "examples": [...], "confusion": [...]}.

    Every row's output is a list of (word, whether it is in a reference). Raises `Missing` if no predictions are stored.
    """
    available = [r for r in records if r and {"output", "prediction"} & next(iter(r.values())).keys()]
    if not available:
        raise Missing("No predictions are stored for this column.")
    common = sorted(set.intersection(*(set(r) for r in available))) or sorted(available[0])
    names = [metric.rpartition("/")[2] for metric in shown]
    chosen, how = choose(common, records, names)
    found = []
    for index in chosen:
        first = next(r[index] for r in available if index in r)
        references = [str(r) for r in first.get("references", ())]
        known = {_folded(word) for r in references for word in r.split()} - {""}
        outputs = []
        for line, by_index in zip(lines, records):
            record = (by_index or {}).get(index)
            text = str((record or {}).get("output", (record or {}).get("prediction", "")))
            words = [(word, _folded(word) in known) for word in text.split()]
            score = _score(record or {}, names)
            outputs.append({
                "label": line.label, "style": line.style, "words": words, "available": record is not None,
                "score": "" if score is None else f"{score[0]} {score[1]:.1f}", "failed": score is not None and score[1] == 0,
            })  # fmt: skip
        found.append({
            "index": index, "source": clip(str(first.get("source", ""))), "outputs": outputs,
            "references": [clip(r) for r in references], "image": image(picture, first.get("image")),
        })  # fmt: skip
    matrices = [(line.label, m) for line, r in zip(lines, records) if r and (m := confusion(list(r.values())))]
    return {"how": how, "examples": found, "confusion": matrices}


def confusion(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[int]]]:
    """(class, number of its examples that got each class as output, in the same order); empty if these are no classifier's."""
    pairs = Counter((r["label"], r["output"]) for r in records if isinstance(r.get("label"), str) and "output" in r)
    classes = sorted({name for pair in pairs for name in pair})
    return [(true, [pairs[true, said] for said in classes]) for true in classes] if len(classes) <= MOST_CLASSES else []


def image(picture: Picture | None, key: Any) -> str:
    """A data URI, or an empty string if there is no picture."""
    raw = picture(str(key)) if picture and key is not None else b""
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}" if raw else ""


def _folded(word: str) -> str:
    return re.sub(r"[^\w]+", "", word.casefold())


def _score(record: Mapping[str, Any], names: Sequence[str]) -> tuple[str, float] | None:
    """The first score of an example as (name, value), preferably a score that the column shows."""
    scores = {k: float(v) for k, v in (record.get("sentence") or {}).items() if isinstance(v, (int, float))}
    name = next((n for n in [*names, *scores] if n in scores), None)
    return None if name is None else (name, scores[name])
