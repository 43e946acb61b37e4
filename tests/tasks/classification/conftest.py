"""Fixtures for the classification tasks: encoded generated texts, and models on them."""

import copy

import numpy as np
import pytest
import torch

from tasks.classification.encode import encode, encode_test
from tasks.classification.options import Encode
from tasks.classification.predict import collate, padded, predict
from tasks.config.models import build
from tasks.data import open_data


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """`toy(name, **limits)`: an encoded generated data set, its test split among the others."""
    root = tmp_path_factory.mktemp("toy")

    def make(name: str, **limits: int):
        data = open_data({"name": name, "limits": limits}, root)
        encoded = encode(data, Encode(min_count=1), root)
        encoded.splits |= encode_test(data, encoded.folder, root).splits
        return encoded

    return make


@pytest.fixture
def build_model():
    """`build_model(architecture, encoded, mapping, **options)`: a model from seed 0, ready to predict.

    The parameters with one of the parts `sharp` in their name are three times as large, so that attention is not flat.
    """

    def make(name: str, encoded, mapping: str = "softmax", sharp=(), **options):
        torch.manual_seed(0)
        model = build("classification", {"name": name} | options, {"name": mapping}, encoded).eval()
        for of, parameter in model.named_parameters():
            parameter.data *= 3 if any(part in of for part in sharp) else 1
        return model

    return make


@pytest.fixture(scope="session")
def assert_no_part_of_the_batch():
    """Twelve examples together give what each gives alone, without attention to padding. Returns the extra output."""

    @torch.no_grad()
    def check(model, split, spread: float = 1e-4) -> dict:
        # generated pairs are all equally long; without cutting them there would be no padding
        cut = [[part[i][: max(1, len(part[i]) - i % 4)] for i in range(12)] for part in split.fields]
        together, extra = model(*padded(cut))
        alone = [model(*padded([[field[i]] for field in cut])) for i in range(12)]
        assert torch.allclose(together, torch.cat([logits for logits, _ in alone]), atol=1e-5)
        assert together.std(0).min() > spread, "a model that says the same of every text would pass"
        for name, p in extra["attention"].items():
            for row, (_, other) in zip(p, alone):
                own = other["attention"][name][0]
                assert torch.allclose(row[: len(own)], own, atol=1e-6) and not row[len(own) :].any()
        for name, values in extra.get("measures", {}).items():
            own = torch.cat([other["measures"][name] for _, other in alone])
            assert torch.allclose(values.double(), own.double()), name
        return extra

    return check


@pytest.fixture(scope="session")
def assert_loss_reaches_every_parameter():
    def check(model, split) -> None:
        logits, _ = model.train()(*collate(split, range(32)))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(split.labels[:32])).backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []

    return check


@pytest.fixture(scope="session")
def trained():
    """`trained(model, encoded, epochs, lr, batch)`: the model of the best epoch on dev, by a plain loop with Adam."""

    def train(model, encoded, epochs: int, lr: float, batch: int = 20):
        rng = np.random.default_rng(0)
        split, dev = encoded.splits["train"], encoded.splits["dev"]
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        best, weights = -1.0, None
        for _ in range(epochs):
            model.train()
            order = rng.permutation(len(split))
            order = order[np.argsort(split.fields[0].lengths[order], kind="stable")]  # texts of like length together
            starts = rng.permutation(np.arange(0, len(order), batch))
            for start in starts:
                rows = order[start : start + batch]
                logits, _ = model(*collate(split, rows))
                loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(split.labels[rows]))
                loss = loss + (model.penalty() if hasattr(model, "penalty") else 0.0)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
            right = [b.log_probs.argmax(-1).numpy() == dev.labels[b.index] for b in predict(model, dev)]
            if (accuracy := np.concatenate(right).mean()) > best:
                best, weights = accuracy, copy.deepcopy(model.state_dict())
            if best == 1:
                break  # no later epoch is better
        model.load_state_dict(weights)
        return model

    return train
