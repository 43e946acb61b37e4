"""What a run prints last if its experiment has `draw`: what the scores show, and the attention for a test example."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from difflib import SequenceMatcher
from types import SimpleNamespace

from repro.plan import Plan
from repro.protocol import Metric, metric_of
from repro.report import heat
from repro.report.data import Missing, lines_of, predictions_of, styles
from repro.tables.blocks import SIGNIFICANT, Block, Row, Table
from repro.tables.paired import by_examples
from repro.tables.claims import UNIFORM
from tasks.load import drawing


def text(table: Table, plan: Plan) -> str:
    """The findings and the drawings of every column that has finished rows."""
    said = []
    for number, block in enumerate(table.blocks):
        rows = [row for row in block.rows if row.found and not row.baseline and row.values[0].summary]
        if rows:
            said += findings(rows, block.headers[0], metric_of(plan.metrics(number), rows[0].values[0].metric))
            try:
                said += ["", *pictures(table, block, plan.experiment.columns[number].split, plan.experiment.draw)]
            except Missing as missing:
                said += ["", str(missing)]
    return "\n".join(said) + "\n"


def findings(rows: Sequence[Row], score: str, metric: Metric) -> list[str]:
    """What the first score shows: each row compared with the first one, by a test over the test examples."""
    first, *others = rows
    decimals = first.values[0].decimals
    said = []
    for row in rows:
        mean = row.values[0].summary.mean
        line = f"{row.label} has {mean:.{decimals}f} {score}"
        if row is not first:
            change = mean - first.values[0].summary.mean
            p = by_examples(first, row, row.values[0].metric, metric)
            seen = p is not None and p * len(others) < SIGNIFICANT  # Bonferroni
            tested = "which was not tested" if p is None else "more than chance" if seen else "which may be chance"
            line += f", {abs(change):.{decimals}f} {'less' if change < 0 else 'more'} than {first.label} ({tested})"
            if row.label == UNIFORM:
                shown = seen and change * metric.better < 0
                line = f"{'Attention matters' if shown else 'This run does not show that attention matters'}: {line}"
        zeros = [v.summary.mean for v in row.values if v.metric.endswith("/attention_zeros") and v.summary]
        said.append(line + "".join(f"; {share:.0%} of its attention weights are exactly zero" for share in zeros) + ".")
    if learning := [row.label for row in rows if not row.convergence.converged]:
        said.append(f"Training had not converged: {', '.join(learning)}. A longer training may change the differences.")
    n = min(len(row.values[0].runs) for row in rows)
    return [
        *said,
        *["One run per row; with seeds=1,2,3 (make: ARGS=seeds=1,2,3) you see how much another seed changes."]
        * (n == 1),
    ]


def pictures(table: Table, block: Block, split: str, labels: Sequence[str]) -> list[str]:
    """The attention of the rows `labels` for one test example: that of the report whose outputs are nearest to a reference.

    Raises `Missing` if the rows have no example with stored weights in common.
    """
    lines = lines_of(block, styles([table]))
    if not any(line.label in labels for line in lines):
        raise Missing(f"No row is left to draw: {', '.join(labels)}.")
    found = heat.examples(lines, predictions_of(lines, split), split)

    def agreement(index: int) -> float:
        records = [record for *_, record in found[index]]
        return sum(
            max(
                (SequenceMatcher(None, r.lower(), record["output"].lower()).ratio() for r in record["references"]),
                default=0,
            )
            for record in records
        )

    panels = found[max(found, key=agreement)]
    about = panels[0][-1]
    said = [f"Attention for a test example: {about['source']}", f"Reference: {' / '.join(about['references'])}"]
    for line, weights, source, outputs, record in panels:
        if line.label in labels:
            one = SimpleNamespace(attention=weights, source_tokens=source, output_tokens=outputs)
            width = shutil.get_terminal_size().columns
            said += ["", f"{line.label}: {record['output']}", drawing.terminal(one, width)]
    return [*said, "", drawing.LEGEND]
