"""scripts/train.py as a user calls it, on cells of seconds."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """One store for the tests of this module: a cell trained by one is finished for the next."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture
def train(script, tiny, outputs):
    def run(*arguments, **environment):
        given = {a.split("=")[0] for a in arguments}
        rest = [o for o in tiny if o.split("=")[0] not in given]
        more = [*rest, f"paths.outputs={outputs}"]
        return script("train.py", *more, *arguments, **environment)

    return run
