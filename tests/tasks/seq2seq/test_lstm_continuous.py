"""Continuous attention in translation: contexts against quadrature, gradients against differences, training against search."""

import numpy as np
import pytest
import torch
from differences import along_a_random_direction
from safetensors.torch import load_file
from torch.nn import functional as F

from repro.store import Store
from tasks.config import compose
from tasks.data.symbols import PAD
from tasks.seq2seq.models import lstm_continuous

DENSITIES = lstm_continuous.ON_THE_LINE
OTHERS = [{}, {"input_feeding": False, "bidirectional": True}, {"attention": "additive"}, {"discrete": "sparsemax"}]
SMALL = {"rbf": 6, "widths": [0.1, 0.3], "of": lstm_continuous}


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_training_is_what_the_search_sees(
    build, sentences, assert_search_sees_training, assert_alone_as_in_a_batch, density, options
):
    model = build(density, **SMALL, **options)
    assert_search_sees_training(model, sentences[0])
    assert_alone_as_in_a_batch(model, *sentences)
    attention = model(**sentences[0])[1]
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))


def pdf(t: np.ndarray, mean: float, variance: float, density: str) -> np.ndarray:
    """Martins et al. 2020, section 2.4, with this mean and variance."""
    if density == "continuous_softmax":
        return np.exp(-((t - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    a = np.sqrt(5 * variance)  # of a parabola
    return np.clip(1 - ((t - mean) / a) ** 2, 0, None) * 3 / (4 * a)


@pytest.mark.parametrize("density", ["continuous_softmax", "continuous_sparsemax"])
def test_the_context_is_the_integral_of_the_value_function(build, sentences, density):
    """sum_s p_s h_s + int p(t) B psi(t) dt, B by numpy's ridge regression, the integral by the trapezoidal rule."""
    model, (inputs, _) = build(density, **SMALL), sentences
    with torch.no_grad():
        memory = model.encode(inputs["src_tokens"], inputs["src_lengths"])
        _, p, _ = model.step(inputs["prev_output_tokens"][:, 0], memory, model.start(memory))
        found = torch.bmm(model._reading(p.unsqueeze(1), memory), memory["states"]).squeeze(1)
    centres, widths = np.tile(np.linspace(0, 1, 3), 2), np.repeat([0.1, 0.3], 3)

    def psi(t):
        return np.exp(-0.5 * ((t - centres[:, None]) / widths[:, None]) ** 2) / (widths[:, None] * np.sqrt(2 * np.pi))

    for i, length in enumerate(inputs["src_lengths"].tolist()):
        at = (np.arange(length) + 0.5) / length
        h, weights = memory["states"][i, :length].numpy().T, p[i, :length].numpy()
        basis = psi(at)  # [N, S]
        b = np.linalg.solve(basis @ basis.T + 0.01 * np.eye(6), basis @ h.T).T
        mean = weights @ at
        variance = max(weights @ (at - mean) ** 2, 1e-6)
        t = mean + np.linspace(-9, 9, 200_001) * np.sqrt(variance)
        expected = h @ weights + b @ np.trapezoid(psi(t) * pdf(t, mean, variance, density), t)
        np.testing.assert_allclose(found[i].numpy(), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("density", DENSITIES)
def test_gradients_are_those_of_finite_differences(build, sentences, density):
    """Of the loss, along random directions in the space of all parameters, which are those of the discrete model (section 4)."""
    model, (inputs, target) = build(density, **SMALL), sentences
    discrete = [(n, p.shape) for n, p in build().named_parameters()]
    assert [(n, p.shape) for n, p in model.named_parameters()] == discrete, "without any additional parameters"

    def loss():
        return F.cross_entropy(model(**inputs)[0].flatten(0, 1), target.flatten(), ignore_index=PAD)

    parameters = list(model.parameters())
    slopes = torch.autograd.grad(loss(), parameters)
    for seed in (7, 8, 9):
        promised, expected = along_a_random_direction(loss, parameters, slopes, seed)
        assert promised == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_only_a_model_that_gives_a_density_takes_one_and_what_cannot_be_is_refused(composed):
    softmax, own = "mapping=continuous_softmax", ["task=toy", "model.name=lstm_continuous"]
    config = composed(["task=translation", "model=lstm_continuous_demo", softmax, "model.rbf=12"])
    named = composed(["task=translation", "model.name=lstm_continuous", softmax, "+model.rbf=12"])
    assert config == named and config["model"]["discrete"] == "softmax"
    for overrides, said in (
        (["task=translation", softmax], "works over a density; this model attends over a row"),
        ([*own, "mapping=softmax"], "mapping=softmax works over a row; this model attends over a density"),
        ([*own, "mapping=continuous_mixture"], "continuous_mixture is for images"),
        ([*own, "mapping=continuous_sparsemax", "mapping.quadrature=paper-code"], "quadrature=paper-code is for"),
        ([*own, softmax, "model.mask_padding=false"], "model.mask_padding=false is not possible"),
        ([*own, softmax, "+model.rbf=31"], "rbf=31, widths=.*multiple of 3"),
        ([*own, softmax, "+model.discrete=none"], "model.discrete='none'.*softmax"),
    ):
        with pytest.raises(compose.ConfigError, match=said):
            composed(overrides)


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
