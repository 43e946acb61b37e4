"""The page of results: loss after equal steps and after equal time, speed, memory, and density by layer."""

from __future__ import annotations

from typing import Any

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
    """The measurements of ``scripts/language_model.py`` as a Markdown page."""
    rows, speeds, peaks = result["rows"], result["tokens_per_second"], result["peak_mib"]
    options = next(iter(rows.values()))["options"]
    step = shared_steps(rows)[-1]
    seconds = min(row["points"][-1][1] for row in rows.values())
    lines = [
        "# A causal language model: softmax and sparse attention",
        "",
        f"    make bench-lm ARGS='--seconds {options['seconds']:.0f}'        # trains the rows, measures, writes this page and its JSON",
        "",
        f"A decoder of {options['layers']} layers, width {options['width']}, {options['heads']} heads of {options['width'] // options['heads']}, rotary",
        f"positions, over windows of {options['length']} bytes: {next(iter(rows.values()))['data']}. AdamW at {options['learning_rate']:g} after",
        f"{options['warmup']} steps of warm-up, one window per step, one seed, float32, one thread; all rows see the same windows in the same order.",
        "Softmax is `F.scaled_dot_product_attention(is_causal=True)`, the others are `sa.sparse_attention(causal=True)`. Loss: bits a byte on the first",
        f"{options['windows'] * options['length']} bytes of dev. Time is processor time of the training steps, evaluations not counted. Machine: {result['machine']}; torch {result['torch']}.",
        "",
        f"| attention | tokens/s | times SDPA | peak MiB of a step | loss after {step} steps | loss after {seconds:.0f} s | steps by then | density by layer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        points = row["points"]
        cells = [name, f"{speeds[name]:.0f}", f"{speeds[name] / speeds['softmax']:.2f}", f"{peaks[name]:.0f}"]
        cells += [f"{at_step(points, step):.3f}", f"{at_time(points, seconds):.3f}", str(steps_by(points, seconds))]
        cells.append(", ".join(f"{100 * d:.1f} %" for d in row["density"]))
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Tokens/s and memory are of a step with the trained weights: speed from an interleaved run of its own (median of its turns), memory the",
        "growth of the peak resident memory in a process of its own. Density: the share of the visible pairs with weight, on the first window of dev.",
        "A few hundred steps are only the beginning of training: they do not show where the losses end.",
        "",
        "Dev loss by step:",
        "",
        "| steps | " + " | ".join(rows) + " |",
        "|---" * (len(rows) + 1) + "|",
    ]
    steps = shared_steps(rows)
    for at in steps[:: max(1, len(steps) // 10)]:
        lines.append(f"| {at} | " + " | ".join(f"{at_step(row['points'], at):.3f}" for row in rows.values()) + " |")
    return "\n".join([*lines, ""])


def sentence(result: dict[str, Any]) -> str | None:
    """The sentence in README about these measurements, or None if the measurements do not support it."""
    rows, speeds = result["rows"], result["tokens_per_second"]
    if not {"softmax", "sparsemax", "entmax15"} <= rows.keys():
        return None
    step, seconds = shared_steps(rows)[-1], min(row["points"][-1][1] for row in rows.values())
    by_step = {name: at_step(row["points"], step) for name, row in rows.items()}
    by_time = {name: at_time(row["points"], seconds) for name, row in rows.items()}
    if not (
        max(by_time["sparsemax"], by_time["entmax15"]) < by_time["softmax"]
        and by_step["entmax15"] < by_step["softmax"] <= by_step["sparsemax"]
    ):
        return None
    length = rows["softmax"]["options"]["length"]
    sparsemax, entmax = (speeds[name] / speeds["softmax"] for name in ("sparsemax", "entmax15"))
    return (
        f"A causal language model with a context of {length:,} bytes, on one CPU thread, trains {sparsemax:.1f} times as fast with "
        f"sparsemax as with torch's dense attention, and {entmax:.1f} times with entmax (alpha 1.5). After the same training time, "
        "both have a lower loss than softmax. After the same number of steps, only entmax does"
    )
