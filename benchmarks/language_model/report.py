"""The page of results: loss after equal steps and after equal time, speed, memory, and density by layer."""

from __future__ import annotations

from typing import Any

from benchmarks import pages

Point = tuple[int, float, float]  # step, seconds, dev loss in bits per byte


def at_step(points: list[Point], step: int) -> float:
    """The loss at ``step``, which must be a step at which the model was evaluated."""
    return next(loss for at, _, loss in points if at == step)


def at_time(points: list[Point], seconds: float) -> float:
    """The loss after ``seconds``, interpolated linearly between the evaluations before and after."""
    if seconds >= points[-1][1]:
        return points[-1][2]
    after = next(i for i, point in enumerate(points) if point[1] > seconds)
    (_, t0, a), (_, t1, b) = points[after - 1], points[after]
    return a + (b - a) * (seconds - t0) / (t1 - t0)


def steps_by(points: list[Point], seconds: float) -> int:
    """Approximate number of steps taken in ``seconds``, assuming a constant speed between two evaluations."""
    return round(at_time([(0, t, float(step)) for step, t, _ in points], seconds))


def shared_steps(rows: dict[str, Any]) -> list[int]:
    """The steps at which all rows were evaluated."""
    common = set.intersection(*({point[0] for point in row["points"]} for row in rows.values()))
    return sorted(common)


def page(result: dict[str, Any]) -> str:
    """The measurements of ``scripts/bench.py language_model`` as a Markdown page."""
    rows = result["rows"]
    first, last = next(iter(rows.values())), min(row["points"][-1][1] for row in rows.values())
    shown = {"rows": rows, "options": first["options"], "data": first["data"], "machine": result["machine"]}
    shown |= {"speeds": result["tokens_per_second"], "peaks": result["peak_mib"], "torch": result["torch"]}
    by = {"at_step": at_step, "at_time": at_time, "steps_by": steps_by}
    return pages.page("language_model", **shown, **by, steps=shared_steps(rows), seconds=last)
