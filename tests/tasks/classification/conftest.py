"""Fixtures for the classification tasks: encoded generated texts, and models on them."""

from __future__ import annotations

import pytest

from tasks.classification.corpus import open_source
from tasks.classification.encode import encode


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """`toy(name, **limits)`: an encoded generated data set."""
    root = tmp_path_factory.mktemp("toy")

    def make(name: str, **limits: int):
        return encode(open_source({"name": name, "root": str(root), "limits": limits}), {}, root)

    return make
