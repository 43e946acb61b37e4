"""The page on length generalisation and its picture, from the rows of all trained models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.length.training import Rows, those
from repro import statistics
from repro.files import write_atomic
from repro.report import draw

EXACT, TOKEN = 0, 1  # places in a row's pair of scores


def scores(rows: Rows, task: str, attention: str, n: str, which: int = TOKEN) -> dict[int, float]:
    """Seed -> per cent at length n, of the test stage; empty if it did not run."""
    return {row["seed"]: row["found"][n][which] for row in those(rows, task, attention, "test")}


def differences(rows: Rows, n: str) -> dict[tuple[str, str], statistics.Mean]:
    """(task, attention) -> mean token accuracy over seeds minus that of softmax, in points at length n (Welch)."""
    pairs = dict.fromkeys((row["task"], row["attention"]) for row in rows if row["stage"] == "test")
    return {
        (task, attention): statistics.difference_of(
            scores(rows, task, attention, n), scores(rows, task, "softmax", n), paired=False
        )
        for task, attention in pairs
        if attention != "softmax"
    }


def picture(rows: Rows, lengths: list[str]) -> str:
    """Token accuracy and exact match by length, with standard deviations over seeds, as SVG."""
    tested = [row for row in rows if row["stage"] == "test"]
    tasks, attentions = (list(dict.fromkeys(row[name] for row in tested)) for name in ("task", "attention"))
    with draw.canvas((2.3 * len(tasks) + 0.4, 4.4)) as figure:
        axes = figure.subplots(2, len(tasks), squeeze=False, sharex=True, sharey=True)
        for which, label in ((TOKEN, "token accuracy, %"), (EXACT, "exact match, %")):
            for axis, task in zip(axes[1 - which], tasks):
                for style, attention in enumerate(attentions):
                    found = [(int(n), list(scores(rows, task, attention, n, which).values())) for n in lengths]
                    means = [(n, statistics.mean_of(values)) for n, values in found if values]
                    if means:
                        draw.curve(axis, attention, style, [(n, mean.mean, mean.std or 0.0) for n, mean in means])
                axis.set_xscale("log", base=2)
                axis.set_xticks([int(n) for n in lengths], lengths)
                axis.minorticks_off()
            axes[1 - which][0].set_ylabel(label)
        for axis, task in zip(axes[0], tasks):
            axis.set_title(task)
        figure.supxlabel("symbols (training: up to 16)", fontsize=8.5)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        return draw.svg(figure, "token accuracy and exact match by length")


def codes(rows: Rows) -> dict[str, str]:
    """Task -> the commits of the code that trained its models; tasks whose record is older than this entry are left out."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if "code" in row:
            changed = " with uncommitted changes" if row["code"].get("dirty") else ""
            found.setdefault(row["task"], {})[row["code"].get("commit", "without a commit") + changed] = None
    return {task: ", ".join(told) for task, told in found.items()}


def page(record: dict[str, Any]) -> tuple[str, str]:
    """The page, Markdown, and its picture, SVG."""
    rows, lengths = record["rows"], [str(n) for n in record["lengths"]]
    twice = next(n for n in lengths if int(n) == 2 * int(lengths[0]))
    found = differences(rows, twice)
    p = statistics.holm({i: one.p for i, one in enumerate(found.values())})  # over all of them
    apart = [pair for i, pair in enumerate(found) if p[i] < 1 - statistics.LEVEL]

    def mean(task: str, attention: str, which: int = TOKEN, n: str = twice) -> statistics.Mean:
        return statistics.mean_of([*scores(rows, task, attention, n, which).values()])

    def exact(n: str) -> dict[str, dict[str, float]]:
        tested = dict.fromkeys((row["task"], row["attention"]) for row in rows if row["stage"] == "test")
        return {task: {one: mean(task, one, EXACT, n).mean for of, one in tested if of == task} for task, _ in found}

    text = pages.page(
        "length",
        **{name: value for name, value in record.items() if name not in ("rows", "lengths", "dev")},
        cpu_minutes=sum(row["cpu_seconds"] for row in rows) / 60, codes=codes(rows), brackets=statistics.brackets, mean=mean,
        attentions=dict.fromkeys(row["attention"] for row in rows), found=found, twice=twice,
        apart=apart, better=[pair for pair in apart if found[pair].mean > 0], alike=[task for task in record["options"] if task not in dict(apart)],
        lost=sum(not low <= 0 <= high for low, high in (found[pair].interval() for pair in found if pair not in apart)), once=lengths[0], learned=exact(lengths[0]), best={task: max(of.values()) for task, of in exact(twice).items()},
    )  # fmt: skip
    return text, picture(rows, lengths)


def write(record: dict[str, Any], output: Path) -> Path:
    """Write the record, the page and the picture into a folder of results. Returns the page."""
    head, rows = json.dumps({**record, "rows": []}), ",\n".join(map(json.dumps, record["rows"]))
    (output / "figures").mkdir(parents=True, exist_ok=True)
    (output / "length.json").write_text(head.removesuffix("]}") + "\n" + rows + "\n]}\n")
    text, drawn = page(json.loads((output / "length.json").read_text()))
    write_atomic(output / "figures" / "length.svg", drawn.encode())
    (output / "length.md").write_text(text)
    return output / "length.md"
