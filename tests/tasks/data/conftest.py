"""Fixtures of the data room."""

import pytest

from tasks.data import NullProgress, open_data


@pytest.fixture
def opened(tmp_path):
    """`opened(name, **options)`: a data set whose cache is the test's own folder."""
    return lambda name, **options: open_data({"name": name, **options}, tmp_path / "cache")


@pytest.fixture
def read(opened):
    """`read(name, **options)`: its splits."""
    return lambda name, **options: opened(name, **options).read(NullProgress())


def write_lines(folder, files):
    """Files of lines: name -> lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="session")
def write():
    return write_lines
