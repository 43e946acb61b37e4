"""Test examples: the outputs of each row of a table, and the attention behind them."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median_high
from typing import Any

from repro.errors import Refused
from repro.report import draw
from repro.report.data import clip, embedded, scores
from repro.tables.blocks import Row

SAMPLES, MAPS = 8, 3  # examples shown with their outputs, and with their attention
MOST_SOURCE, MOST_TARGET = 48, 36  # maximum number of tokens drawn; longer examples are cut, and a note says so
MOST_CLASSES = 20  # maximum classes of a confusion matrix
EVEN = "Examples evenly spaced through the test set, not picked by hand."
FAILURES = (
    "{} of these are failures, evenly spaced through the {:,} of {:,} test examples that at least one row scores 0 on; "
    "the other {} are evenly spaced through the rest of the test set. None was picked by hand."
)
Records = Sequence[dict[int, dict[str, Any]] | None]  # for each row, index of an example -> its record
Images = Callable[[str], bytes]
Panel = tuple[Row, Any, Sequence[str], Sequence[str], Mapping[str, Any]]  # row, weights [T, S], S and T tokens, record


def spaced(every: Sequence[Any], count: int) -> list[Any]:
    """`count` of the examples or their indices, evenly spaced."""
    count = min(count, len(every))
    return [every[int(len(every) / count * (i + 0.5))] for i in range(count)]


def choose(common: Sequence[int], records: Records, names: Sequence[str]) -> tuple[list[int], str]:
    """Choose the examples to show; returns them in order, with a sentence on how they were chosen.

    If there are scores per example, up to half of the examples are failures, on which at least one row scores zero.
    """
    scored = {i: [_score(r.get(i) or {}, names) for r in records if r] for i in common}
    failed = [i for i in common if any(score is not None and score[1] == 0 for score in scored[i])]
    wrong = spaced(failed, SAMPLES // 2)
    right = spaced([i for i in common if i not in set(wrong)], SAMPLES - len(wrong))
    told = FAILURES.format(*map(len, (wrong, failed, common, right))) if failed else EVEN
    return sorted([*wrong, *right]), told


def samples(rows: Sequence[Row], records: Records, shown: Sequence[str], images: Images | None) -> dict[str, Any]:
    """The samples as {"how": how they were chosen, "examples": [...], "confusion": [...]}.

    Every row's output is a list of (word, whether it is in a reference). Raises `Refused` if no predictions are stored.
    """
    available = [r for r in records if r and {"output", "prediction"} & next(iter(r.values())).keys()]
    if not available:
        raise Refused("No predictions are stored for this column.")
    common = sorted(set.intersection(*(set(r) for r in available))) or sorted(available[0])
    names = [metric.rpartition("/")[2] for metric in shown]
    chosen, how = choose(common, records, names)
    examples = []
    for index in chosen:
        first = next(r[index] for r in available if index in r)
        references = [str(r) for r in first.get("references", ())]
        known = {_folded(word) for r in references for word in r.split()} - {""}
        outputs = []
        for row, by_index in zip(rows, records):
            record = (by_index or {}).get(index) or {}
            name, score = _score(record, names) or ("", None)
            words = str(record.get("output", record.get("prediction", ""))).split()
            output = {"row": row, "words": [(word, _folded(word) in known) for word in words], "failed": score == 0}
            told = "" if score is None else f"{name} {score:.1f}"
            outputs.append(output | {"available": bool(record), "score": told})
        example = {"index": index, "source": clip(str(first.get("source", ""))), "outputs": outputs}
        picture = image(images, first.get("image"))
        examples.append(example | {"references": [clip(r) for r in references], "image": picture})
    matrices = [(row.name, m) for row, r in zip(rows, records) if r and (m := confusion(list(r.values())))]
    return {"how": how, "examples": examples, "confusion": matrices}


def confusion(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[int]]]:
    """(class, number of its examples that got each class as output, in the same order); empty if this is not a classifier."""
    pairs = Counter((r["label"], r["output"]) for r in records if isinstance(r.get("label"), str) and "output" in r)
    classes = sorted({name for pair in pairs for name in pair})
    return [(true, [pairs[true, said] for said in classes]) for true in classes] if len(classes) <= MOST_CLASSES else []


def image(images: Images | None, key: Any) -> str:
    """A data URI, or an empty string if there is no picture."""
    return embedded(images(str(key)), "png") if images and key is not None else ""


def _folded(word: str) -> str:
    return re.sub(r"[^\w]+", "", word.casefold())


def _score(record: Mapping[str, Any], names: Sequence[str]) -> tuple[str, float] | None:
    """The first score of an example as (name, value), preferably a score that the column shows."""
    known = {k: float(v) for k, v in (record.get("sentence") or {}).items() if isinstance(v, (int, float))}
    name = next((n for n in [*names, *known] if n in known), None)
    return None if name is None else (name, known[name])


# ---- attention


def heat_maps(rows: Sequence[Row], records: Records, split: str, images: Images | None) -> list[dict[str, Any]]:
    """Drawings of the examples in `attention`; source tokens run across, output tokens down."""
    examples = []
    for index, panels in attention(rows, records, split).items():
        first, drawn = panels[0][-1], []
        for row, weights, source, outputs, _ in panels:
            zeros, support = (scores(row, f"{split}/attention_{name}")[:1] for name in ("zeros", "support"))
            facts = ", ".join([*(f"{v:.0%} zeros" for v in zeros), *(f"support {v:.1f}" for v in support)])
            with draw.heat_figure(weights[:MOST_TARGET, :MOST_SOURCE], outputs, source) as figure:
                drawn.append({"row": row, "facts": facts, "svg": draw.svg(figure, row.name)})
        cut = any(w.shape[0] > MOST_TARGET or w.shape[1] > MOST_SOURCE for _, w, *_ in panels)
        about = [str(first.get("source", ""))] * ("image" in first)
        about += [f"Reference: {r}" for r in first.get("references", ())][:1]
        about += [f"Cut to the first {MOST_SOURCE} source and {MOST_TARGET} output tokens."] * cut
        picture = image(images, first.get("image"))
        examples.append({"index": index, "about": " ".join(about), "panels": drawn, "image": picture})
    return examples


def attention(rows: Sequence[Row], records: Records, split: str) -> dict[int, list[Panel]]:
    """Up to three examples of medium length for which every row has stored attention weights: index -> panels.

    Raises `Refused` if there is no such example.
    """
    kept = [
        (row, by_index, arrays)
        for row, by_index in zip(rows, records)
        if by_index and (arrays := row.results[0].evaluations[split].attention())
    ]
    if not kept:
        raise Refused("No attention weights are stored for this column.")
    common = set.intersection(*(stored(weights, by_index, split) for _, by_index, weights in kept))
    chosen = typical(common, [by_index for _, by_index, _ in kept])
    if not chosen:
        raise Refused("The rows of this column have stored attention weights for no test example in common.")
    panels: dict[int, list[Panel]] = {index: [] for index in chosen}
    for row, by_index, arrays in kept:
        for index in chosen:
            weights, record = arrays[f"{split}/{index}"], by_index[index]
            source, outputs = ([str(t) for t in record.get(k) or [""]] for k in ("source_tokens", "output_tokens"))
            weights = weights.reshape(-1, weights.shape[-1])  # [T, S]; a classifier's single row becomes T = 1
            if "image" in record:  # for an image, the source tokens are the rows of the image
                weights, source, outputs = weights.T, outputs, source
            panels[index].append((row, weights, source, outputs, record))
    return panels


def stored(arrays: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]], split: str) -> set[int]:
    """The examples of a test set with stored weights and tokens; `arrays` are those of attention.safetensors."""
    held = {int(name.rpartition("/")[2]) for name in arrays if name.startswith(f"{split}/")}
    return {i for i in held if i in records and records[i].get("source_tokens")}


def typical(indices: set[int], records: Sequence[Mapping[int, Mapping[str, Any]]]) -> list[int]:
    """The three examples whose length is closest to the median length.

    The length is the number of source tokens plus the mean number of output tokens over the rows.
    """
    lengths = {
        i: len(records[0][i]["source_tokens"]) + fmean(len(of[i].get("output_tokens") or ()) for of in records)
        for i in sorted(indices)
    }
    median = median_high(lengths.values()) if lengths else 0.0
    return sorted(sorted(lengths, key=lambda i: abs(lengths[i] - median))[:MAPS])
