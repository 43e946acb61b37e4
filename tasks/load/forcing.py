"""What the rows of a finished table attend to while they are forced to one and the same output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from repro.store import Store
from tasks.data.records import Pair
from tasks.data.symbols import EOS, SPECIAL
from tasks.load.attending import Finished
from tasks.load.model import Loaded, load_cell
from tasks.seq2seq.decode import padded
from tasks.seq2seq.figures import Example, Panel


def stored(of: Finished, index: int) -> tuple[str, str]:
    """(source, first reference) of a test sentence. Raises ValueError when there is no such sentence."""
    test = of.cells[0][1].found(Store(of.outputs)).evaluations["test"]
    for record in test.predictions():
        if record["set"] == "test" and record["index"] == index:
            return record["source"], record["references"][0]
    raise ValueError(f"there is no test sentence {index}")


def forced(of: Finished, source: str, output: str) -> Example:
    """Every row reads `source` and is given `output` word by word, whatever it would have said itself."""
    panels, tokens = [], []
    for label, cell in of.cells:
        loaded = load_cell(cell.entry(Store(of.outputs)).folder)
        tokens, said, weights = _attention(loaded, source, output)
        kept = {"weights": weights}
        if hasattr(loaded.model, "densities"):
            kept |= loaded.model.densities(weights)
        panels.append(Panel(label, cell.mapping, said, {name: value.numpy() for name, value in kept.items()}))
    return Example(source, tokens, output, panels)


@torch.no_grad()
def _attention(loaded: Loaded, source: str, output: str) -> tuple[Sequence[str], Sequence[str], torch.Tensor]:
    """Source tokens S, output tokens T (the end of sentence last), attention [T, S] on the CPU."""
    model = loaded.model
    device = next(model.parameters()).device
    with loaded.as_test_set([Pair(source, (output,))], "pairs", {"digits": None}) as test:
        split = test.splits["test"]
        src_tokens, src_lengths = padded([split.source[0]])
        given = np.concatenate(([EOS], split.target[0])).tolist()
        memory = model.encode(src_tokens.to(device), src_lengths)
        state, steps = model.start(memory), []
        for token in given:
            _, weights, state = model.step(torch.tensor([token], device=device), memory, state)
            steps.append(weights[0].float().cpu())
        return split.source_tokens(0), [*split.target_tokens(0), SPECIAL[EOS]], torch.stack(steps)
