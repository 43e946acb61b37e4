"""Print the attention of one test example after the table, if the experiment has `draw`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from difflib import SequenceMatcher
from types import SimpleNamespace

from repro.plan import Plan
from repro.report import examples
from repro.report.data import Missing, predictions_of
from repro.tables.blocks import Block, Table
from tasks.draw import terminal


def text(table: Table, plan: Plan) -> str:
    """The drawings of every column that has finished rows."""
    said = []
    for number, block in enumerate(table.blocks):
        if any(row.results for row in block.own):
            try:
                said += pictures(block, plan.experiment.columns[number].split, plan.experiment.draw)
            except Missing as missing:
                said.append(str(missing))
    return "\n".join(said) + "\n"


def pictures(block: Block, split: str, labels: Sequence[str]) -> list[str]:
    """The attention of the rows `labels` for one test example: that of the report whose outputs are nearest to a reference.

    Raises `Missing` if the rows have no example with stored weights in common.
    """
    if not any(row.label in labels for row in block.own):
        raise Missing(f"No row is left to draw: {', '.join(labels)}.")
    drawable = examples.attention(block.own, predictions_of(block.own, split), split)

    def agreement(index: int) -> float:
        """How alike the outputs of the rows and the nearest references are."""
        found = 0.0
        for *_, record in drawable[index]:
            said = record["output"].lower()
            found += max((SequenceMatcher(None, r.lower(), said).ratio() for r in record["references"]), default=0)
        return found

    panels = drawable[max(drawable, key=agreement)]
    about = panels[0][-1]
    said = [f"Attention for a test example: {about['source']}", f"Reference: {' / '.join(about['references'])}"]
    for row, weights, source, outputs, record in panels:
        if row.label in labels:
            one = SimpleNamespace(attention=weights, source_tokens=source, output_tokens=outputs)
            width = shutil.get_terminal_size().columns
            said += ["", f"{row.label}: {record['output']}", terminal.terminal(one, width)]
    return [*said, "", terminal.LEGEND]
