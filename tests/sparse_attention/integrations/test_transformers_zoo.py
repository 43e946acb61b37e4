"""Every architecture of transformers that attends by its interface, tiny and random; docs/guides/transformers_models.md is their list.

``TRANSFORMERS_MODELS=record pytest -m slow tests/sparse_attention/integrations/test_transformers_zoo.py`` writes it.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from pathlib import Path

import pytest

import sparse_attention as sa

transformers = pytest.importorskip("transformers")
zoo = importlib.import_module("zoo")  # beside this file

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "transformers_models.md"
HEAD = """# Architectures of transformers {version}

Every model type of transformers {version} whose code uses the attention interface was tried, as a tiny random model: {passed} of {all} pass.
`TRANSFORMERS_MODELS=record pytest -m slow tests/sparse_attention/integrations/test_transformers_zoo.py` writes this page. Each model is built from its own configuration class,
with small sizes set by name. A model passes if all of the following hold:

* Softmax through `register("softmax", weights=True)` gives all outputs of the eager implementation within 1e-6 (shown below; relative to the largest output if that is above 1).
* Softmax through `register("softmax")`, which runs torch's fused function, agrees within 1e-5, also with padded words through `use(model, "softmax", partly=True)`.
* A training step with sparsemax has finite gradients that reach queries and keys.

For the other models, the test has no tiny configuration or no inputs, unless the reason says that the model uses its own attention code. Two notes:

* bigbird_pegasus: its encoder adds the mask to its own scores, so padding is correct only with `use(..., partly=True)`; after
  `set_attn_implementation` alone it would add a boolean mask.
* owlv2: gradients of these random weights reach 100, so float32 rounding shows as 1e-4. Relative to them two implementations agree to 1e-6, and in float64 to 1e-14.

| architecture | softmax against eager | attentions in a step |
|---|---|---|
{rows}

| not tested | why |
|---|---|
{skips}
"""


@pytest.fixture(scope="module")
def spied():
    """Calls of the implementation "spy", which is sparsemax: queries and keys, with their gradients kept."""
    register = sa.integrations.transformers.register
    register("softmax")
    register("softmax", name="softmax_with_weights", weights=True)
    register("sparsemax", name="spy")
    inner, seen = transformers.AttentionInterface._global_mapping["spy"], []

    def spy(module, query, key, value, attention_mask=None, **given):
        for x in (query, key):
            if x.requires_grad:
                x.retain_grad()
        seen.append((query, key))
        return inner(module, query, key, value, attention_mask, **given)

    transformers.AttentionInterface.register("spy", spy)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield seen
    logging.disable(logging.NOTSET)


def listed() -> list[str]:
    """The architectures that the page says pass."""
    rows = PAGE.read_text(encoding="utf-8").split("| not tested")[0].splitlines()
    return [row.split("|")[1].strip() for row in rows if row.startswith("| ") and not row.startswith("| architecture")]


@pytest.mark.parametrize("part", range(8))
def test_softmax_is_eager_and_a_sparse_step_is_finite(part, spied):
    names = sorted(set(listed()) & set(zoo.architectures()))
    assert len(names) >= 60
    failed = {name: found for name in names[part::8] if isinstance(found := zoo.verdict(name, spied), str)}
    assert failed == {}


@pytest.mark.slow
def test_the_list_of_architectures(spied):
    found = {}
    for name in sorted(zoo.architectures()):
        try:
            found[name] = zoo.verdict(name, spied)
        except AssertionError as error:
            found[name] = f"fails: {str(error).splitlines()[0]}"
    good = {name: v for name, v in found.items() if not isinstance(v, str)}
    rows = "\n".join(f"| {name} | {error:.0e} | {calls} |" for name, (error, calls) in good.items())
    skips = "\n".join(f"| {name} | {v} |" for name, v in found.items() if isinstance(v, str))
    page = HEAD.format(version=transformers.__version__, passed=len(good), all=len(found), rows=rows, skips=skips)
    if os.environ.get("TRANSFORMERS_MODELS") == "record":
        PAGE.write_text(page, encoding="utf-8")
    if f"transformers {transformers.__version__}\n" not in PAGE.read_text(encoding="utf-8"):
        pytest.skip(f"the page is of another version than {transformers.__version__}")
    assert listed() == list(good)
