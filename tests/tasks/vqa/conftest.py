"""A small set of questions about images, encoded."""

from __future__ import annotations

import pytest
from small_vqa2 import write_vqa2


@pytest.fixture(scope="session")
def vqa2_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vqa2")
    write_vqa2(folder)
    return folder


@pytest.fixture
def data(vqa2_folder, tmp_path):
    """The data node of a configuration for the small set."""
    return {"name": "vqa2", "path": str(vqa2_folder), "root": str(tmp_path), "image_size": [32, 32], "dev_share": 0.2}


@pytest.fixture
def encoded(data):
    from tasks.vqa.corpus import load_corpus, load_images
    from tasks.vqa.encode import encode

    corpus = load_corpus(data)
    return encode(corpus, load_images(data, corpus), {"max_tokens": 14, "min_answer_count": 2, "vectors": None})
