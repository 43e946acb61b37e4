"""A small set of questions about images, encoded."""

import pytest

from tasks.data import NullProgress, open_data
from tasks.vqa.encode import encode, encode_test
from tasks.vqa.options import Encode


@pytest.fixture(scope="session")
def node(vqa2_folder):
    """The data node of a configuration for the small set."""
    return {"name": "vqa2", "path": str(vqa2_folder), "input": "pixels", "image_size": [32, 32], "dev_share": 0.2}


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def encoded(node, cache):
    """Train and dev."""
    return encode(open_data(node, cache), Encode(min_answer_count=2), cache, NullProgress())


@pytest.fixture(scope="session")
def encoded_test(node, cache, encoded):
    """The test questions in the same vocabulary."""
    return encode_test(open_data(node, cache), encoded.folder, cache, NullProgress())
