"""Attention under a forced output: that of teacher forcing, the same output for every row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tasks.commands import attending
from tasks.commands.attending import Finished
from tasks.data.records import Pair
from tasks.data.symbols import EOS
from tasks.load.model import load_cell


def test_forced_attention_is_that_of_teacher_forcing(learned, tmp_path):
    """Of two trained rows, one of them fused; on a test sentence and its reference."""
    cells = []
    for mapping in ("softmax", "fusedmax"):
        cell, entry = learned(mapping)
        found = SimpleNamespace(evaluations={"test": entry.evaluation(cell.evaluation_id(cell.tests[0]))})
        given = {"entry": lambda store, entry=entry: entry, "results": lambda store, found=found: found}
        cells.append((mapping, SimpleNamespace(mapping=mapping, config=cell.config, **given)))
    of = Finished("title", None, cells, str(tmp_path))
    source, output = attending.stored_sentence(of, 2)
    with pytest.raises(ValueError, match="no test sentence 99999"):
        attending.stored_sentence(of, 99999)
    example = attending.forced(of, source, output)
    heats = [heat for line in example.lines for heat in line]
    assert [heat.title for heat in heats] == ["softmax", "fusedmax"]
    assert list(heats[0].down) == list(heats[1].down)
    for heat, (_, row) in zip(heats, cells):
        weights = heat.weights
        assert weights.shape == (len(heat.down), len(heat.across))
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        loaded = load_cell(row.entry(None).folder)
        with loaded.as_test_set([Pair(source, (output,))], "pairs", {"digits": None}) as test, torch.no_grad():
            ids = torch.tensor([test.splits["test"].source[0].tolist()])
            before = torch.tensor([[EOS, *test.splits["test"].target[0].tolist()]])
            _, attention = loaded.model(ids, torch.tensor([ids.size(1)]), before)
        np.testing.assert_allclose(weights, attention[0].numpy(), atol=1e-5)
    assert not np.allclose(heats[0].weights, heats[1].weights, atol=1e-3)
