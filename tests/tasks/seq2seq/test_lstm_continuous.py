"""Continuous attention in translation: contexts, gradients, a cell (training against search: test_lstm.py)."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from repro.store import Store
from sparse_attention.mappings.continuous import ContinuousAttention1d, GaussianBasis1d
from tasks.data.symbols import PAD
from tasks.seq2seq.models import lstm_continuous

SMALL = {"rbf": 6, "widths": [0.1, 0.3], "of": lstm_continuous}


def pdf(t: np.ndarray, mean: float, variance: float, density: str) -> np.ndarray:
    """Martins et al. 2020, section 2.4, with this mean and variance."""
    if density == "continuous_softmax":
        return np.exp(-((t - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    a = np.sqrt(5 * variance)  # of a parabola
    return np.clip(1 - ((t - mean) / a) ** 2, 0, None) * 3 / (4 * a)


@pytest.mark.parametrize("density, alpha", [("continuous_softmax", 1.0), ("continuous_sparsemax", 2.0)])
def test_the_context_is_that_of_the_layer_beside_the_words(build, sentences, density, alpha):
    """`sa.continuous` tests the layer by quadrature."""
    model, (inputs, _) = build(density, **SMALL), sentences
    memory = model.encode(inputs["src_tokens"], inputs["src_lengths"])
    _, p, _ = model.step(inputs["prev_output_tokens"][:, 0], memory, model.start(memory))
    states, words = memory["states"], inputs["src_tokens"] != PAD
    found = torch.bmm(model._reading(p.unsqueeze(1), memory), states).squeeze(1)
    basis = GaussianBasis1d(torch.linspace(0, 1, 3).repeat(2), torch.tensor([0.1, 0.3]).repeat_interleave(3))
    fitted, _ = ContinuousAttention1d(basis, alpha)(states, words, weights=p)
    torch.testing.assert_close(found, torch.bmm(p.unsqueeze(1), states).squeeze(1) + fitted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("density", lstm_continuous.ON_THE_LINE)
def test_gradients_are_those_of_finite_differences(build, sentences, density):
    """Of the loss, in all parameters, which are those of the discrete model (section 4)."""
    model, (inputs, target) = build(density, **SMALL), sentences
    names, parameters = zip(*model.named_parameters())
    assert [(n, p.shape) for n, p in zip(names, parameters)] == [(n, p.shape) for n, p in build().named_parameters()]

    def loss(*values):
        logits, _ = torch.func.functional_call(model, dict(zip(names, values)), kwargs=inputs)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)


def test_a_cell_trains_and_stores_the_density(prepared_cell, ran, tiny, tmp_path):
    """Beside the discrete attention: its moments and the density's mass per word."""
    density = "continuous_sparsemax"
    cell = prepared_cell([*tiny, "model.name=lstm_continuous", f"mapping={density}", "task.keep_attention=3"])
    ran(cell, Store(tmp_path))
    kept = load_file(cell.results(Store(tmp_path)).evaluations["test"].path("attention.safetensors"))
    assert set(kept) == {f"{what}/{i}" for what in ("test", "mu", "sigma", "density") for i in range(3)}
    p = kept["test/0"].double()
    at = (torch.arange(p.size(1)) + 0.5) / p.size(1)
    mean = p @ at.double()
    torch.testing.assert_close(kept["mu/0"].double(), mean, rtol=1e-5, atol=1e-6)
    variance = (p * (at - mean.unsqueeze(1)) ** 2).sum(1).clamp(min=1e-6)
    for row, m, v in zip(kept["density/0"], mean.tolist(), variance.tolist()):
        np.testing.assert_allclose(row * p.size(1), pdf(at.numpy(), m, v, density), rtol=1e-3, atol=1e-4)
