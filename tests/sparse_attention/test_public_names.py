"""`help(sa)` and `dir(sa)` are complete, and a user's file passes `mypy --strict`."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from alone import HEAD

import sparse_attention as sa
from sparse_attention import registry
from sparse_attention.mappings import continuous

# Modules that need the package they are written for.
TRITON = ("attention_blocks", "attention_kernels", "decoding_kernels", "rows", "simplex", "structured")
NEEDS = {"integrations.transformers": "transformers"} | {f"kernels.triton.{name}": "triton" for name in TRITON}
# Prints the modules that need more than torch, with what they need, and the number of modules.
ALONE = "import warnings; warnings.simplefilter('ignore')  # torch misses numpy" + HEAD
ALONE += """
for found in pkgutil.walk_packages(sa.__path__, "sparse_attention."):
    try:
        found.name.endswith("__main__") or importlib.import_module(found.name)
    except ImportError as error:
        print(found.name.removeprefix("sparse_attention."), str(error).replace("'", " ").split("named ")[1].split()[0])
print(len([name for name in sys.modules if name.startswith("sparse_attention")]))
"""

USER = Path(__file__).with_name("user_file.py")
ROOMS = ("fused", "integrations", "kernels", "losses", "nn", "prox", "quality", "structured")


def own_names() -> set[str]:
    """`dir(sa)` without mappings that other tests have registered."""
    every = map(registry.spec, registry.names())
    others = [s for s in every if not (s.function or s.module).__module__.startswith("sparse_attention")]
    return set(dir(sa)) - {name for s in others for name in (s.name, s.module.__name__)}


# What a call that leaves an argument out has always meant; the functions named differ from the rest.
COMMON: dict[str, object] = {
    "mask lengths weight start stop bounds lower window cu_seqlens slopes sink": None,
    "causal need_weights half_pairs corrected return_gap return_structures add_bias_kv add_zero_attn batch_first": False,
    "dropout label_smoothing l1 tau": 0.0,
    "gamma q share": 1.0,
    "mode solver moment_match": "exact",
    "tol ridge": 0.01,
    "floor min_sigma_sq": 1e-06,
}
DEFAULTS = {name: value for names, value in COMMON.items() for name in names.split()}
DEFAULTS |= {"dim": -1, "reduction": "mean", "ignore_index": -100, "mass": 0.9, "p": 1.5, "quadrature": "auto"}
DEFAULTS |= {"max_components": 4, "penalty": 5.0, "iterations": 10, "restarts": 3, "initial_variance": 0.001}
DEFAULTS |= {"order": 1, "grid": (14, 14), "positions": "cell_centre"}
OWN_DEFAULTS = {
    "alpha": {
        "entmax Entmax entmax_loss EntmaxLoss alpha_relu AlphaRelu": 1.5,
        "MultimodalAttention2d mixture_expectation": 1.0,
        "": 2.0,
    },
    "k": {"sparsemap_budget SparsemapBudget": 2, "": 8},
    "bias": {"MultiheadAttention": True, "": None},  # torch's argument; numbers added to scores
    "lam": {"fusedmax Fusedmax FusedmaxLoss fusedmax_loss tvmax Tvmax": 0.1, "oscarmax Oscarmax": 0.01, "": 0.0},
}


def defaults():
    """(name of the function, parameter, default) of everything public."""
    rooms = [sa, *(getattr(sa, room) for room in ROOMS), continuous]
    things = {name: getattr(room, name) for room in rooms for name in getattr(room, "__all__", dir(room))}
    for name, thing in things.items():
        ours = callable(thing) and getattr(thing, "__module__", "").startswith("sparse_attention")
        if ours and not (inspect.isclass(thing) and issubclass(thing, Exception)):
            for parameter in inspect.signature(thing).parameters.values():
                if parameter.default is not parameter.empty:
                    yield name, parameter.name, parameter.default


def test_an_argument_that_is_left_out_means_the_same_everywhere():
    found = [(name, parameter, value) for name, parameter, value in defaults() if parameter in DEFAULTS]
    assert len(found) > 200 and {parameter for _, parameter, _ in found} == set(DEFAULTS)
    others = [one for one in found if one[2] != DEFAULTS[one[1]] or type(one[2]) is not type(DEFAULTS[one[1]])]
    assert others == [], "rename the parameter, or give it the default that the others have"
    for name, parameter, value in defaults():
        if parameter in OWN_DEFAULTS:
            kinds = OWN_DEFAULTS[parameter]
            own = next((v for names, v in kinds.items() if name in names.split()), kinds[""])
            assert value == own, (name, parameter)


def test_the_docstring_that_help_begins_with_lists_every_public_name():
    listed = set(re.findall(r"\w+", sa.__doc__.partition("Public names")[2]))
    assert own_names() - listed == set()


def test_all_holds_every_public_name():
    starred: dict[str, object] = {}
    exec("from sparse_attention import *", starred)
    assert {*starred, "__version__"} - {"__builtins__"} == {*sa.__all__, "__version__"} == own_names()


def test_the_users_file_uses_many_names_and_runs():
    source = USER.read_text(encoding="utf-8")
    assert len(set(re.findall(r"\bsa\.(\w+)", source))) >= 30
    names: dict[str, object] = {"__name__": "user_file"}
    exec(compile(source, str(USER), "exec"), names)
    assert names["main"]()["rows"] == 3.0


def test_every_module_imports_with_torch_alone():
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=Path(sa.__file__).parents[1], check=True
    )
    *failed, count = done.stdout.split("\n")[:-1]
    assert dict(line.split() for line in failed) == NEEDS and int(count) > 80


@pytest.mark.slow  # mypy reads all of torch
def test_the_users_file_passes_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    ours = str(Path(sa.__file__).parents[1])
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import sparse_attention as sa\n\nsa.make(3)\nx: int = sa.names()\nsa.sparsemacks\n")
    command = [sys.executable, *"-m mypy --strict --follow-imports=silent --cache-dir".split(), str(tmp_path / "cache")]
    env = {**os.environ, "MYPYPATH": ours}
    done = subprocess.run(
        [*command, str(USER), str(wrong)], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
    )
    said = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in said if "wrong.py" not in line] == []
    assert [re.findall(r"\[([\w-]+)\]$", line)[0] for line in said] == ["arg-type", "assignment", "attr-defined"]
